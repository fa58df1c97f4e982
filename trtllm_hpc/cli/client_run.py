"""What ``trtllm-hpc client`` does: send the requests, and show the answers as they come."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import click
import numpy as np

from trtllm_hpc.cli.options import print_json
from trtllm_hpc.client.async_client import AsyncClient, chat_request
from trtllm_hpc.client.connect import Address, Protocol, Target, usual_protocol
from trtllm_hpc.client.lora import read_adapter
from trtllm_hpc.client.request import Answer, AnswerRecord, Message, Prompt, Request
from trtllm_hpc.errors import InvalidRequest, RequestFailed
from trtllm_hpc.logs.reading import for_output
from trtllm_hpc.paths import RunPaths, write_aside, write_json
from trtllm_hpc.runs.endpoint import follower_of
from trtllm_hpc.runtime.records import Endpoint


@dataclass(frozen=True)
class Settings:
    """The options of the command; see its help."""

    prompts: tuple[Prompt, ...]
    options: dict[str, Any]
    inputs: dict[str, Any]
    logits: Sequence[str]
    lora_dirs: tuple[str, ...]
    model: str | None
    protocol: Protocol | Literal["both"] | None
    chat: bool
    system: str | None
    check: bool
    stream: bool | None
    concurrency: int
    batch: bool
    stop_after_ms: int | None
    timeout_seconds: float
    retries: int
    request_id: str | None
    save_logits: Path | None
    save: bool
    as_json: bool

    @property
    def stop_after_s(self) -> float | None:
        """When to end an answer early; ``None``: never."""
        return None if self.stop_after_ms is None else self.stop_after_ms / 1000

    def messages(self, question: str) -> list[Message]:
        """Return the first messages of a chat."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": question}]

    def refuse_contradictions(self, *, is_run: bool) -> None:
        """Raise UsageError for options that do not go together."""
        several, adapters = len(self.prompts) > 1, len(set(self.lora_dirs))
        wrong = {
            "--protocol is for a run; a URL says it itself.": self.protocol is not None and not is_run,
            "--system goes with --chat.": self.system is not None and not self.chat,
            "--chat is over OpenAI's protocol: leave out --batch, --check, --protocol.": self.chat
            and (self.batch or self.check or self.protocol not in (None, "openai")),
            "--chat takes texts, not --token-ids.": self.chat
            and not all(isinstance(prompt, str) for prompt in self.prompts),
            "A talk has no --save, logits or --request-id: ask a prompt.": not self.prompts
            and (self.save or self.logits or self.request_id is not None),
            "--save keeps one answer of a run: ask one prompt, without --url.": self.save
            and (several or not is_run),
            "--save-logits needs --context-logits or --generation-logits.": self.save_logits is not None
            and not self.logits,
            "--request-id names one request: ask one prompt, or send a --batch.": self.request_id is not None
            and several
            and not self.batch,
            "--lora-dir is given once, or once for each prompt.": len(self.lora_dirs)
            not in (0, 1, len(self.prompts)),
            "A --batch has one LoRA adapter at most; send several requests instead.": self.batch
            and adapters > 1,
            "--check compares texts: leave out --stream, --save and logits.": self.check
            and (self.save or self.logits or self.stream),
            "--check asks a run's server: leave out --url.": self.check and not is_run,
            "--lora-task-id names one adapter; several get numbers of their own.": adapters > 1
            and "lora_task_id" in self.options,
        }
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise click.UsageError(message)


@dataclass(frozen=True)
class PromptRecord:
    """A prompt and the answers to it; one on each line."""

    prompt: Prompt
    """The text, or its token ids."""
    options: dict[str, Any]
    """The options that were given, by name."""
    model: str
    """The served model that was asked."""
    host: str
    """Node of the run's server, or the URL."""
    answers: tuple[AnswerRecord, ...]
    """One over each protocol; empty if there is none."""
    error: str | None
    """Why there is no answer."""


