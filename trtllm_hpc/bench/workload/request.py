"""The requests of a workload, the input of building them, and its errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.paths import write_text

# Who counted tokens, as written in the records (input_by, output_by).
BY_SERVER = "server"
"""The server: ``usage`` of OpenAI's protocol, or the token IDs of a core model's answer."""
BY_WORKLOAD = "workload"
"""The workload, which sends token IDs."""
BY_TOKENIZER = "tokenizer"
"""The run's tokenizer, on the text. The model may have generated other tokens."""


@dataclass(frozen=True)
class WorkloadRequest:
    """One request: a text for text models, or token IDs for the core model."""

    max_tokens: int
    """Most output tokens."""
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    """Token IDs instead of ``prompt``; exactly one of both is set."""
    input_tokens: int | None = None
    """Length of the prompt in tokens; ``None`` if unknown."""
    input_by: str | None = None
    """Who counted ``input_tokens``: one of the ``BY_`` names."""
    due_s: float | None = None
    """Due time in a trace, in seconds after its first request."""
    source: str | None = None
    """Origin for people, e.g. ``line 17`` or ``prefix 2``."""
    session: str | None = None
    """Name of the conversation, in which ``prompt`` is the user's part of a turn; ``None`` for a single
    request."""
    turn: int | None = None
    """Number of the turn, from 1."""
    think_s: float | None = None
    """Think time in seconds, from the end of the previous answer; ``None`` for a first turn."""
    messages: Sequence[Mapping[str, Any]] | None = field(default=None, hash=False)
    """Messages that a chat gets instead of ``prompt``, which then has their text."""
    said: Sequence[Mapping[str, str]] | None = None
    """Earlier messages; before sending, only the first turn has any, the system prompt."""


class TextEncoder(Protocol):
    """Encodes texts exactly as the server does, including the special tokens that it adds."""

    @property
    def name(self) -> str:
        """Origin for people."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token IDs of each text."""


@dataclass(frozen=True)
class Vocabulary:
    """Ordinary tokens of the model, which do not begin, end or pad a text."""

    ids: Sequence[int]
    """Token IDs in ascending order."""
    size: int
    """Number of the model's token IDs, special ones included."""


@dataclass(frozen=True)
class BuiltWorkload:
    """The requests in the order in which they are sent."""

    requests: list[WorkloadRequest]
    notes: list[str] = field(default_factory=list)
    """Sentences for readers of the results, e.g. the number of prompts left out."""
    distinct: int | None = None
    """Number of different prompts in the source; ``None`` for generated prompts, without limit."""


@dataclass(frozen=True)
class WorkloadSpec:
    """All input from which a workload is built; see :func:`.build.make_workload`."""

    settings: Benchmark
    count: int
    takes_token_ids: bool
    """Whether the model accepts token IDs (``tensorrt_llm``) instead of text."""
    tokenizer: TextEncoder | None = None
    """The server's tokenizer or an equal one; ``None`` if unknown."""
    vocabulary: Vocabulary | None = None
    """Token IDs to draw from; ``None`` if unknown."""
    max_input_len: int | None = None
    """The engine's limit of prompts, in tokens."""
    ids_allowed: bool = False
    """Whether a text model also accepts a file's token IDs (OpenAI's completions)."""
    takes_messages: bool = False
    """Whether a file's messages are sent unchanged (OpenAI's chats)."""

    @property
    def limit(self) -> int | None:
        """Most tokens of a prompt; ``None`` without a limit."""
        known = [self.settings.workload.max_input_tokens, self.max_input_len]
        return min((limit for limit in known if limit is not None), default=None)

    @property
    def file(self) -> Path:
        """The workload's file. Raises ConfigError if the settings name none."""
        workload = self.settings.workload
        if workload.path is None:
            message = f"a workload of kind {workload.kind} needs a file"
            hint = "--file FILE, or companion.benchmark.workload.path in the job file"
            raise settings_error("path", message, code="no-file", hint=hint)
        return Path(workload.path)

    def all_too_long(self) -> ConfigError:
        """Return the error for a workload whose prompts are all longer than the limit."""
        message = f"every prompt is longer than {self.limit} tokens"
        hint = "use another file, or a higher limit"
        return settings_error("max_input_tokens", message, code="too-long", hint=hint)


def settings_error(
    key: str, message: str, *, code: str = "bad-workload", hint: str | None = None, value: Any = None
) -> ConfigError:
    """Return the error for settings from which no workload can be built."""
    place = "the benchmark's settings"
    return ConfigError([Diagnostic(code, message, place, f"workload.{key}", value=value, hint=hint)])


def file_error(path: Path, line: int | None, message: str, *, hint: str | None = None) -> ConfigError:
    """Return the error at a line of a workload's file."""
    return ConfigError([Diagnostic("bad-workload-file", message, str(path), "", line, hint=hint)])


def write_workload(path: Path, requests: Iterable[WorkloadRequest]) -> None:
    """Write one JSON line for each request; the same requests give the same bytes.

    ``workload: {kind: dataset, path: ...}`` sends the file again in the order of that benchmark's seed; with
    ``kind: trace``, a file with times is sent in its own order.
    """
    lines = []
    for request in requests:
        known = {key: value for key, value in asdict(request).items() if value is not None}
        lines.append(f"{json.dumps(known)}\n")
    write_text(path, "".join(lines))
