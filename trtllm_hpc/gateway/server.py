"""The gateway's process: what it knows of its run, its sockets, and uvicorn on them."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

from trtllm_hpc.backends import backend_of
from trtllm_hpc.client.connect import Target
from trtllm_hpc.config.files import read_spec
from trtllm_hpc.errors import StartFailed
from trtllm_hpc.gateway.app import make_app
from trtllm_hpc.gateway.service import Facts, ServedByTriton
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_config import NotAnEngine, read_engine

_BACKLOG = 2048
_GRACE_S = 5
"""For open answers once the gateway is asked to end."""
_KEEP_ALIVE_S = 120
"""Longer than clients keep a connection (OpenAI's: 5 s; aiohttp's: 15 s): else requests get lost."""


def facts_of(run: RunPaths) -> Facts:
    """Return the facts of a run with an engine. Raises ConfigError if its ``spec.yaml`` cannot be read."""
    job = read_spec(run.spec)
    folder = Path(job.engine.directory) if job.engine.directory else run.engine
    named = backend_of(job).tokenizer(job)
    max_seq_len = job.engine.max_seq_len
    with suppress(NotAnEngine):
        max_seq_len = read_engine(folder).max_seq_len or max_seq_len
    return Facts(
        name=Path(job.model.path).name if job.model.path else job.model.synthetic or job.name,
        tokenizer=folder / "tokenizer" if named is None else Path(named),
        max_seq_len=max_seq_len,
        add_special_tokens=job.repository.add_special_tokens is not False,
        skip_special_tokens=job.repository.skip_special_tokens is not False,
        max_request_mib=job.serve.max_request_mib,
    )


class _Server(uvicorn.Server):
    """Ends by itself after a signal; uvicorn's own dies of it, and nobody tidies up."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self.handle_exit, each, None)
        yield


def serve(sockets: list[socket.socket], target: Target, facts: Facts) -> None:
    """Answer requests until SIGTERM or SIGINT."""

    async def main() -> None:
        config = uvicorn.Config(
            make_app(ServedByTriton(target, facts)),
            # A line for each request would be most of the log.
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GRACE_S,
            timeout_keep_alive=_KEEP_ALIVE_S,
            # The address of a client is the proxy's, whatever a header says.
            proxy_headers=False,
            ws="none",
        )
        await _Server(config).serve(sockets)

    asyncio.run(main())


def listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine alone. Raises StartFailed if it cannot."""
    try:
        made = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        # Connections inherit it. asyncio does not set it for those of a socket that it has not made.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    except OSError as error:
        raise StartFailed(f"Port {port} cannot be listened on: {error.strerror}.", hint="--port") from None
