"""The servers that a rank can start, by the name of the driver in the run's ``server.json``."""

from __future__ import annotations

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.server_spec import RankOptions
from trtllm_hpc.runtime.servers.openai import OpenAIDriver, OpenAIHttp
from trtllm_hpc.runtime.servers.triton import TritonDriver, TritonHttp

ServerDriver = TritonDriver | OpenAIDriver
"""Starts the server of a rank."""
ServerHttp = TritonHttp | OpenAIHttp
"""The server's own endpoint, without the door, which says whether the server is ready."""


def driver_of(paths: RunPaths, options: RankOptions) -> ServerDriver:
    """Return the driver that the rank's specification names."""
    return (OpenAIDriver if options.spec.driver == "openai" else TritonDriver)(paths, options)
