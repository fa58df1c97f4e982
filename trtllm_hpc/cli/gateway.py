"""``trtllm-hpc gateway``: serve OpenAI's protocol in front of Triton; a run's job starts it."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.shared import EXISTING_FOLDER, url_options

if TYPE_CHECKING:
    from trtllm_hpc.client.connect import Address


@click.command("gateway")
@click.option(
    "--run",
    type=EXISTING_FOLDER,
    metavar="FOLDER",
    help="Run folder, with the model, the tokenizer, the limits and the server's address.",
)
@url_options("Triton, e.g. grpc://127.0.0.1:8001.  [default: the run's endpoint]")
@click.option(
    "--tokenizer",
    type=EXISTING_FOLDER,
    metavar="FOLDER",
    help="Folder with tokenizer.json.  [default: the run's]",
)
@click.option("--name", metavar="NAME", help="Name of the model in requests.  [default: the run's]")
@click.option(
    "--fd", type=click.IntRange(min=0), metavar="N", help="File descriptor of an inherited listening socket."
)
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="Port on localhost to listen on.")
def command(
    run: Path | None,
    address: Address | None,
    tokenizer: Path | None,
    name: str | None,
    fd: int | None,
    port: int | None,
) -> None:
    """Serve OpenAI's protocol in front of a Triton server, until SIGTERM.

    The gateway requires no key: the run's proxy does.

    \b
    Examples:
      trtllm-hpc gateway --run ~/runs/demo-1 --port 8080
      trtllm-hpc gateway --url grpc://node7:8001 --tokenizer ~/models/llama --name llama --port 8080
    """
    from trtllm_hpc.errors import NotReady
    from trtllm_hpc.gateway.app import facts_of, listen, serve
    from trtllm_hpc.gateway.service import Facts
    from trtllm_hpc.paths import RunPaths
    from trtllm_hpc.runtime.records import Endpoint

    if run is None and (address is None or tokenizer is None or name is None):
        raise click.UsageError("Without --run, the gateway needs --url, --tokenizer and --name.")
    facts = Facts("", Path()) if run is None else facts_of(RunPaths(run))
    facts = replace(facts, name=name or facts.name, tokenizer=tokenizer or facts.tokenizer)
    target = address or Endpoint.read(RunPaths(run or Path()).endpoint)
    if target is None:
        raise NotReady(f"{run} has no endpoint yet.", hint="name Triton's address: --url grpc://HOST:PORT")
    sockets = [] if fd is None else [socket.socket(fileno=fd)]
    if port is not None:
        sockets.append(listen(port))
    if not sockets:
        raise click.UsageError("Name where to listen: --port or --fd.")
    serve(sockets, target, facts)
