"""How two runs differ: in settings, in what they ran on, and in the figures of their companions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.bench.analysis.compare import Comparison, Side, compare
from trtllm_hpc.bench.analysis.diff import leaves
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.config.files import read_cluster, read_spec
from trtllm_hpc.errors import InvalidMeasurement, RunNotFound
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.runtime.lock import Lock, changes


@dataclass(frozen=True)
class Difference:
    """A value that differs."""

    key: str
    """The key, or the part of the environment and what in it differs."""
    a: Any
    """The value of the first run; `null` if it has none."""
    b: Any
    """The value of the second run."""


@dataclass(frozen=True)
class RunsDiff:
    """How two runs differ."""

    a: str
    """The first run."""
    b: str
    """The second run."""
    settings: list[Difference]
    """Keys of the job file, and of the profile with `cluster.` before them."""
    environment: list[Difference]
    """Versions, image, checkpoint and nodes, as far as both runs know them."""
    figures: Comparison | None
    """The companions' measurements side by side; `null` if one of them has none, or other levels of load."""


def diff_runs(a: RunPaths, b: RunPaths) -> RunsDiff:
    """Compare two runs. Raises ConfigError if a run without a lock was written by another version."""
    one, other = _lock_of(a), _lock_of(b)
    settings = [{"": dict(leaves({**it.job, "cluster": it.cluster}, ""))} for it in (one, other)]
    figures = None
    with suppress(RunNotFound, InvalidMeasurement):
        sides = [read_measurement(run.measurement(COMPANION_MEASUREMENT).summary) for run in (a, b)]
        figures = compare(Side(a.run_id, sides[0]), Side(b.run_id, sides[1]))
    return RunsDiff(
        a.run_id,
        b.run_id,
        [Difference(key.removeprefix(": "), *values) for key, *values in changes(*settings)],
        [Difference(*change) for change in changes(one.made_of, other.made_of)],
        figures,
    )


def _lock_of(run: RunPaths) -> Lock:
    """Return the lock of a run; of a run of an earlier version, what is known of it."""
    lock = Lock.read(run.lock)
    return lock or Lock("", read_spec(run.spec).model_dump(), read_cluster(run.cluster).model_dump())
