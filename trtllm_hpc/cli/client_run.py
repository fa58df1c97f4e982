"""``trtllm-hpc client``: send the requests and print the answers."""

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

from trtllm_hpc.cli.shared import print_json, print_note
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
"""Most requests in flight."""


@dataclass(frozen=True)
class PromptRecord:
    """A prompt and its answer, on a line of their own."""

    prompt: Prompt
    """The prompt's text, or its token IDs."""
    options: dict[str, Any]
    """Options of the request, by name."""
    model: str
    """Name of the served model."""
    host: str
    """Node of the run's server, or the URL."""
    answers: tuple[Answer, ...]
    """The answer; empty if the request failed."""
    error: str | None
    """Why the request failed; ``None`` with an answer."""


@dataclass(eq=False)
class Asking:
    """One call of the command, with its options. ``run`` is ``None`` with ``--url``."""

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
        """Raise UsageError for options that exclude or need each other."""
        self._ended = asyncio.Event()
        self._failed: list[RequestFailed] = []
        self._is_line_open = False
        """Whether the last printed text has no line end."""
        self._has_logits = any(name in self.options for name in LOGITS_OUTPUTS)
        count, no_run = len(self.prompts), self.run is None
        can_chat = self.protocol in (None, "openai") and all(
            isinstance(prompt, str) for prompt in self.prompts
        )
        several_adapters = len(set(self.lora_dirs)) > 1
        for is_wrong, message in (
            (self.protocol is not None and no_run, "--protocol is for a run: the scheme of --url decides."),
            (self.system is not None and not self.chat, "--system needs --chat."),
            (
                self.chat and not can_chat,
                "--chat needs texts and OpenAI's protocol: leave out --token-ids and --protocol.",
            ),
            (
                self.save and (count != 1 or no_run),
                "--save writes one answer of a run: send one prompt, without --url.",
            ),
            (self._has_logits and count != 1, "Logits need a single answer: send one prompt."),
            (
                self.save_logits is not None and not self._has_logits,
                "--save-logits needs --context-logits or --generation-logits.",
            ),
            (
                len(self.lora_dirs) not in (0, 1, count),
                "Give --lora-dir once, or once for each prompt.",
            ),
            (
                several_adapters and "lora_task_id" in self.options,
                "--lora-task-id is for one adapter: several adapters get their own numbers.",
            ),
        ):
            if is_wrong:
                raise click.UsageError(message)

    async def carry_out(self, target: Target) -> None:
        """Send all requests, and print the answers in the order of the prompts.

        Raises RequestFailed if a request failed; KeyboardInterrupt after Ctrl-C, once all requests ended.
        """
        with suppress(NotImplementedError, RuntimeError, ValueError):  # signals need the main thread
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
            # The server sends the texts of several beams, and logits, only as a whole.
            is_one_text = self.options.get("beam_width", 1) == 1 and not self._has_logits
            is_alone = len(self.prompts) == 1 and not self.as_json
            stream = is_alone and is_one_text and client.can_stream
        number = self.options.get("lora_task_id")
        # Prompts with the same folder share an adapter.
        known = {folder: read_adapter(Path(folder), number) for folder in set(self.lora_dirs) if folder}
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
            chat_request([*system, {"role": "user", "content": str(request.prompt)}], request)
            for request in requests
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
            for number, (request, task) in enumerate(zip(requests, asking, strict=True), 1):
                answer, why = None, None
                try:
                    answer = await task
                except InvalidRequest:
                    raise  # all requests would fail for the same reason
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
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _show_part(self, text: str) -> None:
        click.echo(for_output(text), nl=False)
        self._is_line_open = True

    def _end_line(self) -> None:
        """End the line of a streamed answer."""
        if self._is_line_open:
            click.echo()
            self._is_line_open = False

    def _report(self, record: PromptRecord, number: int, answer: Answer | None, *, is_shown: bool) -> None:
        """Print and save an answer, or the reason why a request failed."""
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
            ids = [" ".join(map(str, tokens)) for tokens in answer.token_ids]
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
            print_note(", ".join(notes))
        if answer.log_probs is not None:
            click.echo("log-probs: " + " ".join(f"{value:.3f}" for value in answer.log_probs))
        for name, array in answer.logits.items():
            click.echo(f"{name}: {' x '.join(map(str, array.shape))}")
