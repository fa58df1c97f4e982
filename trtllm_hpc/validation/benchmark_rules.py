"""Rules of benchmark settings, from a job file or the command line."""

from __future__ import annotations

import math
import re

from trtllm_hpc.config.benchmark import EXCLUSIVE, SEARCH_WINDOW_S, Benchmark, Workload, is_set
from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.config.rules import Requires, Rule
from trtllm_hpc.errors import Diagnostic

_CONVERSATIONS = ("conversations",)
_GENERATED = ("normal", "shared-prefix", *_CONVERSATIONS)
_LENGTHS = ("input_tokens", "input_tokens_stdev", "output_tokens", "output_tokens_stdev")
_KINDS_OF = {
    "prompts": ("prompts",),
    "path": ("dataset", "trace", *_CONVERSATIONS),
    "speed": ("trace", *_CONVERSATIONS),
    **dict.fromkeys(_LENGTHS, _GENERATED),
    **dict.fromkeys(("prefix_tokens", "prefixes"), _GENERATED[1:]),
    **dict.fromkeys(("turns", "turns_stdev", "think_seconds", "think_seconds_stdev"), _CONVERSATIONS),
}
"""Kinds of workload that read a key. Keys that are not listed are read by all kinds."""
_OWN_KEYS = ("model", "prompt", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens")
_OWN_HEADERS = ("connection", "content-length", "content-type", "host", "transfer-encoding")


def settings_problems(settings: Benchmark) -> list[Diagnostic]:
    """Return every conflict between the settings; fields are relative to the benchmark's section."""
    return [problem for rule in RULES for problem in rule(settings)]


def _workload(settings: Benchmark) -> Diagnostics:
    workload = settings.workload
    for key, kinds in _KINDS_OF.items():
        if key not in Workload.model_fields or workload.kind in kinds:
            continue
        value = getattr(workload, key)
        if value != Workload.model_fields[key].get_default(call_default_factory=True):
            message = f"is for workloads of kind {' or '.join(kinds)}, but workload.kind is {workload.kind}"
            hint = f"remove it, or set workload.kind to {kinds[0]}"
            yield in_job("conflict", f"workload.{key}", message, hint, value)
    has_times = workload.kind == "trace" or (workload.kind in _CONVERSATIONS and workload.path is not None)
    if settings.arrival == "trace" and not has_times:
        message = "only a trace or a file of conversations has recorded times"
        hint = "set workload.kind to trace, or arrival to constant, poisson or gamma"
        yield in_job("conflict", "arrival", message, hint, settings.arrival)


def _of_each_request(settings: Benchmark) -> Diagnostics:
    for key in settings.extra_body.keys() & {*_OWN_KEYS}:
        message = "the benchmark sets this key itself, from its own settings"
        yield in_job("conflict", f"extra_body.{key}", message, "remove it")
    for name, value in settings.headers.items():
        is_header = re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) and value.isascii()
        if not is_header or name.lower() in _OWN_HEADERS:
            message = "must be an ASCII header that the client does not set itself"
            yield in_job("bad-value", f"headers.{name}", message, "write, for example, api-key: VALUE")


def _exclusive(settings: Benchmark) -> Diagnostics:
    keys = {**dict(settings), **{f"workload.{key}": value for key, value in settings.workload}}
    for first, second, why, remedy in EXCLUSIVE:
        if is_set(keys, first) and is_set(keys, second):
            field = first.partition("=")[0]
            yield in_job("conflict", field, why, remedy, keys[field])


def _twice(settings: Benchmark) -> Diagnostics:
    for field in ("rates_per_second", "concurrencies"):
        values = getattr(settings, field)
        duplicates = [value for place, value in enumerate(values) if value in values[:place]]
        if duplicates:
            message = f"{duplicates[0]} is listed twice"
            yield in_job("conflict", field, message, "list each once; repeats measures them again", values)


def _too_short(settings: Benchmark) -> Diagnostics:
    """Refuse a load too short for valid figures. Only the first rate of a search is known beforehand."""
    field = "requests" if settings.duration_seconds is None else "duration_seconds"
    if None not in (settings.requests, settings.duration_seconds):
        return
    count, window_s = _least_requests(settings), _shortest_window(settings)
    if count is not None and count < settings.min_requests:
        message = f"gives {count} requests per level, but valid figures need {settings.min_requests}"
        yield in_job("conflict", field, f"{message} (min_requests)", "raise it, or lower min_requests")
    if window_s is not None and window_s < settings.min_window_seconds:
        needed_s = settings.min_window_seconds
        message = f"gives a window of {window_s:.3g} s, but valid figures need {needed_s:g} s"
        hint = "raise it, or lower min_window_seconds"
        yield in_job("conflict", field, f"{message} (min_window_seconds)", hint)


def _least_requests(settings: Benchmark) -> int | None:
    """Return the fewest measured requests of a level; ``None`` if it depends on server, file or turns."""
    if settings.workload.kind in _CONVERSATIONS:
        return None
    if settings.duration_seconds is None:
        if settings.find_max and settings.requests is not None:
            window_s = max(SEARCH_WINDOW_S, settings.min_window_seconds)
            return max(settings.requests, math.ceil(settings.rate_per_second * window_s))
        return settings.requests
    rates = _rates(settings)
    return round(settings.duration_seconds * min(rates)) if rates else None


def _shortest_window(settings: Benchmark) -> float | None:
    """Return the shortest window in seconds; ``None`` if it depends on server, file or search."""
    if settings.duration_seconds is not None:
        return settings.duration_seconds
    rates = _rates(settings)
    if settings.requests is None or not rates or settings.find_max:
        return None
    return settings.requests / max(rates)


def _rates(settings: Benchmark) -> list[float]:
    """Return the rates of all levels; empty for closed loops and traces."""
    if settings.closed_loop or settings.arrival == "trace":
        return []
    return settings.rates_per_second or [settings.rate_per_second]


def _slo(settings: Benchmark) -> Diagnostics:
    if settings.slo is None:
        return
    from trtllm_hpc.bench.analysis.slo import BadSlo, parse_slo

    try:
        parse_slo(settings.slo)
    except BadSlo as error:
        message = " ".join(error.message.split()).rstrip(".")
        yield in_job("bad-value", "slo", message, error.hint or "correct the limit", settings.slo)


def scheduled_seconds(settings: Benchmark) -> float:
    """Return the shortest duration of the load in seconds; 0 if it depends on a file."""
    if settings.arrival == "trace":
        return 0.0
    rates = _rates(settings)
    levels = len(rates or settings.concurrencies) or 1
    warmup_s = (settings.warmup_seconds or 0.0) * levels
    warmup_s += sum((settings.warmup_requests or 0) / rate for rate in rates)
    if settings.duration_seconds is not None:
        window_s = settings.duration_seconds * levels
    else:
        window_s = sum((settings.requests or 0) / rate for rate in rates)
    return (warmup_s + window_s) * settings.repeats


RULES: tuple[Rule, ...] = (
    *(_workload, _of_each_request, _exclusive, _twice, _too_short, _slo),
    Requires("workload.kind=dataset workload.kind=trace", "workload.path",
             "a workload of kind {value} needs a file", "set workload.path",
             code="missing", at="workload.path"),
    Requires("arrival!=trace", "requests duration_seconds", "the length of the measured window is not set",
             "set requests or duration_seconds", code="missing", at="requests"),
    Requires("find_max", "slo", "the search needs latency limits",
             "set slo, e.g. to ttft.p99<500ms,tpot.p99<50ms", code="missing", at="slo"),
)  # fmt: skip
"""Rules whose keys are relative to the section ``benchmark``."""
