"""The folder of a sweep: ``sweep.json`` and a run folder for each variant."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import SWEEPS, RunPaths, read_json, write_json
from trtllm_hpc.runs.find import REMOVED
from trtllm_hpc.runtime.records import known_fields


@dataclass(frozen=True)
class Variant:
    """A variant: one combination of values."""

    name: str
    """Name of the variant and its run folder, made of the differences, e.g. ``tp4-bs64``."""
    values: Mapping[str, Any]
    """Values of the keys that differ between variants, in the order of the sweep's keys."""
    refused: Sequence[str] = ()
    """Errors of a refused variant, which is never submitted."""


@dataclass(frozen=True)
class SweepRecord:
    """Contents of ``sweep.json``, written before the first submission and never changed."""

    name: str
    """Name of the job."""
    cluster: str
    """Name or file of the profile."""
    keys: Sequence[str]
    """Keys that differ between variants."""
    variants: Sequence[Variant]
    allocation: Literal["each", "one"] = "each"
    """``one``: a single Slurm job serves and measures the variants in turn."""
    max_running: int | None = None
    """Most variants that run at once; ``None``: all."""
    time_limit_minutes: int | None = None
    """Time limit of a single job; ``None``: the sum of the variants' limits."""
    created_at: float = field(default_factory=time.time)
    """Unix time of creation."""


class SweepPaths:
    """Paths in the folder of a sweep, which is made absolute and need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def sweep_id(self) -> str:
        """ID of the sweep: the name of its folder."""
        return self.folder.name

    @property
    def record(self) -> Path:
        """The record of the sweep."""
        return self.folder / "sweep.json"

    @property
    def lock(self) -> Path:
        """The file that a process locks while it submits or cancels variants."""
        return self.folder / ".lock"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.folder / "report.html"

    def run(self, variant: str) -> RunPaths:
        """Return the run folder of a variant."""
        return RunPaths(self.folder / variant)


def write_record(paths: SweepPaths, record: SweepRecord) -> None:
    """Write the record atomically."""
    write_json(paths.record, asdict(record))


def read_record(paths: SweepPaths) -> SweepRecord:
    """Read the record. Raises RunNotFound if it is missing or damaged."""
    try:
        raw: Any = read_json(paths.record)
        variants = [Variant(**known_fields(Variant, variant)) for variant in raw.pop("variants")]
        return SweepRecord(**known_fields(SweepRecord, raw), variants=variants)
    except (ValueError, OSError, AttributeError, TypeError, KeyError):
        end_jobs = f"trtllm-hpc sweep cancel {shlex.quote(str(paths.folder))} ends its jobs"
        raise RunNotFound(
            f"{paths.folder} is not the folder of a sweep, or its sweep.json is damaged.",
            hint=end_jobs if run_folders(paths) else "trtllm-hpc sweep list",
        ) from None


def run_folders(paths: SweepPaths) -> list[str]:
    """Return the names of the variants that have a run folder."""
    return sorted(file.parent.name for file in paths.folder.glob("*/plan.json"))


def find_sweep(name: str, runs_folder: Path) -> SweepPaths:
    """Return a sweep by folder, ID or its beginning, job name, or ``latest``.

    Raises RunNotFound if there is no such sweep, or if the beginning of an ID matches several.
    """
    runs_folder = runs_folder.absolute()
    sweeps = list(list_sweeps(runs_folder))
    if name == "latest" and sweeps:
        return sweeps[0]
    named = SweepPaths(Path(name))
    is_damaged = named.folder.parent.name == SWEEPS and bool(run_folders(named))
    if name != "latest" and (named.record.is_file() or is_damaged):
        return named
    for sweep in sweeps:
        with suppress(RunNotFound):
            if name == sweep.sweep_id or name == read_record(sweep).name:
                return sweep
    matching = [sweep for sweep in sweeps if name and sweep.sweep_id.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    newest = ", ".join(sweep.sweep_id for sweep in (matching or sweeps)[:5])
    folder = runs_folder / SWEEPS
    where = f"The newest in {folder}: {newest}." if newest else f"{folder} contains no sweeps."
    hint = "trtllm-hpc sweep list, or name the folder of runs with --runs"
    raise RunNotFound(f"No sweep is called {name!r}. {where}", hint=hint)


def list_sweeps(runs_folder: Path) -> Iterator[SweepPaths]:
    """Yield the sweeps of a folder of runs, the newest first."""
    try:
        folders = list((runs_folder / SWEEPS).iterdir())
    except OSError:
        return
    sweeps = [SweepPaths(folder) for folder in folders if not folder.name.startswith(REMOVED)]
    times = {sweep: sweep.record.stat().st_mtime for sweep in sweeps if sweep.record.is_file()}
    yield from sorted(times, key=lambda sweep: (times[sweep], sweep.sweep_id), reverse=True)
