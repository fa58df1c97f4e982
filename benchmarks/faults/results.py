"""The results of all faults: a JSON file that is written again after each fault."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from trtllm_hpc.paths import read_json, write_text

FORMAT = 1
"""Version of the file's format."""


@dataclass(frozen=True)
class Result:
    """The result of a fault."""

    name: str
    title: str
    survives: bool
    """Whether the run must continue as if nothing had happened."""
    expected: str
    """Regular expression that the sentence, or the cause below it, must match."""
    expected_exits: list[int]
    bound_s: float
    sentence: str
    """The sentence of ``status``."""
    cause: str
    """The likeliest cause that ``status`` showed; empty without a cause."""
    seconds: float | None
    """Seconds from the injection until ``status`` named the fault; ``None`` if ``status`` never named the
    fault, or if the run survives."""
    exit_code: int | None
    """Exit code of ``submit --wait``; ``None`` if the command did not end in time."""
    left: list[str]
    """Leftovers after the end of the run."""
    notes: list[str]
    """Further sentences for the page."""
    measured_at: str
    """Date of the measurement."""
    explained: str = ""
    """First two lines of `explain RUN` after the end; empty if nothing failed or `explain` was not run."""

    @property
    def explains(self) -> bool:
        """Whether `explain RUN` names the right cause."""
        return re.search(self.expected, self.explained, re.IGNORECASE) is not None

    @property
    def named(self) -> bool:
        """Whether ``status`` names the right cause."""
        return re.search(self.expected, self.answer, re.IGNORECASE) is not None

    @property
    def answer(self) -> str:
        """The sentence and the cause of ``status``, which a user reads first."""
        return f"{self.sentence}\n{self.cause}"

    @property
    def in_time(self) -> bool:
        """Whether ``status`` named the fault within the bound."""
        return self.survives or (self.seconds is not None and self.seconds <= self.bound_s)

    @property
    def exits_rightly(self) -> bool:
        """Whether the exit code of ``submit --wait`` is one of the expected codes."""
        return self.exit_code in self.expected_exits

    @property
    def as_expected(self) -> bool:
        """Whether cause, time and exit code are right, and nothing is left behind."""
        return self.named and self.in_time and self.exits_rightly and not self.left


@dataclass
class Results:
    """All results by name of the fault."""

    file: Path
    found: dict[str, Result]

    @classmethod
    def read(cls, file: Path) -> Results:
        """Read the results of earlier benchmarks; none if the file is missing."""
        raw = read_json(file) or {"faults": []}
        return cls(file, {fields["name"]: Result(**fields) for fields in raw["faults"]})

    def add(self, result: Result) -> None:
        """Add or replace the result of a fault, and write the file."""
        self.found[result.name] = result
        faults = [asdict(each) for each in self.found.values()]
        text = json.dumps({"format": FORMAT, "faults": faults}, indent=2, ensure_ascii=False)
        write_text(self.file, text + "\n", mode=0o644)
