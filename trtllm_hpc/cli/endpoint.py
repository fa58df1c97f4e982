"""``trtllm-hpc endpoint``: the address of a run's server, examples of requests, and keys for colleagues."""

from __future__ import annotations

import getpass
import json
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import indent
from urllib.parse import urlsplit

import click

from trtllm_hpc.cli.shared import Span, json_option, print_json, run_argument
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.report.status import client_lines
from trtllm_hpc.runtime.records import Endpoint

_TIMEOUT_S = 30.0
_QUESTION = "What is machine learning?"
_TOKENS = 64
_LOCAL_PORT = 8000


@click.command("endpoint")
@run_argument
@click.option("--invite", metavar="NAME", help="Make a key for a colleague.")
@click.option("--expires", type=Span(), metavar="SPAN", help="With --invite: lifetime of the key, e.g. 7d.")
@click.option("--revoke", metavar="NAME", help="Revoke a colleague's key.")
@click.option("--invited", "lists", is_flag=True, help="List the colleagues and their numbers of requests.")
@json_option
def command(
    run: RunPaths,
    runs: Path | None,
    invite: str | None,
    expires: float | None,
    revoke: str | None,
    lists: bool,
    as_json: bool,
) -> None:
    """Show the address of RUN's server, with examples for curl, Python and ssh.

    The examples read the key from its file, which only you can read. To choose
    between chat and completions, the command requests one token.

    The proxy logs and counts a colleague's requests by NAME, and refuses requests
    that control the server. Revoking a key takes effect within seconds.

    \b
    Examples:
      trtllm-hpc endpoint
      trtllm-hpc endpoint chat --invite colleague --expires 7d
      trtllm-hpc endpoint chat --invited
      trtllm-hpc endpoint chat --revoke colleague
      eval "$(trtllm-hpc endpoint --json | jq -r .curl)"
    """
    if expires is not None and invite is None:
        raise click.UsageError("--expires needs --invite.")
    if lists or invite is not None or revoke is not None:
        _guests(run, revoke, invite, expires, as_json)
        return
    from trtllm_hpc.runs.endpoint import endpoint_of

    endpoint = endpoint_of(run, 0.0)
    found = _access(run, endpoint)
    if as_json:
        print_json(found)
        return
    click.echo(f"run {found.run_id}: {found.model} on {found.host}\nendpoint: {endpoint.places}")
    for name, value in (("key", found.key_file), ("certificate", found.certificate_file)):
        if value is not None:
            click.echo(f"{name}: {value}")
    for title, lines in (
        ("In bash or zsh", found.curl),
        ("In Python", found.python),
        (f"On a laptop, to reach the server at localhost:{_LOCAL_PORT}", found.ssh),
    ):
        if lines is not None:
            click.echo(f"\n{title}:\n\n{indent(lines, '  ')}")


def _guests(
    run: RunPaths, revoked: str | None, invited: str | None, expires_s: float | None, as_json: bool
) -> None:
    from trtllm_hpc.runs.guests import clients_of, invite, revoke

    if revoked is not None:
        revoke(run, revoked)
    if invited is not None:
        invite(run, invited, expires_s)
    guests = [client for client in clients_of(run) if client.key_file is not None]
    if as_json:
        print_json(guests)
        return
    click.echo("\n".join(client_lines(guests, time.time())) or "nobody else is invited")
    endpoint = Endpoint.read(run.endpoint)
    if invited is not None and endpoint is not None:
        click.echo(_instructions(run, endpoint, invited))


def _instructions(run: RunPaths, endpoint: Endpoint, guest: str) -> str:
    """Return the files that a guest needs, and commands for the guest, who has the files in ``./``."""
    files = f"{run.guest_key(guest)} as {guest}.key"
    theirs = replace(endpoint, key_file=f"{guest}.key")
    words = ["trtllm-hpc", "client", "--key-file", f"{guest}.key"]
    if endpoint.certificate_file is not None:
        files += f"\n{endpoint.certificate_file} as certificate.crt"
        theirs = replace(theirs, certificate_file="certificate.crt")
        words += ["--certificate", "certificate.crt"]
    openai = (endpoint.openai_url or "").removesuffix("/v1")
    url = f"{endpoint.scheme.replace('http', 'grpc')}://{endpoint.grpc}" if endpoint.is_triton else openai
    lines = f"{_access(run, endpoint, theirs).curl}\n\n{shlex.join([*words, '--url', url, _QUESTION])}"
    return f"\nOnly you can read the key. Pass on\n{files}\nThen {guest} types:\n\n{indent(lines, '  ')}"


