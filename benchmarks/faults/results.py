"""What was seen of each fault: one JSON file, written again after each."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from trtllm_hpc.paths import read_json, write_text

FORMAT = 1
"""Version of the file."""


@dataclass(frozen=True)
class Result:
    """One fault, injected once."""

    name: str
    title: str
    survives: bool
    """Whether the run is to go on as if nothing had happened."""
    expected: str
    """Regular expression that the sentence, or the cause below it, must match."""
    expected_exits: list[int]
    bound_s: float
    sentence: str
    """What ``status`` said."""
    cause: str
    """The likeliest cause that ``status`` showed; empty without one."""
    seconds: float | None
    """From the injection until ``status`` said it; ``None`` if it never did, or nothing was to be said."""
    exit_code: int | None
    """Of ``submit --wait``; ``None`` if it did not end in time."""
    left: list[str]
    """What was left behind after the end."""
    notes: list[str]
    measured_at: str
    explained: str = ""
    """First two lines of `explain RUN` after the end; empty where nothing failed or it was not asked."""

    @property
    def explains(self) -> bool:
        """Whether `explain RUN` names the right cause."""
        return re.search(self.expected, self.explained, re.IGNORECASE) is not None

    @property
    def named(self) -> bool:
        """Whether the right cause is named."""
        return re.search(self.expected, self.told, re.IGNORECASE) is not None

    @property
    def told(self) -> str:
        """All that a user reads first."""
        return f"{self.sentence}\n{self.cause}"

    @property
    def in_time(self) -> bool:
        """Whether it was named within the bound."""
        return self.survives or (self.seconds is not None and self.seconds <= self.bound_s)

    @property
    def exits_rightly(self) -> bool:
        """Whether ``submit --wait`` ended with an exit code that says what failed."""
        return self.exit_code in self.expected_exits

    @property
    def as_expected(self) -> bool:
        """Whether nothing is wrong."""
        return self.named and self.in_time and self.exits_rightly and not self.left


@dataclass
class Results:
    """All results by the name of the fault."""

    file: Path
    found: dict[str, Result]

    @classmethod
    def read(cls, file: Path) -> Results:
        """Read what an earlier run wrote, if there is such a file."""
        raw = read_json(file) or {"faults": []}
        return cls(file, {one["name"]: Result(**one) for one in raw["faults"]})

    def add(self, result: Result) -> None:
        """Add or replace the result of one fault, and write the file."""
        self.found[result.name] = result
        faults = [asdict(one) for one in self.found.values()]
        text = json.dumps({"format": FORMAT, "faults": faults}, indent=2, ensure_ascii=False)
        write_text(self.file, text + "\n", mode=0o644)
