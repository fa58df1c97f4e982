"""What a rank's server does before it is ready, by the lines of its log that ``loading.json`` lists."""

from __future__ import annotations

import json
import math
import pkgutil
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

TABLE = json.loads(pkgutil.get_data(__name__, "loading.json") or b"")
"""The phases in words; each line with the phase that it begins, and where upstream writes it. No phase: the
line ends the phase before. ``+`` begins a phase within another one, and ``-`` ends it."""
_PATTERN = re.compile(
    "|".join(f"(?P<line{number}>{entry['line']})" for number, entry in enumerate(TABLE["lines"]))
)
_LOOK_S, _MOST_BYTES, _LONGEST_LINE = 1.0, 1 << 20, 1 << 16


class Loading:
    """Follows a rank's log from its present end until the server is ready."""

    def __init__(self, log: Path, ready_record: Path) -> None:
        self._log, self._ready_record = log, ready_record
        self._at = log.stat().st_size if log.exists() else 0
        self._rest, self._next, self._since = b"", 0.0, 0.0
        self._phases: list[str] = []
        self._seconds: dict[str, float] = {}

    def look(self) -> dict[str, Any]:
        """Read what is new, once a second at most; return the rank record's fields that change."""
        if time.monotonic() < self._next:
            return {}
        now, before, is_ready = time.time(), [*self._phases, {**self._seconds}], self._ready_record.exists()
        with suppress(OSError), self._log.open("rb") as log:
            log.seek(self._at)
            *lines, self._rest = re.split(rb"[\r\n]+", self._rest[-_LONGEST_LINE:] + log.read(_MOST_BYTES))
            self._at = log.tell()
            for found in filter(None, (_PATTERN.search(line.decode(errors="replace")) for line in lines)):
                self._read(found, now)
        self._begin([] if is_ready else self._phases, now)
        self._next = math.inf if is_ready else time.monotonic() + _LOOK_S
        fields = {"loading": self._phases[-1], "loading_since": self._since} if self._phases else {}
        is_new = before != [*self._phases, self._seconds]
        return {"loading": None, **fields, "load_s": {**self._seconds}} if is_new else {}

    def _read(self, line: re.Match[str], now: float) -> None:
        phase = TABLE["lines"][int(str(line.lastgroup).removeprefix("line"))]["phase"]
        outer = {"+": self._phases, "-": self._phases[:-1]}.get(phase[:1], [])
        self._begin([*outer, *filter(None, [phase.strip("+-")])], now)
        if line["weights"]:  # the line may come late, out of a buffer
            self._seconds["weights"] = max(self._seconds.get("weights", 0.0), float(line["weights"]))

    def _begin(self, phases: list[str], now: float) -> None:
        if phases != self._phases:
            for phase in self._phases[-1:]:
                self._seconds[phase] = round(self._seconds.get(phase, 0.0) + now - self._since, 1)
            self._phases, self._since = phases, now
