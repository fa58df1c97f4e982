"""The gateway's own figures, as a page for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ROUTES = ("/v1/completions", "/v1/chat/completions")
"""Other paths are counted together: anybody may make up paths."""


class Metrics:
    """Counts what an application answers."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        about = ("trtllm_hpc_gateway_requests", "Answered requests.", ("route", "status"))
        self._answered = Counter(*about, registry=self._registry)
        self._open = Gauge(f"{about[0]}_open", "Requests still being answered.", registry=self._registry)

    async def page(self, request: Request) -> Response:
        """Answer with the page."""
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")

    def counting(self, app: ASGIApp) -> ASGIApp:
        """Return the application with its requests counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] == "/metrics":
                return await app(scope, receive, send)

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    route = scope["path"] if scope["path"] in _ROUTES else "other"
                    self._answered.labels(route, message["status"]).inc()
                await send(message)

            with self._open.track_inprogress():
                await app(scope, receive, noted)

        return counted
