"""The servers that a rank can start, by the name of the driver in the run's ``server.json``."""

from __future__ import annotations

from collections.abc import Callable

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.server_spec import RankOptions, ServerDriver
from trtllm_hpc.runtime.servers.openai import OpenAIDriver
from trtllm_hpc.runtime.servers.triton import TritonDriver

DRIVERS: dict[str, Callable[[RunPaths, RankOptions], ServerDriver]] = {
    "triton": TritonDriver,
    "openai": OpenAIDriver,
}


def driver_of(paths: RunPaths, options: RankOptions) -> ServerDriver:
    """Return the driver that the rank's specification names."""
    return DRIVERS[options.spec.driver](paths, options)
