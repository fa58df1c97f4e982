"""The servers that a rank can start: how, and their own endpoint, by the ``driver`` of ``server.json``."""

from __future__ import annotations

from pathlib import Path

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.server_spec import RankOptions, StartCommand
from trtllm_hpc.runtime.servers import openai, triton

ServerHttp = triton.TritonHttp | openai.OpenAIHttp
"""The server's own endpoint, without the proxy, which says whether the server is ready."""


def start_command(paths: RunPaths, options: RankOptions, scratch: Path) -> StartCommand:
    """Return how to start a rank's server; makes what the server needs in ``scratch``, the rank's own folder.

    Raises StartFailed if this node lacks something.
    """
    if options.spec.driver == "openai":
        return openai.start_command(paths, options, scratch)
    return triton.start_command(paths, options, scratch)


def endpoint_of(options: RankOptions) -> ServerHttp:
    """Return the endpoint of rank 0's server."""
    return openai.OpenAIHttp.of(options) if options.spec.driver == "openai" else triton.TritonHttp.here()
