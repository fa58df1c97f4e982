"""A server with OpenAI's protocol that answers as a test says, with exact bytes at exact times."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.proxy import make_certificate
from trtllm_hpc.runtime.records import Endpoint

DONE = b"data: [DONE]\n\n"


def event(
    text: str | None = None, *, usage: tuple[int, int] | None = None, reason: str | None = None
) -> bytes:
    """An event of a stream of completions."""
    choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": reason}]
    return _event({"object": "text_completion", "choices": choices}, usage)


def delta(content: str | None = None, *, role: str | None = None, **more: Any) -> bytes:
    """An event of a chat's stream."""
    change = {"role": role, "content": content, **more}
    found = {key: value for key, value in change.items() if value is not None}
    return _event({"choices": [{"index": 0, "delta": found, "finish_reason": None}]}, None)


def _event(body: dict[str, Any], usage: tuple[int, int] | None) -> bytes:
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@dataclass
class Script:
    """What the server does with each request."""

    pieces: Sequence[bytes | float] = ()
    """Sent one by one; a number is a pause in seconds."""
    body: bytes | None = None
    """Sent instead, as a whole."""
    refuses: dict[str, str] = field(default_factory=dict)
    """What is said of a key of the body that the server does not take."""
    status: int = 200
    closes_models: bool = False
    """Whether the list of models is refused like the requests."""
    models: Sequence[str] = ("one",)
    pages: dict[str, bytes] = field(default_factory=dict)
    """What else is there, by its path."""
    sessions: list[str | None] = field(default_factory=list)
    """The conversation of each request so far."""
    asked: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)
    """The path, the body and the key of each request so far."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """All headers of each request so far, by their names in lower case."""

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of the requests so far."""
        return [body for _, body, _ in self.asked]


Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _handler(script: Script) -> Handler:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            if request.path == "/v1/models" and script.closes_models:
                return web.Response(status=script.status, body=script.body)
            if request.path == "/v1/models":
                return web.json_response({"object": "list", "data": [{"id": name} for name in script.models]})
            page = script.pages.get(request.path)
            return web.Response(status=404) if page is None else web.Response(body=page)
        script.headers.append({name.lower(): value for name, value in request.headers.items()})
        script.sessions.append(request.headers.get("x-session-id"))
        script.asked.append((request.path, await request.json(), request.headers.get("Authorization", "")))
        for key in script.refuses.keys() & script.bodies[-1].keys():
            error = {"message": script.refuses[key], "type": "invalid_request_error", "param": key}
            return web.json_response({"error": error}, status=400)
        if script.body is not None:
            return web.Response(status=script.status, body=script.body)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for piece in script.pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                await reply.write(piece)
        return reply

    return handle


@contextmanager
def openai_server(script: Script, tls: Path | None = None) -> Iterator[Endpoint]:
    """Run the server in a thread, and yield its endpoint.

    With ``tls`` it serves over TLS, with a certificate that it writes into this folder.
    """
    context, certificate = None, None
    if tls is not None:
        make_certificate(RunPaths(tls), "127.0.0.1")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(RunPaths(tls).certificate_key)
        certificate = str(RunPaths(tls).certificate)
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()
    begun, ports = threading.Event(), list[int]()

    async def serve() -> None:
        runner = web.ServerRunner(web.Server(_handler(script)), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        ports.append(runner.addresses[0][1])
        begun.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert begun.wait(10)
    try:
        url = f"http{'s' if tls else ''}://127.0.0.1:{ports[0]}/v1"
        yield Endpoint(
            "1", "here", "127.0.0.1", 0, 0, 0, ["one"], 0.0, openai_url=url, certificate_file=certificate
        )
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()
