"""What a fault is: what is done when, and what must then be said."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.faults.kill import Injection
from benchmarks.faults.scene import Scene
from trtllm_hpc.errors import ExitCode

PROCESS_S = 15.0
"""Bound for what has died."""
HANG_S = 60.0
"""Bound for what is silent."""


class Moment(enum.Enum):
    """When a fault is injected."""

    BEFORE = "before the submission"
    SUBMITTED = "once it is submitted"
    BUILDS = "during the build"
    LOADS = "while the ranks load"
    MEASURES = "during the benchmark"


@contextmanager
def nothing(scene: Scene) -> Iterator[None]:
    """Prepare nothing."""
    yield


@dataclass(frozen=True)
class Fault:
    """One fault."""

    name: str
    title: str
    inject: Injection
    expected: str
    """Regular expression, without regard to case."""
    exits: tuple[int, ...]
    """Exit codes of ``submit --wait`` that are right."""
    moment: Moment = Moment.MEASURES
    bound_s: float = PROCESS_S
    ranks: int = 2
    builds: bool = False
    """Whether the run builds its engine; otherwise it is there."""
    prepare: Injection = nothing
    requests: int = 600
    """Of the benchmark, three a second."""
    survives: bool = False
    """Whether the run must end as if nothing had happened."""
    from_slurm: bool = False
    """Whether the seconds count from the moment at which Slurm ended the job."""
    undone_when_named: bool = False
    """Whether the fault ends once it is named; otherwise it lasts to the end of ``submit --wait``."""
    asks: str = "status"
    """What is asked until it names the fault: ``status``, ``client`` or ``explain``."""
    timed: bool = False
    """Whether the seconds are those that the answer itself takes."""
    living: bool = False
    """Whether it is injected into a run with other such faults, and undone once it is named."""


ENDS_WELL = "every stage has completed"
START, LOST, CANCELLED = (int(ExitCode.START),), (int(ExitCode.LOST),), (int(ExitCode.CANCELLED),)
WELL = (0,)
# Not "full": it is in the names of these runs.
FULL = r"0\.\d MiB free|no space left|file system is full"
_DIES = r"rank {0} on .*(died first|killed|no sign of life|recorded no end)|lost .*rank {0}"


def dies(rank: int) -> str:
    """Return the expression for a rank that has died."""
    return _DIES.format(rank)


def survivor(name: str, title: str, inject: Injection, **more: Any) -> Fault:
    """A fault that must not be noticed: for a benchmark of 40 s."""
    return Fault(name, title, inject, ENDS_WELL, WELL, survives=True, **{"ranks": 1, "requests": 120, **more})
