"""Measurements as arguments: ``RUN``, ``RUN:NAME`` or a file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.options import runs_folder
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import COMPANION_MEASUREMENT, MeasurementPaths, RunPaths, call_name
from trtllm_hpc.runs.find import find_run, list_runs

if TYPE_CHECKING:
    from trtllm_hpc.bench.records import RequestRecord
    from trtllm_hpc.bench.results import Measurement

    _FoundParameter = click.ParamType["StoredMeasurement"]
else:
    _FoundParameter = click.ParamType  # generic only in the newest releases of click


@dataclass(frozen=True)
class StoredMeasurement:
    """A measurement in a run folder, or copied out of one."""

    run: RunPaths
    name: str
    copied_to: Path | None = None
    """Its folder, if that is not a run's results folder; ``run`` is then only a stand-in."""

    @property
    def files(self) -> MeasurementPaths:
        """Its files; those of a copy lie beside each other."""
        files = self.run.measurement(self.name)
        if self.copied_to is None:
            return files
        return MeasurementPaths(**{kind: self.copied_to / file.name for kind, file in vars(files).items()})

    @property
    def call_name(self) -> str:
        """How to name it in a command."""
        if self.copied_to is not None:
            return shlex.quote(str(self.files.summary))
        return f"{call_name(self.run)}:{self.name}"

    def summary(self) -> Measurement:
        """Read the summary; raises RunNotFound if it is missing or incomplete."""
        from trtllm_hpc.bench.results import read_measurement

        return read_measurement(self.files.summary)

    def records(self) -> list[RequestRecord]:
        """Read the records; none if the file is missing."""
        from trtllm_hpc.bench.records import read_records

        try:
            return read_records(self.files.requests)
        except FileNotFoundError:
            return []


class MeasurementType(_FoundParameter):
    """``RUN`` means the companion's measurement, else the newest; ``RUN:NAME`` the one of that name."""

    name = "measurement"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> StoredMeasurement:
        """Find the measurement; raises RunNotFound with the existing ones."""
        if isinstance(value, StoredMeasurement):
            return value
        text = str(value)
        path = Path(text)
        if path.suffix == ".json" and path.is_file():
            path = path.absolute()
            paths = RunPaths(path.parent.parent)
            copied_to = None if paths.results == path.parent else path.parent
            return StoredMeasurement(paths, path.stem, copied_to)
        run, colon, name = text.rpartition(":")
        if not colon:
            return newest(find_run(text, runs_folder(ctx)))
        return named(find_run(run, runs_folder(ctx)), name)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Offer the measurements of known runs."""
        from click.shell_completion import CompletionItem

        runs = {"latest": list_runs(runs_folder(ctx))[:1]}
        runs |= {run.run_id: [run] for run in list_runs(runs_folder(ctx))}
        names = [f"{call}:{name}" for call, its in runs.items() for run in its for name in run.measurements()]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def newest(run: RunPaths) -> StoredMeasurement:
    """Return the companion's measurement if there is one, else the newest; raises RunNotFound."""
    names = run.measurements()
    if not names:
        raise RunNotFound(
            f"Run {run.run_id} has no measurement yet.", hint=f"trtllm-hpc bench {call_name(run)}"
        )
    return StoredMeasurement(run, COMPANION_MEASUREMENT if COMPANION_MEASUREMENT in names else names[0])


def named(run: RunPaths, name: str) -> StoredMeasurement:
    """Return the measurement of that name; raises RunNotFound with the existing ones."""
    names = run.measurements()
    if name not in names:
        there = f"it has {', '.join(names)}" if names else "it has none"
        raise RunNotFound(f"Run {run.run_id} has no measurement called {name!r}; {there}.")
    return StoredMeasurement(run, name)
