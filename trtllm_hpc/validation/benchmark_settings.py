"""Benchmark settings from the command line or Python, over those of a run's job file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from trtllm_hpc.config.benchmark import Benchmark, excluded, is_set
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.validation.benchmark_rules import settings_problems
from trtllm_hpc.validation.job_rules import answers_fit, prompts_fit

SWEEPS = {"rate_per_second": "rates_per_second", "concurrency": "concurrencies"}
"""Settings that take several values, with the field for a list."""
_REPLACES = {
    "rate_per_second": ("concurrency", "concurrencies", "rates_per_second", "arrival=trace"),
    "arrival": ("concurrency", "concurrencies"),
    "burstiness": ("concurrency", "concurrencies"),
    "find_max": ("repeats",),
}
"""Settings of the job file that a given setting resets to their defaults, like those in ``EXCLUSIVE``.

Beside them the given setting would have no effect, or their default depends on it.
"""
_SET_BY_TRACE = {"arrival", "requests", "warmup_requests", *excluded({"arrival": "trace"})}

Named = Callable[[str], str]
"""Returns the user's name of a field: the field itself in Python, its option on the command line."""


def settings_of(base: Benchmark, given: Mapping[str, Any], named: Named = str) -> Benchmark:
    """Return the job file's settings, overridden by those ``given`` by dotted field, e.g. ``workload.kind``.

    Values of the fields in ``SWEEPS`` are lists. Raises ConfigError with every conflict, and with every given
    setting that would have no effect.
    """
    try:
        settings = Benchmark.model_validate(_merged(base.model_dump(), given))
    except ValidationError as error:
        wrong = [
            _problem(named(".".join(map(str, detail["loc"]))), f"{detail['msg']}, not {detail['input']!r}")
            for detail in error.errors()
        ]
        raise ConfigError(wrong) from None
    wrong = list(_without_effect(settings, given, named)) or [
        _problem(named(problem.field), _renamed(problem.message, named), _renamed(problem.hint or "", named))
        for problem in settings_problems(settings)
    ]
    if wrong:
        raise ConfigError(wrong)
    return settings


def refuse_over_limits(job: JobFile, settings: Benchmark, named: Named = str) -> None:
    """Raise ConfigError with each prompt or answer length that the run's engine refuses."""
    companion = job.companion.model_copy(update={"enabled": True, "benchmark": settings})
    with_settings, prefix = job.model_copy(update={"companion": companion}), "companion.benchmark."
    wrong = [
        _problem(named(problem.field.removeprefix(prefix)), problem.message, problem.hint)
        for problem in (*answers_fit(with_settings), *prompts_fit(with_settings))
        if problem.field.startswith(prefix)
    ]
    if wrong:
        raise ConfigError(wrong)


def _problem(field: str, message: str, hint: str | None = None) -> Diagnostic:
    return Diagnostic("bad-setting", message, field=field, hint=hint)


def _renamed(sentence: str, named: Named) -> str:
    """Replace the fields in a sentence about a job file by the user's names."""
    return re.sub(r"\b[a-z]+(?:[._][a-z_]+)+\b", lambda match: named(match[0]), sentence)


def _merged(plain: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged settings in the form of a job file, without those that given ones replace."""
    typed = dict[str, Any]()
    for field, value in given.items():
        if field in SWEEPS:
            field, value = (SWEEPS[field], value) if len(value) > 1 else (field, value[0])
        is_mapping = isinstance(value, dict) and isinstance(plain.get(field), dict)
        typed[field] = {**plain[field], **value} if is_mapping else value
    if "trace" in (given.get("workload.kind"), given.get("arrival")):
        plain = {field: value for field, value in plain.items() if field not in _SET_BY_TRACE}
    kept = {**plain, **{f"workload.{field}": value for field, value in plain["workload"].items()}}
    del kept["workload"]
    for key in excluded(typed).union(*(keys for field, keys in _REPLACES.items() if is_set(typed, field))):
        field = key.partition("=")[0]
        # workload.kind stays: another kind needs other keys, so only the user can choose it.
        if field not in typed and field != "workload.kind" and is_set(kept, key):
            del kept[field]
            if field == "arrival":
                kept["arrival"] = "poisson"  # else a trace would get its default, "trace"
    base = {field.partition(".")[2]: kept.pop(field) for field in list(kept) if "." in field}
    chosen = {field.removeprefix("workload."): value for field, value in given.items() if "." in field}
    kind = chosen.get("kind", "prompts" if "prompts" in chosen else base["kind"])
    if kind != base["kind"]:  # keep only the key that does not depend on the kind
        base = {key: base[key] for key in ("tokenizer",) if key in base}
    workload = {**base, **chosen, "kind": kind}
    if kind not in ("trace", "conversations") and kept.get("arrival") == "trace":
        del kept["arrival"]
    top_level = {field: value for field, value in typed.items() if "." not in field}
    return {**kept, **top_level, "workload": workload}


def _without_effect(settings: Benchmark, given: Mapping[str, Any], named: Named) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each given setting without effect.

    The rules allow such settings in a job file, because a resolved job file has a value for every key.
    """
    rate, concurrency = named("rate_per_second"), named("concurrency")
    if {"rate_per_second", "concurrency"} <= given.keys():
        message = f"an open loop has a rate, a closed loop a {concurrency}"
        yield _problem(rate, message, "leave one out")
    elif "rate_per_second" in given and settings.arrival == "trace":
        hint = f"remove it, replay the trace faster with {named('workload.speed')}, or add "
        yield _problem(rate, "a trace has its own times", f"{hint}{named('arrival')} poisson")
    if settings.closed_loop:
        for field in given.keys() & {"arrival", "burstiness"}:
            message = "a closed loop sends when an answer arrives, so there are no gaps to choose"
            yield _problem(named(field), message, f"remove it or {concurrency}")
    elif "burstiness" in given and settings.arrival != "gamma":
        message = f"needs {named('arrival')} gamma, but arrivals are {settings.arrival}"
        yield _problem(named("burstiness"), message, f"add {named('arrival')} gamma, or remove it")
    if given.get("find_max") and len(given.get("rate_per_second", ())) > 1:
        message = f"{named('find_max')} starts at one rate and finds the others itself"
        yield _problem(rate, message, "give a single rate")