class Asking:
    """One call of the command; ``run`` is ``None`` for a server without a run."""

    def __init__(self, target: Target, settings: Settings, run: RunPaths | None) -> None:
        self._target, self._settings, self._run = target, settings, run
        self._ended = asyncio.Event()
        self._failed: list[RequestFailed] = []
        self._logits: dict[str, Any] = {}
        self._is_line_open = False
        """Whether a part of an answer was shown, and no line end after it."""

    def carry_out(self) -> None:
        """Ask everything, and print the answers in the prompts' order.

        Raises RequestFailed if a prompt was not answered, or protocols differ; KeyboardInterrupt after
        Ctrl-C, when all open requests have ended.
        """
        asyncio.run(self._main())

    async def _main(self) -> None:
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not in a main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._ended.set)
        settings = self._settings
        async with AsyncExitStack() as open_clients:
            clients = [
                await open_clients.enter_async_context(
                    AsyncClient(
                        self._target,
                        settings.model,
                        protocol=protocol,
                        timeout_s=settings.timeout_seconds,
                        retries=settings.retries,
                        follow=None if self._run is None else follower_of(self._run),
                    )
                )
                for protocol in self._protocols()
            ]
            requests = self._requests(clients[0])
            await (self._compare(requests) if settings.check else self._ask_all(requests, clients))
        if self._logits and settings.save_logits is not None:
            with write_aside(settings.save_logits) as aside, aside.open("wb") as file:
                np.savez(file, **self._logits)
        if self._ended.is_set():
            raise KeyboardInterrupt
        if not self._failed:
            return
        error, count = self._failed[0], len(settings.prompts)
        if count > 1 and not settings.batch:
            sentence = f"{len(self._failed)} of {count} prompts failed. The first: {error.message}"
            raise type(error)(sentence, hint=error.hint)
        raise error

    def _protocols(self) -> list[Protocol]:
        asked = self._settings.protocol
        if self._settings.chat:
            return ["openai"]
        if asked is None:
            return [usual_protocol(self._target) if isinstance(self._target, Endpoint) else "grpc"]
        return ["grpc", "http"] if asked == "both" else [asked]

    def _requests(self, client: AsyncClient) -> list[Request]:
        settings = self._settings
        stream = settings.stream
        if stream is None:
            is_alone = len(settings.prompts) == 1 and not settings.as_json and settings.protocol != "both"
            # Several texts, and logits, come as a whole.
            several = any(settings.options.get(name, 1) > 1 for name in ("beam_width", "return_sequences"))
            is_text = not (several or settings.logits)
            stream = is_alone and not settings.check and is_text and client.can_stream
        request = Request(
            (),
            settings.options,
            inputs=settings.inputs,
            logits=settings.logits,
            stream=stream,
            stop_after_s=settings.stop_after_s,
            timeout_s=settings.timeout_seconds,
            retries=settings.retries,
        )
        # The same folder is the same adapter.
        number = settings.options.get("lora_task_id")
        known = {it: read_adapter(Path(it), number) for it in set(settings.lora_dirs) if it}
        adapters = [known.get(folder) for folder in settings.lora_dirs or ("",)]
        if settings.batch:
            made = [replace(request, prompts=settings.prompts, adapter=adapters[0])]
        else:
            if len(adapters) == 1:
                adapters *= len(settings.prompts)
            made = [
                replace(request, prompts=(prompt,), adapter=adapter, request_id=Request(()).request_id)
                for prompt, adapter in zip(settings.prompts, adapters, strict=True)
            ]
        if settings.chat:
            made = [chat_request(settings.messages(str(each.prompts[0])), each) for each in made]
        return [replace(each, request_id=settings.request_id or each.request_id) for each in made]

    async def _compare(self, requests: Sequence[Request]) -> None:
        from trtllm_hpc.client.functional_check import check
        from trtllm_hpc.report.functional_check import print_check

        result = await check(cast(Endpoint, self._target), requests, self._settings.timeout_seconds)
        if self._settings.as_json:
            for answer in result.answers:
                print_json(answer, indent=None)
        else:
            print_check(result)
        for way in result.left_out:
            click.echo(f"note: left out {way}", err=True)
        if result.differences:
            raise RequestFailed(
                f"{len(result.differences)} of {len(result.answers)} answers differ, or are missing.",
                hint="sampling makes answers differ: leave out --temperature, --top-k and --top-p",
            )

    async def _ask_all(self, requests: Sequence[Request], clients: Sequence[AsyncClient]) -> None:
        slots = asyncio.Semaphore(self._settings.concurrency)
        is_live = len(self._settings.prompts) == 1 and not self._settings.as_json and requests[0].stream

        async def ask(request: Request) -> list[tuple[Answer, ...]]:
            """Return the answers to the prompts of a request over each protocol; none after Ctrl-C."""
            async with slots:
                found: list[tuple[Answer, ...]] = []
                for client in clients if not self._ended.is_set() else ():
                    # Of two protocols, the first brings the logits.
                    sent = replace(request, logits=()) if found else request
                    answers = await client.ask(sent, self._show_part if is_live else None, self._ended)
                    found.append(tuple(await client.count_tokens(sent, answers)))
                return found

        asking = [asyncio.ensure_future(ask(request)) for request in requests]
        try:
            for request, each in zip(requests, asking, strict=True):
                try:
                    found = await each
                except InvalidRequest:
                    raise  # the others would fail for the same reason
                except RequestFailed as error:
                    self._failed.append(error)
                    for prompt in request.prompts if self._settings.as_json else request.prompts[:1]:
                        self._report(request, prompt, clients[0], error=error)
                    continue
                for prompt, answers in zip(request.prompts, zip(*found, strict=True), strict=False):
                    self._end_line()
                    self._report(request, prompt, clients[0], answers, is_shown=is_live)
        finally:
            self._end_line()
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _show_part(self, text: str) -> None:
        click.echo(for_output(text), nl=False)
        self._is_line_open = True

    def _end_line(self) -> None:
        """So that an error does not stand behind the text."""
        if self._is_line_open:
            click.echo()
            self._is_line_open = False

    def _report(
        self,
        request: Request,
        prompt: Prompt,
        client: AsyncClient,
        answers: Sequence[Answer] = (),
        *,
        error: RequestFailed | None = None,
        is_shown: bool = False,
    ) -> None:
        """Print, and keep, the answers to one prompt: one over each protocol."""
        several = len(self._settings.prompts) > 1
        position = next(at for at, other in enumerate(self._settings.prompts, 1) if other is prompt)
        options = {
            name: value for name, value in request.options.items() if not isinstance(value, np.ndarray)
        }
        host = self._target.url if isinstance(self._target, Address) else self._target.host
        records, why = tuple(answer.record() for answer in answers), None if error is None else error.message
        record = PromptRecord(prompt, options, client.model.name, host, records, why)
        for answer in answers:
            for name, array in answer.logits.items():
                self._logits[f"{name}_{position}" if several else name] = array
        if self._settings.save and self._run is not None and answers:
            _save(self._run, record, answers)
        if self._settings.as_json:
            print_json(record, indent=None)
        elif why is not None and several:
            click.echo(f"prompt {position}: {for_output(why)}", err=True)
        else:
            for answer in answers:
                self._show(answer, is_shown=is_shown)
        if len({answer.text for answer in answers}) > 1:
            texts = "; ".join(f"{answer.protocol}: {answer.text!r}" for answer in answers)
            self._failed.append(
                RequestFailed(
                    f"The two protocols gave different answers to the same prompt. {texts}",
                    hint="try --protocol grpc and --protocol http one by one; sampling makes answers differ",
                )
            )

    def _show(self, answer: Answer, *, is_shown: bool) -> None:
        if not is_shown:
            ids = [" ".join(map(str, each)) for each in answer.token_ids]
            for text in answer.texts or ids or (answer.text,):
                click.echo(f"{answer.protocol} ({answer.latency_s * 1000:.0f} ms): {for_output(text)}")
        if is_shown or answer.is_stopped:
            click.echo(", ".join(_notes(answer)), err=True)
        if answer.log_probs is not None:
            click.echo("log-probs: " + " ".join(f"{value:.3f}" for value in answer.log_probs))
        for name, array in answer.logits.items():
            places = [self._settings.save_logits]
            if self._settings.save and self._run is not None:
                places.append(self._run.logits(name))
            where = "".join(f" in {place}" for place in places if place is not None)
            click.echo(f"{name}: {' x '.join(map(str, array.shape))}{where}")


def _notes(answer: Answer) -> list[str]:
    notes = []
    if answer.output_tokens is not None:
        about = "" if answer.counted_by == "server" else "about "
        notes.append(f"{about}{answer.output_tokens} token{'s' if answer.output_tokens != 1 else ''}")
    if answer.first_text_s is not None:
        notes.append(f"first text after {answer.first_text_s * 1000:.0f} ms")
        notes.append(f"all after {answer.latency_s * 1000:.0f} ms")
    if answer.is_stopped:
        notes.append("stopped early")
    return notes


def _save(run: RunPaths, record: PromptRecord, answers: Sequence[Answer]) -> None:
    run.results.mkdir(exist_ok=True)
    for answer in answers:
        for name, array in answer.logits.items():
            with write_aside(run.logits(name)) as aside, aside.open("wb") as file:
                np.save(file, array)
    write_json(run.answer, asdict(record))
