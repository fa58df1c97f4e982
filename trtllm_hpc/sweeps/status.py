"""The state of a sweep and of each of its variants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runs.listing import listed_runs
from trtllm_hpc.runs.status import RunState
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord

REFUSED = "refused"
"""State of a variant that breaks a rule and is never submitted."""


@dataclass(frozen=True)
class VariantStatus:
    """The state of one variant."""

    name: str
    values: Mapping[str, Any]
    """Values of the keys that differ between variants."""
    state: str | None
    """``refused``, or the run's state (``rendered``: not submitted yet); ``None``: Slurm does not answer."""
    sentence: str | None
    """Why the variant is refused, or has not completed."""
    folder: str
    """Run folder."""
    gpu_hours: float | None = None
    """GPU-hours of all jobs, as far as they are known."""
    exit_code: int | None = None
    """Exit code of ``submit --wait`` for the failure."""
    live: bool = False
    """Whether a job is queued or running."""


@dataclass(frozen=True)
class SweepStatus:
    """The state of a sweep."""

    sweep_id: str
    folder: str
    name: str
    """Name of the job."""
    keys: Sequence[str]
    """Keys that differ between variants."""
    variants: Sequence[VariantStatus]

    PRINTED: ClassVar[tuple[str, ...]] = ("settled", "completed")
    """Properties that JSON contains, too."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of variants by state, most frequent state first."""
        return dict(Counter(variant.state or "unknown" for variant in self.variants).most_common())

    @property
    def settled(self) -> bool:
        """Whether Slurm confirms that all jobs of the sweep have ended."""
        return not any(variant.live or variant.state is None for variant in self.variants)

    @property
    def completed(self) -> bool:
        """Whether all variants have completed, except refused ones."""
        return all(variant.state in (REFUSED, RunState.COMPLETED.value) for variant in self.variants)

    @property
    def exit_code(self) -> ExitCode:
        """0 if every variant has completed, else the code of the first failed variant."""
        codes = [ExitCode(variant.exit_code) for variant in self.variants if variant.exit_code]
        without_failure = ExitCode.OK if self.completed else ExitCode.SUBMISSION
        return codes[0] if codes else without_failure


def sweep_status(
    paths: SweepPaths, record: SweepRecord, *, warn: Callable[[str], object] = lambda sentence: None
) -> SweepStatus:
    """Return the state of every variant, with a single query of Slurm; ``warn`` as in ``listed_runs``."""
    rows = {row.run_id: row for row in listed_runs(paths.folder, reasons=True, warn=warn)}
    statuses = []
    for variant in record.variants:
        name, values, lost = variant.name, variant.values, RunState.LOST.value
        row, folder = rows.get(name), str(paths.run(name).folder)
        if variant.refused:
            status = VariantStatus(name, values, REFUSED, "; ".join(variant.refused), folder)
        elif row is None:
            why = "its run folder is gone"
            status = VariantStatus(name, values, lost, why, folder, exit_code=ExitCode.LOST)
        else:
            state, known = row.state and row.state.value, (row.gpu_hours, row.exit_code, row.live)
            status = VariantStatus(name, values, state, row.sentence, folder, *known)
        statuses.append(status)
    return SweepStatus(paths.sweep_id, str(paths.folder), record.name, record.keys, statuses)
