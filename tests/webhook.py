"""A small HTTP server that keeps the notices of `submit --notify`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Webhook(HTTPServer):
    """Keeps the notices that it receives, each with the path of its request."""

    def __init__(self, address: str) -> None:
        super().__init__((address, 0), _Handler)
        self.url = f"http://{address}:{self.server_port}/secret"
        self.notices: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.notices.append({"path": self.path, **json.loads(body)})
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def listening(address: str = "127.0.0.1") -> Iterator[Webhook]:
    """A webhook that receives notices meanwhile."""
    with Webhook(address) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
