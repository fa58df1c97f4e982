"""What ``trtllm-hpc client`` does: send the requests, and show the answers as they come."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from trtllm_hpc.cli.shared import print_json
from trtllm_hpc.client.async_client import AsyncClient, chat_request
from trtllm_hpc.client.connect import Address, Protocol, Target
from trtllm_hpc.client.lora import read_adapter
from trtllm_hpc.client.request import Answer, Prompt, Request
from trtllm_hpc.errors import InvalidRequest, RequestFailed
from trtllm_hpc.logs.reading import for_output
from trtllm_hpc.paths import RunPaths, write_aside, write_json
from trtllm_hpc.runs.endpoint import follower_of
from trtllm_hpc.wire.served_model import LOGITS_OUTPUTS

_AT_ONCE = 8
"""Prompts that are asked at once."""


@dataclass(frozen=True)
class PromptRecord:
    """A prompt and the answer to it; one on each line."""

    prompt: Prompt
    """The text, or its token ids."""
    options: dict[str, Any]
    """The options that were given, by name."""
    model: str
    """The served model that was asked."""
    host: str
    """Node of the run's server, or the URL."""
    answers: tuple[Answer, ...]
    """The answer; empty if there is none."""
    error: str | None
    """Why there is no answer."""


@dataclass(eq=False)
class Asking:
    """One call of the command with its options; see its help. ``run`` is ``None`` for another server."""

    run: RunPaths | None
    prompts: tuple[Prompt, ...]
    options: dict[str, Any]
    inputs: dict[str, Any]
    lora_dirs: tuple[str, ...]
    model: str | None
    protocol: Protocol | None
    chat: bool
    system: str | None
    stream: bool | None
    timeout_seconds: float
    save: bool
    save_logits: Path | None
    as_json: bool

    def __post_init__(self) -> None:
        """Raise UsageError for options that do not go together."""
        self._ended = asyncio.Event()
        self._failed: list[RequestFailed] = []
        self._is_line_open = False
        """Whether a part of an answer was shown, and no line end after it."""
        self._has_logits = any(name in self.options for name in LOGITS_OUTPUTS)
        count, no_run = len(self.prompts), self.run is None
        can_chat = self.protocol in (None, "openai") and all(isinstance(it, str) for it in self.prompts)
        several_adapters = len(set(self.lora_dirs)) > 1
        for is_wrong, message in (
            (self.protocol is not None and no_run, "--protocol is for a run; a URL says it itself."),
            (self.system is not None and not self.chat, "--system goes with --chat."),
            (
                self.chat and not can_chat,
                "--chat takes texts over OpenAI's protocol: leave out --token-ids and --protocol.",
            ),
            (
                self.save and (count != 1 or no_run),
                "--save keeps one answer of a run: ask one prompt, without --url.",
            ),
            (self._has_logits and count != 1, "Logits are those of one answer: ask one prompt."),
            (
                self.save_logits is not None and not self._has_logits,
                "--save-logits needs --context-logits or --generation-logits.",
            ),
            (
                len(self.lora_dirs) not in (0, 1, count),
                "--lora-dir is given once, or once for each prompt.",
            ),
            (
                several_adapters and "lora_task_id" in self.options,
                "--lora-task-id names one adapter; several get numbers of their own.",
            ),
        ):
            if is_wrong:
                raise click.UsageError(message)

    async def carry_out(self, target: Target) -> None:
        """Ask everything, and print the answers in the prompts' order.

        Raises RequestFailed if a prompt was not answered; KeyboardInterrupt after Ctrl-C, when all open
        requests have ended.
        """
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not in a main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._ended.set)
        self._host = target.url if isinstance(target, Address) else target.host
        async with AsyncClient(
            target,
            self.model,
            protocol="openai" if self.chat else self.protocol,
            timeout_s=self.timeout_seconds,
            follow=None if self.run is None else follower_of(self.run),
        ) as client:
            await self._ask_all(client, self._requests(client))
        if self._ended.is_set():
            raise KeyboardInterrupt
        if not self._failed:
            return
        error, count = self._failed[0], len(self.prompts)
        if count > 1:
            sentence = f"{len(self._failed)} of {count} prompts failed. The first: {error.message}"
            raise type(error)(sentence, hint=error.hint)
        raise error

    def _requests(self, client: AsyncClient) -> list[Request]:
        """Return a request for each prompt."""
        stream = self.stream
        if stream is None:
            # The texts of several beams, and logits, come as a whole.
            is_one_text = self.options.get("beam_width", 1) == 1 and not self._has_logits
            is_alone = len(self.prompts) == 1 and not self.as_json
            stream = is_alone and is_one_text and client.can_stream
        number = self.options.get("lora_task_id")
        # The same folder is the same adapter.
        known = {it: read_adapter(Path(it), number) for it in set(self.lora_dirs) if it}
        adapters = [known.get(folder) for folder in self.lora_dirs or ("",)]
        if len(adapters) == 1:
            adapters *= len(self.prompts)
        common: dict[str, Any] = {"inputs": self.inputs, "stream": stream, "timeout_s": self.timeout_seconds}
        pairs = zip(self.prompts, adapters, strict=True)
        requests = [Request(prompt, self.options, adapter=adapter, **common) for prompt, adapter in pairs]
        if not self.chat:
            return requests
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [
            chat_request([*system, {"role": "user", "content": str(each.prompt)}], each) for each in requests
        ]

    async def _ask_all(self, client: AsyncClient, requests: Sequence[Request]) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)
        is_live = len(requests) == 1 and not self.as_json and requests[0].stream

        async def ask(request: Request) -> Answer | None:
            """Return the answer; ``None`` after Ctrl-C."""
            async with slots:
                if self._ended.is_set():
                    return None
                return await client.ask(request, self._show_part if is_live else None, self._ended)

        asking = [asyncio.ensure_future(ask(request)) for request in requests]
        try:
            for number, (request, each) in enumerate(zip(requests, asking, strict=True), 1):
                answer, why = None, None
                try:
                    answer = await each
                except InvalidRequest:
                    raise  # the others would fail for the same reason
                except RequestFailed as error:
                    self._failed.append(error)
                    why = error.message
                if answer is not None or why is not None:
                    self._end_line()
                    record = PromptRecord(
                        request.prompt, dict(request.options), client.model.name, self._host, (), why
                    )
                    self._report(record, number, answer, is_shown=is_live)
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

    def _report(self, record: PromptRecord, number: int, answer: Answer | None, *, is_shown: bool) -> None:
        """Print, and keep, the answer to a prompt, or why there is none."""
        if answer is not None:
            shapes = {name: list(array.shape) for name, array in answer.logits.items()}
            record = replace(record, answers=(replace(answer, logits=shapes),))
        if self.save and self.run is not None and answer is not None:
            self.run.results.mkdir(exist_ok=True)
            write_json(self.run.answer, asdict(record))
        if self.save_logits is not None and answer is not None and answer.logits:
            with write_aside(self.save_logits) as aside, aside.open("wb") as file:
                np.savez(file, **answer.logits)
        if self.as_json:
            print_json(record, indent=None)
        elif answer is not None:
            self._show(answer, is_shown=is_shown)
        elif len(self.prompts) > 1:
            click.echo(f"prompt {number}: {for_output(record.error or '')}", err=True)

    def _show(self, answer: Answer, *, is_shown: bool) -> None:
        if not is_shown:
            ids = [" ".join(map(str, each)) for each in answer.token_ids]
            for text in answer.texts or ids or (answer.text,):
                click.echo(f"{answer.protocol} ({answer.latency_s * 1000:.0f} ms): {for_output(text)}")
        if is_shown or answer.is_stopped:
            notes = []
            if answer.output_tokens is not None:
                about = "" if answer.counted_by == "server" else "about "
                notes.append(f"{about}{answer.output_tokens} token{'s' if answer.output_tokens != 1 else ''}")
            if answer.first_text_s is not None:
                notes.append(f"first text after {answer.first_text_s * 1000:.0f} ms")
                notes.append(f"all after {answer.latency_s * 1000:.0f} ms")
            if answer.is_stopped:
                notes.append("stopped early")
            click.echo(", ".join(notes), err=True)
        if answer.log_probs is not None:
            click.echo("log-probs: " + " ".join(f"{value:.3f}" for value in answer.log_probs))
        for name, array in answer.logits.items():
            click.echo(f"{name}: {' x '.join(map(str, array.shape))}")
