"""Measurements as arguments: ``RUN``, ``RUN:NAME`` or a file."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from trtllm_hpc.api.measurement import Measurement, measured_folder
from trtllm_hpc.cli.options import ParameterType, RunType, runs_folder
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.find import find_run, list_runs


class MeasuredFolder(RunType):
    """A run, or the folder of ``bench --url --output``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> RunPaths:
        """Find it; raises RunNotFound."""
        return value if isinstance(value, RunPaths) else measured_folder(str(value), runs_folder(ctx))


class MeasurementType(ParameterType):
    """``RUN`` means the companion's measurement, else the newest; ``RUN:NAME`` the one of that name."""

    name = "measurement"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Measurement:
        """Find the measurement; raises RunNotFound with the existing ones."""
        return value if isinstance(value, Measurement) else Measurement.find(str(value), runs_folder(ctx))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Offer the measurements of known runs."""
        from click.shell_completion import CompletionItem

        runs = {run.run_id: run for run in list_runs(runs_folder(ctx))}
        with suppress(RunNotFound):
            runs = {"latest": find_run("latest", runs_folder(ctx)), **runs}
        names = [f"{call}:{name}" for call, run in runs.items() for name in run.measurements()]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
