"""How two measurements differ, other than in their figures: workload, settings, environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from trtllm_hpc.bench.results import MeasurementSummary

_WORKLOAD = ("workload.*", "max_tokens", "exact_output", "arrival", "burstiness")
"""Settings that decide what is requested, and when."""
_REQUESTS = ("workload.*", "max_tokens")
"""Those of them that do not matter if the files of requests are the same to the byte."""
_IGNORED = (
    # where the tokenizer lies
    "workload.tokenizer",
    # how certain figures are, and not what they are
    "repeats",
    "processes",
    "max_error_share",
    "max_failures_in_a_row",
    "max_late_share",
    "min_requests",
    "min_window_seconds",
    "find_max",
    # levels of load are compared one by one
    "rate_per_second",
    "rates_per_second*",
    "concurrency",
    "concurrencies*",
)
_ENVIRONMENT = (
    *("server.cluster", "server.container", "server.image", "server.world_size"),
    *("server.ranks.*.gpu_models*", "server.ranks.*.mpi_library"),
    *("engine.backend", "engine.model", "engine.tensorrt_llm"),
    *("engine.key", "engine.layout", "engine.versions.*"),
    *("client.same_host_as_server", "client.cpu", "client.cpus", "client.python", "client.packages.*"),
)
"""Parts of the provenance that may explain a difference; the rest, such as job ids, always differs."""
_MAX_LENGTH = 60


def workload_diff(a: MeasurementSummary, b: MeasurementSummary) -> list[str]:
    """Return the differences between the workloads, a line each; none if the figures can be compared."""
    digests = [side.provenance.get("workload", {}).get("sha256") for side in (a, b)]
    same_requests = digests[0] is not None and digests[0] == digests[1]
    ignored = (*_IGNORED, *_REQUESTS) if same_requests else _IGNORED
    lines = _diff(_settings(a), _settings(b), only=_WORKLOAD, ignored=ignored)
    # Equal settings give equal requests, if they fix their number.
    has_fixed_requests = a.settings.get("duration_seconds") is None and not a.settings.get("find_max")
    if a.settings == b.settings and has_fixed_requests and None not in digests and not same_requests:
        lines.append("the requests differ, although the settings are the same")
    return lines


def settings_diff(a: MeasurementSummary, b: MeasurementSummary) -> list[str]:
    """Return the other settings that differ and may influence the figures, a line each."""
    return _diff(_settings(a), _settings(b), only=("*",), ignored=(*_IGNORED, *_WORKLOAD))


def _settings(measurement: MeasurementSummary) -> dict[str, str]:
    served = {
        "model": measurement.model,
        "protocol": measurement.protocol,
        "streaming": measurement.streaming,
        # Counts from texts and the model's own may differ for the same answers.
        "output_tokens_counted_by": measurement.tokens.get("output_by"),
    }
    return _flat({**measurement.settings, **served})


def environment_diff(a: MeasurementSummary, b: MeasurementSummary) -> list[str]:
    """Return what else differed where they ran, a line each."""
    return _diff(_flat(a.provenance), _flat(b.provenance), only=_ENVIRONMENT)


def _diff(
    a: dict[str, str], b: dict[str, str], *, only: tuple[str, ...], ignored: tuple[str, ...] = ()
) -> list[str]:
    return [
        f"{name}: {_short(a.get(name))} against {_short(b.get(name))}"
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name) and _matches(name, only) and not _matches(name, ignored)
    ]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    return value if len(value) <= _MAX_LENGTH else f"{value[: _MAX_LENGTH - 3]}..."


def _flat(plain: Any) -> dict[str, str]:
    return {name: json.dumps(value, ensure_ascii=False) for name, value in leaves(plain, "")}


def leaves(plain: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name of each value in mappings and in lists of mappings, and the value."""
    if isinstance(plain, dict):
        items = [(str(key), value) for key, value in plain.items()]
    elif isinstance(plain, list) and any(isinstance(value, dict | list) for value in plain):
        items = [(str(place), value) for place, value in enumerate(plain)]
    else:
        yield name, plain
        return
    for key, value in items:
        yield from leaves(value, f"{name}.{key}" if name else key)
