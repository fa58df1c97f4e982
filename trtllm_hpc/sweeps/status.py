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
    """One variant."""

    name: str
    values: Mapping[str, Any]
    """The value of each key that differs between the variants."""
    state: str | None
    """``refused``, or that of its run; ``rendered``: not submitted yet. ``None``: Slurm does not answer."""
    sentence: str | None
    """Why it was refused, or has not completed."""
    folder: str
    """Its run folder."""
    gpu_hours: float | None = None
    """Of all its jobs, as far as it is known."""
    exit_code: int | None = None
    """What failed, as ``submit --wait`` returns it."""
    live: bool = False
    """Whether a job of it is in the queue or runs."""


@dataclass(frozen=True)
class SweepStatus:
    """A sweep."""

    sweep_id: str
    folder: str
    name: str
    """The job's."""
    keys: Sequence[str]
    """The keys that differ between the variants."""
    variants: Sequence[VariantStatus]

    PRINTED: ClassVar[tuple[str, ...]] = ("settled", "completed")
    """Properties that JSON has too."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of variants in each state, the most frequent first."""
        return dict(Counter(it.state or "unknown" for it in self.variants).most_common())

    @property
    def settled(self) -> bool:
        """Whether no job of the sweep is left, and Slurm has said so."""
        return not any(it.live or it.state is None for it in self.variants)

    @property
    def completed(self) -> bool:
        """Whether every variant that was not refused has completed."""
        return all(it.state in (REFUSED, RunState.COMPLETED.value) for it in self.variants)

    @property
    def exit_code(self) -> ExitCode:
        """0 if every variant has completed; else what failed first, in the order of the variants."""
        codes = [ExitCode(it.exit_code) for it in self.variants if it.exit_code]
        left = ExitCode.OK if self.completed else ExitCode.SUBMISSION
        return codes[0] if codes else left


def sweep_status(
    paths: SweepPaths, record: SweepRecord, *, warn: Callable[[str], object] = lambda sentence: None
) -> SweepStatus:
    """Return the state of every variant; Slurm is queried once. ``warn`` as for ``listed_runs``."""
    rows = {row.run_id: row for row in listed_runs(paths.folder, reasons=True, warn=warn)}
    variants = []
    for it in record.variants:
        row, folder, lost = rows.get(it.name), str(paths.run(it.name).folder), RunState.LOST.value
        if it.refused:
            found = VariantStatus(it.name, it.values, REFUSED, "; ".join(it.refused), folder)
        elif row is None:
            why = "its run folder is gone"
            found = VariantStatus(it.name, it.values, lost, why, folder, exit_code=ExitCode.LOST)
        else:
            state, known = row.state and row.state.value, (row.gpu_hours, row.exit_code, row.live)
            found = VariantStatus(it.name, it.values, state, row.sentence, folder, *known)
        variants.append(found)
    return SweepStatus(paths.sweep_id, str(paths.folder), record.name, record.keys, variants)
