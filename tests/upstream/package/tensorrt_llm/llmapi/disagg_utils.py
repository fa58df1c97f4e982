"""A part of ``tensorrt_llm/llmapi/disagg_utils.py`` (1.3.0rc3), which initialises MPI at its head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from mpi4py.MPI import COMM_WORLD  # noqa: F401
from tensorrt_llm import FAULTS  # type: ignore[import-not-found]

_TAKEN = (
    "hostname",
    "port",
    "backend",
    "max_retries",
    "perf_metrics_max_requests",
    "conditional_disagg_config",
)


def parse_disagg_config_file(yaml_config_file: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(Path(yaml_config_file).read_text())
    for phase in ("context_servers", "generation_servers"):
        servers = config.pop(phase)
        if len(servers["urls"]) != servers["num_instances"]:
            raise ValueError(f"num_instances should be equal to the number of urls for {phase}")
        if "no-router" in FAULTS and "router" in servers:
            raise ValueError("router is not a valid field of a server")
    if unknown := set(config) - {*_TAKEN}:
        raise TypeError(f"extract_disagg_cfg() got an unexpected keyword argument {min(unknown)!r}")
    return config
