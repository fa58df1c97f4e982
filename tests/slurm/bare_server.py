"""A server of OpenAI's protocol that gives one answer to everything: ``bare_server.py ADDRESS PORT``.

For tests of Slurm, in which nobody asks it but what looks whether it is ready.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = b'{"object": "list", "data": [{"id": "bare"}], "choices": [{"index": 0, "text": "so"}]}'


class Answers(BaseHTTPRequestHandler):
    """The one answer."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Read the request and answer."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    do_POST = do_GET


if __name__ == "__main__":
    ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Answers).serve_forever()
