"""Apply the options of ``trtllm-hpc bench run`` to the settings of a run's job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.bench_options import OPTION_OF
from trtllm_hpc.errors import ConfigError

if TYPE_CHECKING:
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.config.job import JobFile


def settings_for(job: JobFile | None, given: Mapping[str, Any]) -> Benchmark:
    """Return the settings of the job file with those given as options; without a run, these alone.

    Raises click.UsageError with every conflict between them, everything without effect, and every length that
    the engine cannot take, by the option's name.
    """
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.validation.benchmark_settings import refuse_over_limits, settings_of

    try:
        base = None if job is None else job.companion.benchmark
        settings = settings_of(base or Benchmark(), given, _option)
        if job is not None:
            refuse_over_limits(job, settings, _option)
    except ConfigError as error:
        lines = (f"{it.field}: {it.message}{f'; {it.hint}' if it.hint else ''}." for it in error.diagnostics)
        raise click.UsageError("\n".join(lines)) from None
    return settings


def _option(field: str) -> str:
    return OPTION_OF.get(field, field)