def _access(run: RunPaths, endpoint: Endpoint, shown: Endpoint | None = None) -> EndpointAccess:
    """Ask the server for its model, and return examples of requests, with the files of ``shown``."""
    from trtllm_hpc.client.connect import describe, usual_model, usual_openai_model
    from trtllm_hpc.client.sync_client import Client
    from trtllm_hpc.errors import RequestFailed
    from trtllm_hpc.wire.served_model import LLM_API_LENGTH

    shown, chats = shown or endpoint, False
    if endpoint.openai_url is None:
        model = usual_model(endpoint)
        is_llm_api = describe(endpoint, model, _TIMEOUT_S).is_llm_api
        return access(
            run.run_id, shown, model, chats=False, length=LLM_API_LENGTH if is_llm_api else "max_tokens"
        )
    model = usual_openai_model(endpoint, _TIMEOUT_S)
    with suppress(RequestFailed):  # the model has no chat template
        with Client(endpoint, model, protocol="openai", timeout_s=_TIMEOUT_S, retries=0) as client:
            client.chat([{"role": "user", "content": "Hello"}], max_tokens=1)
        chats = True
    return access(run.run_id, shown, model, chats=chats)


@dataclass(frozen=True)
class EndpointAccess:
    """Addresses of a server, and examples of requests, which do not contain the key."""

    run_id: str
    host: str
    """Node of the server."""
    openai_url: str | None
    """URL of OpenAI's protocol; ``None``: the server does not support it."""
    http: str | None
    """``address:port`` of Triton's HTTP endpoint; ``None``: the server is not Triton."""
    grpc: str | None
    """``address:port`` of Triton's gRPC endpoint; ``None``: the server is not Triton."""
    model: str
    """Name of the model in the examples."""
    key_file: str | None
    """File with the key; ``None``: the server requires no key."""
    certificate_file: str | None
    """File with the certificate to trust; ``None``: the connection is not encrypted."""
    curl: str
    """Request with curl, for bash or zsh."""
    python: str | None
    """Request with the Python package ``openai``; ``None`` without an OpenAI URL."""
    ssh: str
    """Command that forwards a port of a laptop to the server."""


def access(
    run_id: str, endpoint: Endpoint, model: str, *, chats: bool, length: str = "max_tokens"
) -> EndpointAccess:
    """Return the examples for a model. ``length`` names Triton's input for the most output tokens."""
    url, path = endpoint.openai_url, "chat/completions" if chats else "completions"
    asked = {"messages": [{"role": "user", "content": _QUESTION}]} if chats else {"prompt": _QUESTION}
    body: dict[str, object] = {"model": model, **asked, "max_tokens": _TOKENS}
    if url is None:
        url, path = f"{endpoint.scheme}://{endpoint.http}", f"v2/models/{model}/generate"
        body = {"text_input": _QUESTION, length: _TOKENS}
    file = endpoint.certificate_file
    trusted = "" if file is None else f" --cacert {shlex.quote(file)}"
    curl = [f"curl -sS{trusted} {shlex.quote(f'{url}/{path}')}", "-H 'Content-Type: application/json'"]
    if endpoint.key_file is not None:
        # The key comes from a file, because all users of the machine can see arguments in 'ps'.
        curl.append(f'-H @<(echo "Authorization: Bearer $(cat {shlex.quote(endpoint.key_file)})")')
    return EndpointAccess(
        run_id,
        endpoint.host,
        endpoint.openai_url,
        endpoint.http if endpoint.is_triton else None,
        endpoint.grpc if endpoint.is_triton else None,
        model,
        endpoint.key_file,
        endpoint.certificate_file,
        " \\\n  ".join([*curl, f"-d {shlex.quote(json.dumps(body))}"]),
        None if endpoint.openai_url is None else _python(endpoint, body, chats),
        f"ssh -N -L {_LOCAL_PORT}:{urlsplit(url).netloc} {getpass.getuser()}@LOGIN_NODE",
    )


def _python(endpoint: Endpoint, body: Mapping[str, object], chats: bool) -> str:
    lines = ["from openai import OpenAI"]
    key = "'none'"
    if endpoint.key_file is not None:
        lines.insert(0, "from pathlib import Path\n")
        key = f"Path({endpoint.key_file!r}).read_text().strip()"
    arguments = f"base_url={endpoint.openai_url!r}, api_key={key}"
    if endpoint.certificate_file is not None:
        lines = ["import ssl", *lines[:-1], "import httpx", lines[-1], ""]
        lines.append(f"trusted = ssl.create_default_context(cafile={endpoint.certificate_file!r})")
        arguments += ", http_client=httpx.Client(verify=trusted)"
    calls = "chat.completions" if chats else "completions"
    asked = ", ".join(f"{name}={value!r}" for name, value in body.items())
    text = "message.content" if chats else "text"
    lines += ["", f"client = OpenAI({arguments})", f"answer = client.{calls}.create({asked})"]
    return "\n".join([*lines, f"print(answer.choices[0].{text})"])
