"""What a kind of workload needs to know, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.tokenizer import Tokenizer
from trtllm_hpc.bench.workload.vocabulary import Vocabulary
from trtllm_hpc.config.benchmark import Benchmark, Workload
from trtllm_hpc.errors import ConfigError, Diagnostic

_HERE = "the benchmark's settings"


@dataclass(frozen=True)
class Built:
    """The requests in the order in which they are asked."""

    requests: list[Request]
    notes: list[str] = field(default_factory=list)
    """What whoever reads the figures must know, in sentences: e.g. how many prompts were left out."""
    given: int | None = None
    """How many questions somebody gave; ``None`` where they are made, without end."""


@dataclass(frozen=True)
class Wanted:
    """The settings, and the means to make requests of them; see :func:`.build.make_workload`."""

    settings: Benchmark
    count: int
    token_ids: bool
    tokenizer: Tokenizer | None = None
    vocabulary: Vocabulary | None = None
    longest_input: int | None = None

    @property
    def workload(self) -> Workload:
        """The settings of the workload."""
        return self.settings.workload

    @property
    def limit(self) -> int | None:
        """The most tokens of a prompt; ``None`` if nothing limits them."""
        known = [self.workload.max_input_tokens, self.longest_input]
        return min((limit for limit in known if limit is not None), default=None)

    @property
    def file(self) -> Path:
        """The workload's file.

        Raises:
            ConfigError: none is named.
        """
        if self.workload.path is None:
            message = f"a workload of kind {self.workload.kind} is read from a file, and none is named"
            hint = "--file FILE, or companion.benchmark.workload.path in the job file"
            raise refused("path", message, code="no-file", hint=hint)
        return Path(self.workload.path)


def refused(
    key: str, message: str, *, code: str = "bad-workload", hint: str | None = None, value: Any = None
) -> ConfigError:
    """The error for settings of which no workload can be made."""
    return ConfigError([Diagnostic(code, message, _HERE, f"workload.{key}", value=value, hint=hint)])


def misread(path: Path, line: int | None, message: str, *, hint: str | None = None) -> ConfigError:
    """The error for a workload's file: what is expected at a line of it."""
    return ConfigError([Diagnostic("bad-workload-file", message, str(path), "", line, hint=hint)])


def some(number: int, what: str) -> str:
    """``1 prompt``, ``12 prompts``; with the verb's number: ``some(n, "prompt")`` then *is* or *are*."""
    return f"{number:,} {what}{'' if number == 1 else 's'} {'is' if number == 1 else 'are'}"
