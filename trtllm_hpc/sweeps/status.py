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
"""State of a variant that was never submitted because it breaks a rule."""


@dataclass(frozen=True)
class VariantStatus:
    """The state of a variant."""

    name: str
    values: Mapping[str, Any]
    """The value of each key that differs between the variants."""
    state: str | None
    """``refused``, or the state of the variant's run; ``rendered``: the variant is not submitted yet.
    ``None``: Slurm does not answer."""
    sentence: str | None
    """Reason why the variant was refused or has not completed."""
    folder: str
    """Run folder of the variant."""
    gpu_hours: float | None = None
    """GPU-hours of all jobs of the variant, as far as they are known."""
    exit_code: int | None = None
    """Exit code of ``submit --wait`` for the variant's failure; ``None`` without a failure."""
    live: bool = False
    """Whether a job of the variant is in the queue or running."""


@dataclass(frozen=True)
class SweepStatus:
    """The state of a sweep."""

    sweep_id: str
    folder: str
    name: str
    """Name of the job."""
    keys: Sequence[str]
    """The keys that differ between the variants."""
    variants: Sequence[VariantStatus]

    PRINTED: ClassVar[tuple[str, ...]] = ("settled", "completed")
    """Properties that JSON output contains in addition to the fields."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of variants in each state, the most frequent first."""
        return dict(Counter(variant.state or "unknown" for variant in self.variants).most_common())

    @property
    def settled(self) -> bool:
        """Whether Slurm has confirmed that no job of the sweep is left."""
        return not any(variant.live or variant.state is None for variant in self.variants)

    @property
    def completed(self) -> bool:
        """Whether every variant that was not refused has completed."""
        return all(variant.state in (REFUSED, RunState.COMPLETED.value) for variant in self.variants)

    @property
    def exit_code(self) -> ExitCode:
        """0 if every variant has completed; else the exit code of the first variant that failed."""
        codes = [ExitCode(variant.exit_code) for variant in self.variants if variant.exit_code]
        without_failure = ExitCode.OK if self.completed else ExitCode.SUBMISSION
        return codes[0] if codes else without_failure


def sweep_status(
    paths: SweepPaths, record: SweepRecord, *, warn: Callable[[str], object] = lambda sentence: None
) -> SweepStatus:
    """Return the state of every variant, with one query to Slurm. ``warn`` is as for ``listed_runs``."""
    rows = {row.run_id: row for row in listed_runs(paths.folder, reasons=True, warn=warn)}
    statuses = []
    for variant in record.variants:
        name, values, row = variant.name, variant.values, rows.get(variant.name)
        folder, lost = str(paths.run(name).folder), RunState.LOST.value
        if variant.refused:
            status = VariantStatus(name, values, REFUSED, "; ".join(variant.refused), folder)
        elif row is None:
            why = "the run folder was removed"
            status = VariantStatus(name, values, lost, why, folder, exit_code=ExitCode.LOST)
        else:
            state, known = row.state and row.state.value, (row.gpu_hours, row.exit_code, row.live)
            status = VariantStatus(name, values, state, row.sentence, folder, *known)
        statuses.append(status)
    return SweepStatus(paths.sweep_id, str(paths.folder), record.name, record.keys, statuses)
