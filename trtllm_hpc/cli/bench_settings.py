"""Apply the options of ``trtllm-hpc bench run`` to the settings of a run's job file."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.bench_options import OPTION_OF

if TYPE_CHECKING:
    from trtllm_hpc.config.benchmark import Benchmark

_SWEEPS = {"rate_per_second": "rates_per_second", "concurrency": "concurrencies", "model": "models"}
"""The field that takes several values of an option."""
_REPLACES = {
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
"""Settings of the job file that an option sets back to their defaults, because they exclude each other."""
_NUMBER = re.compile(r"\d*\.?\d+")
_SET_BY_TRACE = {"arrival", "requests", "warmup_requests", "rates_per_second", "ramp_to_per_second"}


def settings_of(base: Benchmark, given: Mapping[str, Any]) -> Benchmark:
    """Return the settings of the job file with those given as options.

    Raises:
        click.UsageError: with every conflict between them, and every option that would have no
            effect, by the option's name.
    """
    from pydantic import ValidationError

    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.validation.benchmark_rules import settings_problems

    try:
        settings = Benchmark.model_validate(_merged(base.model_dump(), given))
    except ValidationError as error:
        raise _usage_error(
            (".".join(map(str, it["loc"])), f"{it['msg']}.") for it in error.errors()
        ) from None
    without_effect = list(_without_effect(settings, given))
    if without_effect:
        raise _usage_error(without_effect)
    problems = settings_problems(settings)
    if problems:
        raise _usage_error(
            (it.field, f"{_with_option_names(it.message)}; {_with_option_names(it.hint)}.") for it in problems
        )
    return settings


def _usage_error(problems: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> click.UsageError:
    return click.UsageError("\n".join(f"{OPTION_OF.get(field, field)}: {text}" for field, text in problems))


def _with_option_names(text: str | None) -> str:
    """Replace the fields of a job file in a sentence by the names of their options."""
    names = sorted(OPTION_OF, key=len, reverse=True)
    return re.sub(
        "|".join(rf"\b{re.escape(name)}\b" for name in names if "_" in name or "." in name),
        lambda found: OPTION_OF[found[0]],
        text or "",
    )


def _merged(plain: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as a job file would have them, without those that an option replaces."""
    dropped = {field for option in given for field in _REPLACES.get(option, ())}
    if given.get("workload.kind") == "trace":
        dropped |= _SET_BY_TRACE
    plain = {field: value for field, value in plain.items() if field not in dropped}
    workload = _workload(plain.pop("workload"), given)
    if workload["kind"] != "trace" and plain["arrival"] == "trace":
        del plain["arrival"]
    for field, value in given.items():
        if field.startswith("workload."):
            continue
        if field == "no_slo":
            field, value = "slo", None
        if field in _SWEEPS:
            field, value = (_SWEEPS[field], value) if len(value) > 1 else (field, value[0])
        plain[field] = value
    return {**plain, "workload": workload}


def _workload(base: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workload; if its kind changes, only what does not depend on it is kept."""
    options = {field.removeprefix("workload."): value for field, value in given.items() if "." in field}
    if options.pop("no_lora", False) or "lora" in options:
        options["lora"] = [_adapter(one) for one in options.get("lora", ())]
    kind = options.get("kind", "prompts" if "prompts" in options else base["kind"])
    if kind != base["kind"]:
        base = {"tokenizer": base["tokenizer"], "lora": base["lora"]}
    return {**base, **options, "kind": kind}


def _adapter(given: str) -> dict[str, Any]:
    """Return an adapter of the workload from ``FOLDER[=SHARE]``; a folder's name may contain ``=``, too.

    Its number follows from the folder: the server may know adapters of earlier measurements by 1, 2 and so
    on, and would take one of them instead.
    """
    folder, equals, share = given.rpartition("=")
    has_share = bool(equals and _NUMBER.fullmatch(share))
    directory = str(Path(folder if has_share else given).resolve())
    task_id = zlib.crc32(directory.encode("utf-8", "surrogateescape"))
    return {"directory": directory, "share": float(share) if has_share else None, "task_id": task_id}


# Options without effect are refused. In a job file the same is no mistake, because all defaults are
# written out there.

_EXCLUSIVE = (
    ("requests", "duration_seconds", "the window ends after --requests or after --duration; leave one out."),
    ("warmup_requests", "warmup_seconds", "--warmup sets the length of the warm-up, too; leave one out."),
    ("slo", "no_slo", "removes what --slo sets; leave one out."),
    ("workload.lora", "workload.no_lora", "removes what --lora sets; leave one out."),
)
"""Options that exclude each other, and the message about the second."""


def _without_effect(settings: Benchmark, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each option that would have no effect, by its field, with a message."""
    for one, other, message in _EXCLUSIVE:
        if {one, other} <= given.keys():
            yield other, message
    if {"rate_per_second", "concurrency"} <= given.keys():
        yield "rate_per_second", "an open loop has a rate, a closed loop a --concurrency; leave one out."
    yield from _unused_arrival(settings, given)
    if given.get("find_max") and len(given.get("rate_per_second", ())) > 1:
        yield "rate_per_second", "--find-max starts at one rate and finds the others itself; give one."


def _unused_arrival(settings: Benchmark, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if settings.closed_loop:
        for field in ("arrival", "burstiness"):
            if field in given:
                yield field, "a closed loop has no gaps between sends; leave out this or --concurrency."
    elif "burstiness" in given and settings.arrival != "gamma":
        yield "burstiness", f"has an effect with --arrival gamma only, and arrivals are {settings.arrival}."
    if "rate_per_second" in given and settings.arrival == "trace" and "concurrency" not in given:
        hint = "leave it out, replay the trace faster with --speed, or add --arrival poisson."
        yield "rate_per_second", f"a trace has its own times; {hint}"
    uses_times = settings.arrival == "trace" and not settings.closed_loop
    if "workload.speed" in given and settings.workload.kind == "trace" and not uses_times:
        yield "workload.speed", "the times of the trace are not used; leave it out."
