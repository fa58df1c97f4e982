"""In what two measurements differ, apart from their figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from trtllm_hpc.bench.summary import Measurement

_OF_FIGURES = {
    "repeats",
    "processes",
    "max_error_share",
    "max_late_share",
    "min_requests",
    "min_window_seconds",
    "find_max",
}
"""Settings that change how sure figures are, and not what they are."""
_LOAD = {"rate_per_second", "rates_per_second", "concurrency", "concurrencies"}
"""Levels of load are compared one by one."""
_SURROUNDINGS = (
    "server.cluster",
    "server.container",
    "server.image",
    "server.world_size",
    "server.ranks.*.gpu_models*",
    "server.ranks.*.mpi_library",
    "engine.backend",
    "engine.model",
    "engine.tensorrt_llm",
    "engine.key",
    "engine.layout",
    "engine.versions.*",
    "client.same_host_as_server",
    "client.cpu",
    "client.cpus",
    "client.python",
    "client.packages.*",
)
"""What of the provenance may explain a difference; the rest, such as job ids, is never the same."""
_LONGEST = 60


def settings_apart(a: Measurement, b: Measurement) -> list[str]:
    """What was asked differently, a line each."""
    apart = _differing(_asked(a), _asked(b))
    if a.settings == b.settings and _fixed(a.settings):
        workloads = [side.provenance.get("workload", {}).get("sha256") for side in (a, b)]
        if None not in workloads and workloads[0] != workloads[1]:
            apart.append("workload: the requests are not the same, though the settings are")
    return apart


def _fixed(settings: dict[str, Any]) -> bool:
    """Whether settings tell how many requests there are, so that the same ones make the same file."""
    return settings.get("duration_seconds") is None and not settings.get("find_max")


def _asked(measurement: Measurement) -> dict[str, str]:
    settings = {key: value for key, value in measurement.settings.items() if key not in _OF_FIGURES | _LOAD}
    whom = {"model": measurement.model, "protocol": measurement.protocol, "streaming": measurement.streaming}
    return _flat({**settings, **whom})


def surroundings_apart(a: Measurement, b: Measurement) -> list[str]:
    """What else was different where they ran, a line each."""
    return _differing(_surroundings(a), _surroundings(b))


def _surroundings(measurement: Measurement) -> dict[str, str]:
    facts = _flat(measurement.provenance)
    return {
        name: value
        for name, value in facts.items()
        if any(fnmatchcase(name, pattern) for pattern in _SURROUNDINGS)
    }


def _differing(a: dict[str, str], b: dict[str, str]) -> list[str]:
    return [
        f"{name}: {_short(a.get(name))} against {_short(b.get(name))}"
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}..."


def _flat(plain: Any) -> dict[str, str]:
    """Leaves by their dotted names, as JSON."""
    return {name: json.dumps(value, ensure_ascii=False) for name, value in _leaves(plain, "")}


def _leaves(plain: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(plain, dict):
        items = [(str(key), value) for key, value in plain.items()]
    elif isinstance(plain, list) and any(isinstance(value, dict | list) for value in plain):
        items = [(str(place), value) for place, value in enumerate(plain)]
    else:
        yield name, plain
        return
    for key, value in items:
        yield from _leaves(value, f"{name}.{key}" if name else key)
