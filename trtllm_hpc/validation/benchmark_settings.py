"""Settings of a benchmark that take the place of those of a run's job file."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trtllm_hpc.config.benchmark import Benchmark, excluded, is_set
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.validation.benchmark_rules import settings_problems
from trtllm_hpc.validation.job_rules import (
    adapters_fit,
    adapters_keep_their_numbers,
    answers_fit,
    prompts_fit,
)

SWEEPS = {"rate_per_second": "rates_per_second", "concurrency": "concurrencies", "model": "models"}
"""The field that takes several values of a setting."""
_REPLACES = {
    "rate_per_second": ("concurrency", "concurrencies", "rates_per_second", "arrival=trace"),
    "arrival": ("concurrency", "concurrencies"),
    "burstiness": ("concurrency", "concurrencies"),
    "find_max": ("repeats",),
}
"""Settings of the job file beside which a given one would have no effect, or another default: it sets them
back, as those in ``EXCLUSIVE``."""
_NUMBER = re.compile(r"\d*\.?\d+")
_SET_BY_TRACE = {"arrival", "requests", "warmup_requests", *excluded({"arrival": "trace"})}

Named = Callable[[str], str]
"""Returns what the user calls a field: itself from Python, its option on the command line."""


def settings_of(base: Benchmark, given: Mapping[str, Any], named: Named = str) -> Benchmark:
    """Return the settings of the job file with those ``given`` by dotted field, e.g. ``workload.kind``.

    Those in ``SWEEPS`` are lists; an adapter of ``workload.lora`` may be text (``FOLDER[=SHARE]``). Raises
    ConfigError with every conflict between them, and everything given that would have no effect.
    """
    try:
        settings = Benchmark.model_validate(_merged(base.model_dump(), given))
    except ValidationError as error:
        raise ConfigError(
            [
                _problem(named(".".join(map(str, wrong["loc"]))), f"{wrong['msg']}, not {wrong['input']!r}")
                for wrong in error.errors()
            ]
        ) from None
    without_effect = list(_without_effect(settings, given, named))
    if without_effect:
        raise ConfigError(without_effect)
    problems = settings_problems(settings)
    if problems:
        raise ConfigError(
            [
                _problem(named(it.field), _renamed(it.message, named), _renamed(it.hint or "", named))
                for it in problems
            ]
        )
    return settings


def refuse_over_limits(job: JobFile, settings: Benchmark, named: Named = str) -> None:
    """Raise ConfigError with each length, and each LoRA adapter, that the run's engine does not take."""
    companion = job.companion.model_copy(update={"enabled": True, "benchmark": settings})
    prefix = "companion.benchmark."
    with_settings = job.model_copy(update={"companion": companion})
    rules = (answers_fit, prompts_fit, adapters_fit, adapters_keep_their_numbers)
    problems = [problem for rule in rules for problem in rule(with_settings)]
    found = [
        _problem(named(it.field.removeprefix(prefix)), it.message, it.hint)
        for it in problems
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
        typed[field] = value
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
    before = {field.partition(".")[2]: kept.pop(field) for field in list(kept) if "." in field}
    workload = _workload(before, given)
    if workload["kind"] not in ("trace", "conversations") and kept.get("arrival") == "trace":
        del kept["arrival"]
    return {**kept, **{field: it for field, it in typed.items() if "." not in field}, "workload": workload}


def _workload(base: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workload; if its kind changes, only what does not depend on it is kept."""
    chosen = {field.removeprefix("workload."): value for field, value in given.items() if "." in field}
    if "lora" in chosen:
        chosen["lora"] = [_adapter(one) for one in chosen["lora"]]
    kind = chosen.get("kind", "prompts" if "prompts" in chosen else base["kind"])
    if kind != base["kind"]:
        base = {key: base[key] for key in ("tokenizer", "lora") if key in base}
    return {**base, **chosen, "kind": kind}


def _adapter(given: Any) -> Any:
    """Return an adapter of the workload from ``FOLDER[=SHARE]``; a folder's name may contain ``=``, too.

    Its number follows from the folder: the server may know adapters of earlier measurements by 1, 2 and so
    on, and would take one of them instead.
    """
    if not isinstance(given, str):
        return given
    folder, equals, share = given.rpartition("=")
    has_share = bool(equals and _NUMBER.fullmatch(share))
    directory = str(Path(folder if has_share else given).resolve())
    task_id = zlib.crc32(directory.encode("utf-8", "surrogateescape"))
    return {"directory": directory, "share": float(share) if has_share else None, "task_id": task_id}


# What is given without effect is refused. In a job file the same is no mistake, because all defaults are
# written out there.


def _without_effect(settings: Benchmark, given: Mapping[str, Any], named: Named) -> Iterator[Diagnostic]:
    """Yield each given setting that would have no effect."""
    rate = named("rate_per_second")
    if {"rate_per_second", "concurrency"} <= given.keys():
        message = f"an open loop has a rate, a closed loop a {named('concurrency')}"
        yield _problem(rate, message, "leave one out")
    yield from _unused_arrival(settings, given, named)
    if given.get("find_max") and len(given.get("rate_per_second", ())) > 1:
        message = f"{named('find_max')} starts at one rate and finds the others itself"
        yield _problem(rate, message, "give one")


def _unused_arrival(settings: Benchmark, given: Mapping[str, Any], named: Named) -> Iterator[Diagnostic]:
    if settings.closed_loop:
        for field in ("arrival", "burstiness"):
            if field in given:
                hint = f"leave out this or {named('concurrency')}"
                yield _problem(named(field), "a closed loop has no gaps between sends", hint)
    elif "burstiness" in given and settings.arrival != "gamma":
        message = f"has an effect with {named('arrival')} gamma only, and arrivals are {settings.arrival}"
        yield _problem(named("burstiness"), message)
    if "rate_per_second" in given and settings.arrival == "trace" and "concurrency" not in given:
        faster = f"replay the trace faster with {named('workload.speed')}"
        hint = f"leave it out, {faster}, or add {named('arrival')} poisson"
        yield _problem(named("rate_per_second"), "a trace has its own times", hint)
    uses_times = settings.arrival == "trace" and not settings.closed_loop
    if "workload.speed" in given and settings.workload.kind == "trace" and not uses_times:
        yield _problem(named("workload.speed"), "the times of the trace are not used", "leave it out")
