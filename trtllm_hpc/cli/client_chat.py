"""``trtllm-hpc client --chat`` without a prompt: a talk on the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

import click

from trtllm_hpc.cli.client_run import Settings
from trtllm_hpc.client.connect import Target
from trtllm_hpc.client.request import Message
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.errors import InvalidRequest, RequestFailed
from trtllm_hpc.logs.reading import for_output
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.endpoint import follower_of

_PROMPT = "> "


def talk(target: Target, settings: Settings, run: RunPaths | None) -> None:
    """Ask what is typed, line by line, with all that was said before, until Ctrl-D.

    Raises RequestFailed if the server does not answer at all, or has no chat.
    """
    follow = None if run is None else follower_of(run)
    with Client(
        target,
        settings.model,
        protocol="openai",
        timeout_s=settings.timeout_seconds,
        follow=follow,
    ) as client:
        said = settings.messages("")[:-1]
        click.echo(f"{client.model.name}: Ctrl-C ends an answer, Ctrl-D the talk.", err=True)
        while (question := _question()) is not None:
            if question.strip():
                said += _exchange(client, settings, [*said, {"role": "user", "content": question}])


def _question() -> str | None:
    """Return the next line; empty after Ctrl-C, ``None`` at the end."""
    with suppress(ImportError):
        import_module("readline")  # gives input() a history and the arrow keys
    try:
        return input(_PROMPT).encode(errors="replace").decode()
    except EOFError:
        click.echo()
        return None
    except KeyboardInterrupt:
        click.echo()
        return ""


def _exchange(client: Client, settings: Settings, messages: list[Message]) -> list[Message]:
    """Show the answer as it comes, and return the question with it; nothing if there is none."""
    parts: list[str] = []

    def show(text: str) -> None:
        parts.append(text)
        sys.stdout.write(for_output(text))
        sys.stdout.flush()

    try:
        client.chat(messages, on_text=show, **settings.options, inputs=settings.inputs)
    except KeyboardInterrupt:
        click.echo(" (ended)", nl=False)
    except InvalidRequest:
        raise
    except RequestFailed as error:
        if parts:
            click.echo()
        click.echo(f"error: {error}", err=True)
        return []
    click.echo()
    return [messages[-1], {"role": "assistant", "content": "".join(parts)}] if parts else []
