"""``trtllm-hpc endpoint``: where a run's server answers, and lines that ask it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.options import json_option, print_json, run_argument, wait_option
from trtllm_hpc.paths import RunPaths

if TYPE_CHECKING:
    from trtllm_hpc.runtime.records import Endpoint

_TIMEOUT_S = 30.0


@click.command("endpoint")
@run_argument
@wait_option
@json_option
def command(run: RunPaths, runs: Path | None, wait_seconds: float, as_json: bool) -> None:
    """Show where the server of RUN answers, with lines to paste: curl, Python, ssh.

    The key is not printed: the lines read it from its file, which only you can
    read. The server is asked for one token, to know whether its model has a chat
    template; without one the lines ask for a completion.

    \b
    Examples:
      trtllm-hpc endpoint
      trtllm-hpc endpoint chat --wait-seconds 600
      eval "$(trtllm-hpc endpoint --json | jq -r .curl)"
    """
    from trtllm_hpc.client.connect import describe, usual_model, usual_openai_model
    from trtllm_hpc.report.endpoint import LOCAL_PORT, access
    from trtllm_hpc.runs.endpoint import endpoint_of
    from trtllm_hpc.wire.served_model import LLM_API_LENGTH

    endpoint = endpoint_of(run, wait_seconds)
    length = "max_tokens"
    if endpoint.openai_url is not None:
        model = usual_openai_model(endpoint, _TIMEOUT_S)
    else:
        model = usual_model(endpoint)
        if describe(endpoint, model, _TIMEOUT_S).is_llm_api:
            length = LLM_API_LENGTH
    found = access(run.run_id, endpoint, model, chats=_chats(endpoint, model), length=length)
    if as_json:
        print_json(found)
        return
    click.echo(f"run {run.run_id}: {model} on {endpoint.host}")
    click.echo(f"endpoint: {endpoint.places}")
    for name, value in (("key", found.key_file), ("certificate", found.certificate_file)):
        if value is not None:
            click.echo(f"{name}: {value}")
    for title, lines in (
        ("In bash or zsh", found.curl),
        ("In Python", found.python),
        (f"On a laptop, where it is then at localhost:{LOCAL_PORT}", found.ssh),
    ):
        if lines is not None:
            click.echo(f"\n{title}:\n")
            click.echo("\n".join(f"  {line}".rstrip() for line in lines.splitlines()))


def _chats(endpoint: Endpoint, model: str) -> bool:
    """Return whether the model answers a chat."""
    from trtllm_hpc.client.sync_client import Client
    from trtllm_hpc.errors import RequestFailed

    if endpoint.openai_url is None:
        return False
    try:
        with Client(endpoint, model, protocol="openai", timeout_s=_TIMEOUT_S, retries=0) as client:
            client.chat([{"role": "user", "content": "Hello"}], max_tokens=1)
    except RequestFailed:
        return False
    return True
