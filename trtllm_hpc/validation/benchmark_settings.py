"""Settings of a benchmark that take the place of those of a run's job file."""

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
"""The field that takes several values of a setting."""
_REPLACES = {
    "rate_per_second": ("concurrency", "concurrencies", "rates_per_second", "arrival=trace"),
    "arrival": ("concurrency", "concurrencies"),
    "burstiness": ("concurrency", "concurrencies"),
    "find_max": ("repeats",),
}
"""Settings of the job file beside which a given one would have no effect, or another default: it sets them
back, as those in ``EXCLUSIVE``."""
_SET_BY_TRACE = {"arrival", "requests", "warmup_requests", *excluded({"arrival": "trace"})}

Named = Callable[[str], str]
"""Returns what the user calls a field: itself from Python, its option on the command line."""


def settings_of(base: Benchmark, given: Mapping[str, Any], named: Named = str) -> Benchmark:
    """Return the settings of the job file with those ``given`` by dotted field, e.g. ``workload.kind``.

    Those in ``SWEEPS`` are lists. Raises ConfigError with every conflict between them, and everything given
    that would have no effect.
    """
    try:
        settings = Benchmark.model_validate(_merged(base.model_dump(), given))
    except ValidationError as error:
        wrong = [
            _problem(named(".".join(map(str, it["loc"]))), f"{it['msg']}, not {it['input']!r}")
            for it in error.errors()
        ]
        raise ConfigError(wrong) from None
    wrong = list(_without_effect(settings, given, named)) or [
        _problem(named(it.field), _renamed(it.message, named), _renamed(it.hint or "", named))
        for it in settings_problems(settings)
    ]
    if wrong:
        raise ConfigError(wrong)
    return settings


def refuse_over_limits(job: JobFile, settings: Benchmark, named: Named = str) -> None:
    """Raise ConfigError with each length that the run's engine does not take."""
    companion = job.companion.model_copy(update={"enabled": True, "benchmark": settings})
    with_settings, prefix = job.model_copy(update={"companion": companion}), "companion.benchmark."
    found = [
        _problem(named(it.field.removeprefix(prefix)), it.message, it.hint)
        for it in (*answers_fit(with_settings), *prompts_fit(with_settings))
        if it.field.startswith(prefix)
    ]
    if found:
        raise ConfigError(found)


def _problem(field: str, message: str, hint: str | None = None) -> Diagnostic:
    return Diagnostic("bad-setting", message, field=field, hint=hint)


def _renamed(sentence: str, named: Named) -> str:
    """Replace the fields in a sentence about a job file by what the user calls them."""
    return re.sub(r"\b[a-z]+(?:[._][a-z_]+)+\b", lambda found: named(found[0]), sentence)


def _merged(plain: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as a job file would have them, without those that a given one replaces."""
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
        # Another kind of workload has other keys: only the user can choose it.
        if field not in typed and field != "workload.kind" and is_set(kept, key):
            del kept[field]
            if field == "arrival":
                kept["arrival"] = "poisson"  # the default of a trace is "trace"
    base = {field.partition(".")[2]: kept.pop(field) for field in list(kept) if "." in field}
    chosen = {field.removeprefix("workload."): value for field, value in given.items() if "." in field}
    kind = chosen.get("kind", "prompts" if "prompts" in chosen else base["kind"])
    if kind != base["kind"]:  # only what does not depend on it is kept
        base = {key: base[key] for key in ("tokenizer",) if key in base}
    workload = {**base, **chosen, "kind": kind}
    if kind not in ("trace", "conversations") and kept.get("arrival") == "trace":
        del kept["arrival"]
    return {**kept, **{field: it for field, it in typed.items() if "." not in field}, "workload": workload}


def _without_effect(settings: Benchmark, given: Mapping[str, Any], named: Named) -> Iterator[Diagnostic]:
    """Yield each given setting without effect. A job file has all defaults, so there they are allowed."""
    rate, concurrency = named("rate_per_second"), named("concurrency")
    if {"rate_per_second", "concurrency"} <= given.keys():
        message = f"an open loop has a rate, a closed loop a {concurrency}"
        yield _problem(rate, message, "leave one out")
    elif "rate_per_second" in given and settings.arrival == "trace":
        hint = f"leave it out, replay the trace faster with {named('workload.speed')}, or add "
        yield _problem(rate, "a trace has its own times", f"{hint}{named('arrival')} poisson")
    if settings.closed_loop:
        for field in given.keys() & {"arrival", "burstiness"}:
            message = "a closed loop has no gaps between sends"
            yield _problem(named(field), message, f"leave out this or {concurrency}")
    elif "burstiness" in given and settings.arrival != "gamma":
        message = f"has an effect with {named('arrival')} gamma only, and arrivals are {settings.arrival}"
        yield _problem(named("burstiness"), message)
    if given.get("find_max") and len(given.get("rate_per_second", ())) > 1:
        message = f"{named('find_max')} starts at one rate and finds the others itself"
        yield _problem(rate, message, "give one")
