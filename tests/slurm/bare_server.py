"""A server of OpenAI's protocol that gives one answer to everything: ``bare_server.py HOST PORT [SECONDS]``.

For tests of Slurm, in which nobody asks it but what looks whether it is ready. With SECONDS it also streams,
a token after each such pause.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = b'{"object": "list", "data": [{"id": "bare"}], "choices": [{"index": 0, "text": "so"}]}'


class Answers(BaseHTTPRequestHandler):
    """The one answer."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Read the request and answer."""
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self.send_response(200)
        if len(sys.argv) > 3 and asked.get("stream"):
            self._stream(asked["max_tokens"], float(sys.argv[3]))
            return
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    do_POST = do_GET

    def _stream(self, tokens: int, pause_s: float) -> None:
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for token in range(tokens):
            self.wfile.write(b'data: {"choices": [{"index": 0, "text": " %d"}]}\n\n' % token)
            time.sleep(pause_s)
        self.wfile.write(b"data: [DONE]\n\n")


if __name__ == "__main__":
    ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Answers).serve_forever()
