"""What the options of ``trtllm-hpc bench`` make of the settings of a run's job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.bench_options import OPTION_OF

if TYPE_CHECKING:
    from trtllm_hpc.config.benchmark import Benchmark

_SEVERAL = {"rate_per_second": "rates_per_second", "concurrency": "concurrencies", "model": "models"}
_SETS_ASIDE = {
    "rate_per_second": ("concurrency", "concurrencies", "rates_per_second"),
    "concurrency": ("concurrencies", "rates_per_second", "ramp_to_per_second", "find_max"),
    "ramp_to_per_second": ("concurrency", "concurrencies", "rates_per_second", "find_max"),
    "find_max": ("concurrency", "concurrencies", "rates_per_second", "ramp_to_per_second", "repeats"),
    "model": ("models",),
    "requests": ("duration_seconds",),
    "duration_seconds": ("requests",),
    "warmup_requests": ("warmup_seconds",),
    "warmup_seconds": ("warmup_requests",),
}
"""Settings of the run's job file that give way to an option with which they cannot go."""
_OF_A_TRACE = {"arrival", "requests", "warmup_requests", "rates_per_second", "ramp_to_per_second"}
"""What a trace brings itself."""


def settings_of(base: Benchmark, given: Mapping[str, Any]) -> Benchmark:
    """The settings of the run's job file, with those that were typed in their place.

    Raises:
        click.UsageError: they do not go together, or what was typed would do nothing; every conflict, by the
            option's name.
    """
    from pydantic import ValidationError

    from trtllm_hpc.cli.bench_conflicts import without_effect
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.validation.benchmark_rules import settings_problems

    try:
        settings = Benchmark.model_validate(_merged(base.model_dump(), given))
    except ValidationError as error:
        wrong = [(".".join(map(str, it["loc"])), it["msg"]) for it in error.errors()]
        raise click.UsageError("\n".join(f"{_option(field)}: {words}." for field, words in wrong)) from None
    useless = without_effect(settings, given)
    if useless:
        raise click.UsageError("\n".join(f"{_option(field)}: {words}" for field, words in useless))
    problems = settings_problems(settings)
    if problems:
        raise click.UsageError(
            "\n".join(
                f"{_option(it.field)}: {_in_options(it.message)}; {_in_options(it.hint or '')}."
                for it in problems
            )
        )
    return settings


def _merged(plain: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as a job file would say them; what gives way is left out, for its default to come."""
    dropped = {field for option in given for field in _SETS_ASIDE.get(option, ())}
    if given.get("workload.kind") == "trace":
        dropped |= _OF_A_TRACE
    plain = {field: value for field, value in plain.items() if field not in dropped}
    workload = _workload(plain.pop("workload"), given)
    if workload["kind"] != "trace" and plain["arrival"] == "trace":
        del plain["arrival"]
    for field, value in given.items():
        if field.startswith("workload."):
            continue
        if field == "no_slo":
            field, value = "slo", None
        if field in _SEVERAL:
            field, value = (_SEVERAL[field], value) if len(value) > 1 else (field, value[0])
        plain[field] = value
    return {**plain, "workload": workload}


def _workload(base: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Another kind begins anew: only the tokenizer, which is the model's, stays."""
    typed = {field.removeprefix("workload."): value for field, value in given.items() if "." in field}
    kind = typed.get("kind", "prompts" if "prompts" in typed else base["kind"])
    if kind != base["kind"]:
        base = {"tokenizer": base["tokenizer"]}
    return {**base, **typed, "kind": kind}


def _option(field: str) -> str:
    return OPTION_OF.get(field, field)


def _in_options(words: str) -> str:
    """A sentence about fields of a job file, in the names of the options."""
    names = sorted(OPTION_OF, key=len, reverse=True)
    return re.sub(
        "|".join(rf"\b{re.escape(name)}\b" for name in names if "_" in name or "." in name),
        lambda found: OPTION_OF[found[0]],
        words,
    )
