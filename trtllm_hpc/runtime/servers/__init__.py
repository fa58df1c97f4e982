"""The servers that a rank can start, chosen by ``driver`` in ``server.json``: command line and endpoint."""

from __future__ import annotations

from pathlib import Path

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.server_spec import RankOptions, StartCommand
from trtllm_hpc.runtime.servers import openai, triton

ServerHttp = triton.TritonHttp | openai.OpenAIHttp
"""The server's own endpoint, without the proxy; it shows whether the server is ready."""


def start_command(paths: RunPaths, options: RankOptions, scratch: Path) -> StartCommand:
    """Return a rank's command line, and write the files that the server needs to ``scratch``.

    ``scratch`` is the rank's own folder. Raises StartFailed if this node lacks a program or package.
    """
    if options.spec.driver == "openai":
        return openai.start_command(paths, options, scratch)
    return triton.start_command(paths, options, scratch)


def endpoint_of(options: RankOptions) -> ServerHttp:
    """Return the endpoint of rank 0's server."""
    return openai.OpenAIHttp.of(options) if options.spec.driver == "openai" else triton.TritonHttp.here()
