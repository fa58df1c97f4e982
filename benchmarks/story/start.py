"""From ``submit`` to a ready server, by phases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from benchmarks.story.commands import run
from benchmarks.story.figures import Record

TOTAL = "total"
LOAD = "load"
"""The phase in which every rank imports libraries, reads weights and compiles."""

_LIBRARIES = re.compile(r"rank 0: Python and the libraries took ([\d.]+) s")
_WEIGHTS = re.compile(r"rank 0: weights loaded in ([\d.]+) s")
_LOADING = r"rank 0: .*[0-9] s\b"
"""Lines of the leader's log that say how long a part of loading took."""


def start_record(folder: Path, endpoint: Mapping[str, object], submitted_at: float) -> Record:
    """The record of one start.

    Args:
        folder: the run folder.
        endpoint: as ``submit --wait --json`` prints it.
        submitted_at: when ``submit`` was called, in seconds since the epoch.
    """
    log = run("logs", folder, "--stage", "serve", "--rank", 0, "--grep", _LOADING, accept=(0, 1))
    loading = [line.partition("rank 0: ")[2] for line in log.splitlines() if "rank 0: " in line]
    return {
        "built": bool(list(_events(folder, "build"))),
        "phases_s": _phases(folder, endpoint, submitted_at),
        "loading": loading,
        "libraries_s": _seconds(_LIBRARIES, log),
        "weights_s": _seconds(_WEIGHTS, log),
    }


def _phases(folder: Path, endpoint: Mapping[str, object], submitted_at: float) -> dict[str, float]:
    """Seconds of each phase in their order, and of all."""
    marks = {"submit": submitted_at}
    for stage in ("build", "serve"):
        for event in _events(folder, stage):
            marks[f"{stage} {event['name']}"] = event["time"]
    ready_at = float(str(endpoint["ready_at"]))
    order = {
        "submit": "submit and queue",
        "build stage_begin": "build",
        "build stage_end": "queue",
        "serve stage_begin": "preflight",
        "serve preflight_ok": "launch",
        "serve server_start": LOAD,
    }
    times = [(name, marks[mark]) for mark, name in order.items() if mark in marks]
    phases = {
        name: round(end - begin, 3) for (name, begin), (_, end) in pairwise([*times, ("ready", ready_at)])
    }
    return {**phases, TOTAL: round(ready_at - submitted_at, 3)}


def _events(folder: Path, stage: str) -> Iterator[Record]:
    """Events that a stage has written into the run folder."""
    for file in sorted((folder / "events").glob(f"{stage}*")):
        for line in file.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def _seconds(pattern: re.Pattern[str], log: str) -> float | None:
    found = pattern.search(log)
    return float(found[1]) if found else None
