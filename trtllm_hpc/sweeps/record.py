"""The folder of a sweep: ``sweep.json``, the job file as it was, and a run folder for each variant."""

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
    """One combination of values."""

    name: str
    """What differs, for example ``tp4-bs64``; the name of its run folder."""
    values: Mapping[str, Any]
    """The value of each key that differs between the variants, in the sweep's order of keys."""
    refused: Sequence[str] = ()
    """What is wrong with it, a sentence each: it was never submitted."""


@dataclass(frozen=True)
class SweepRecord:
    """What ``sweep.json`` holds; written before the first variant is submitted, and never changed."""

    name: str
    """The job's."""
    cluster: str
    """Name or file of the profile."""
    keys: Sequence[str]
    """The keys that differ between the variants."""
    variants: Sequence[Variant]
    allocation: Literal["each", "one"] = "each"
    """``one``: a single Slurm job serves and measures variant after variant."""
    max_running: int | None = None
    """Variants whose jobs may run at once; ``None``: all."""
    time_limit_minutes: int | None = None
    """With a single job, its time limit; ``None``: the sum of the variants' limits."""
    created_at: float = field(default_factory=time.time)
    """Seconds since the epoch."""


class SweepPaths:
    """Names of everything in the folder of a sweep, which is made absolute and need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def sweep_id(self) -> str:
        """The folder's own name."""
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
        """The report, one HTML file."""
        return self.folder / "report.html"

    def run(self, variant: str) -> RunPaths:
        """Return the run folder of a variant."""
        return RunPaths(self.folder / variant)


def write_record(paths: SweepPaths, record: SweepRecord) -> None:
    """Write the record; readers see nothing or the whole."""
    write_json(paths.record, asdict(record))


def read_record(paths: SweepPaths) -> SweepRecord:
    """Read the record. Raises RunNotFound if there is none, or it is damaged."""
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
    """Return the sweep that ``name`` stands for: its folder, its id, the job's name, or ``latest``.

    Raises RunNotFound if there is none, or the beginning of an id fits several.
    """
    runs_folder = runs_folder.absolute()
    sweeps = list(list_sweeps(runs_folder))
    if name == "latest" and sweeps:
        return sweeps[0]
    named = SweepPaths(Path(name))
    is_damaged = named.folder.parent.name == SWEEPS and bool(run_folders(named))
    if name != "latest" and (named.record.is_file() or is_damaged):
        return named
    for found in sweeps:
        with suppress(RunNotFound):
            if name == found.sweep_id or name == read_record(found).name:
                return found
    matching = [it for it in sweeps if name and it.sweep_id.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    newest = ", ".join(it.sweep_id for it in (matching or sweeps)[:5])
    folder = runs_folder / SWEEPS
    where = f"The newest in {folder}: {newest}." if newest else f"{folder} has none."
    hint = "trtllm-hpc sweep list, or name the folder of runs with --runs"
    raise RunNotFound(f"No sweep is called {name!r}. {where}", hint=hint)


def list_sweeps(runs_folder: Path) -> Iterator[SweepPaths]:
    """Yield the sweeps of a folder of runs, the newest first."""
    try:
        folders = list((runs_folder / SWEEPS).iterdir())
    except OSError:
        return
    found = [SweepPaths(folder) for folder in folders if not folder.name.startswith(REMOVED)]
    times = {it: it.record.stat().st_mtime for it in found if it.record.is_file()}
    yield from sorted(times, key=lambda it: (times[it], it.sweep_id), reverse=True)
