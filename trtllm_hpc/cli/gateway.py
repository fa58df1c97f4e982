"""``trtllm-hpc gateway``: the server of OpenAI's protocol, which a run's job starts beside Triton."""

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
    help="Folder of the run: model, tokenizer, limits, and the server's address.",
)
@url_options("Triton, e.g. grpc://127.0.0.1:8001; by default as the run's endpoint says.")
@click.option("--tokenizer", type=EXISTING_FOLDER, help="Folder with tokenizer.json; by default the run's.")
@click.option("--name", help="Name of the model in requests; by default the run's.")
@click.option("--fd", type=click.IntRange(min=0), help="Number of an inherited socket that listens.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of this machine to listen on.")
def command(
    run: Path | None,
    address: Address | None,
    tokenizer: Path | None,
    name: str | None,
    fd: int | None,
    port: int | None,
) -> None:
    """Answer OpenAI's protocol in front of a Triton server, until SIGTERM.

    It asks for no key: a run's proxy does. By hand it listens on this machine alone.

    \b
    Examples:
      trtllm-hpc gateway --run runs/demo-1 --port 8080
      trtllm-hpc gateway --url grpc://node7:8001 --tokenizer /models/llama --name llama --port 8080
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
        raise click.UsageError("Say where to listen: --port or --fd.")
    serve(sockets, target, facts)
