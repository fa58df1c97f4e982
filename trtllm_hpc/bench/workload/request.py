"""The requests of a workload, what they are made from, and the errors of making them."""

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
"""The server: ``usage`` of OpenAI's protocol, or the ids of a core model's answer."""
BY_WORKLOAD = "workload"
"""The workload, which sent token ids."""
BY_TOKENIZER = "tokenizer"
"""The run's tokenizer, on the text. The model may have generated other tokens."""


@dataclass(frozen=True)
class WorkloadRequest:
    """One request: a text for text models, or token ids for the core model."""

    max_tokens: int
    """Most output tokens."""
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    """Exactly one of ``prompt`` and ``token_ids`` is given."""
    input_tokens: int | None = None
    """Length of the prompt; ``None`` where it has not been counted."""
    input_by: str | None = None
    """Who counted it: one of the ``BY_`` names."""
    due_s: float | None = None
    """Trace: seconds after the trace's first request."""
    source: str | None = None
    """Where it comes from, to be shown: ``line 17``, ``prefix 2``."""
    session: str | None = None
    """The conversation that it is a turn of, in which ``prompt`` is what the user says; ``None``: it stands
    alone."""
    turn: int | None = None
    """From 1."""
    think_s: float | None = None
    """From the end of the answer to the turn before; ``None`` for a first turn."""
    messages: Sequence[Mapping[str, Any]] | None = field(default=None, hash=False)
    """What a chat is sent in the place of ``prompt``, which is then their text."""
    said: Sequence[Mapping[str, str]] | None = None
    """Messages before it; until it is sent only the system prompt, with the first turn."""


class TextEncoder(Protocol):
    """Encodes texts exactly as the server does before it generates, with the special tokens that it adds."""

    @property
    def name(self) -> str:
        """Where it comes from, to be shown."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""


@dataclass(frozen=True)
class Vocabulary:
    """Ordinary tokens: ids of the model that do not begin, end or pad a text."""

    ids: Sequence[int]
    """In ascending order."""
    size: int
    """All ids of the model are below this."""


@dataclass(frozen=True)
class BuiltWorkload:
    """The requests in the order in which they are sent."""

    requests: list[WorkloadRequest]
    notes: list[str] = field(default_factory=list)
    """Sentences for readers of the results, such as how many prompts were left out."""
    distinct: int | None = None
    """Number of different prompts in the source; ``None`` where prompts are generated, without limit."""


@dataclass(frozen=True)
class WorkloadSpec:
    """The settings and what else a workload is built from; see :func:`.build.make_workload`."""

    settings: Benchmark
    count: int
    takes_token_ids: bool
    """Whether the model takes ids (``tensorrt_llm``) instead of texts."""
    tokenizer: TextEncoder | None = None
    """The server's, or an equal one; ``None`` if there is none."""
    vocabulary: Vocabulary | None = None
    """The ids to draw from; ``None`` if they are not known."""
    max_input_len: int | None = None
    """The engine's limit; longer prompts must not be sent."""
    ids_allowed: bool = False
    """Whether the model takes a file's ids, too, though it takes texts (OpenAI's completions)."""
    takes_messages: bool = False
    """Whether the messages of a file are sent as they are (OpenAI's chats)."""

    @property
    def limit(self) -> int | None:
        """Most tokens of a prompt; ``None`` if there is no limit."""
        known = [self.settings.workload.max_input_tokens, self.max_input_len]
        return min((limit for limit in known if limit is not None), default=None)

    @property
    def file(self) -> Path:
        """The workload's file. Raises ConfigError if the settings name none."""
        workload = self.settings.workload
        if workload.path is None:
            message = f"a workload of kind {workload.kind} is read from a file, but no file is given"
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
    """Return the error for settings that no workload can be built from."""
    place = "the benchmark's settings"
    return ConfigError([Diagnostic(code, message, place, f"workload.{key}", value=value, hint=hint)])


def file_error(path: Path, line: int | None, message: str, *, hint: str | None = None) -> ConfigError:
    """Return the error for a workload's file, at a line of it."""
    return ConfigError([Diagnostic("bad-workload-file", message, str(path), "", line, hint=hint)])


def write_workload(path: Path, requests: Iterable[WorkloadRequest]) -> None:
    """Write one JSON line for each request; the same requests give the same bytes.

    The file can be run again with ``workload: {kind: dataset, path: ...}``, in
    an order by that benchmark's seed; one with times also with ``kind: trace``, in its own order.
    """
    lines = []
    for request in requests:
        known = {key: value for key, value in asdict(request).items() if value is not None}
        lines.append(f"{json.dumps(known)}\n")
    write_text(path, "".join(lines))
