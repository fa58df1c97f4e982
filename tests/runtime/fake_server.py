"""A stand-in for tritonserver: its command line, its two readiness endpoints, its signals.

Standard library only. ``FAKE`` sets its behaviour, in words separated by
spaces; what it was started with goes into the file ``FAKE_STARTED``.
"""

from __future__ import annotations

import http.server
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_OPTIONS = (
    *("model-repository", "http-port", "grpc-port", "metrics-port", "http-address", "grpc-address"),
    *(
        "metrics-address",
        "backend-config",
        "backend-directory",
        "model-control-mode",
        "load-model",
        "allow-http",
    ),
    *(
        "allow-grpc",
        "allow-metrics",
        "allow-gpu-metrics",
        "disable-auto-complete-config",
        "exit-timeout-secs",
    ),
)
"""Some of tritonserver's (``src/command_line_parser.cc``); others are refused, as it refuses what it does not
know."""
BEHAVIOUR = os.environ.get("FAKE", "").split()
LOADING_S = 0.5


def port() -> int | None:
    options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    return int(options["--http-port"]) if "--http-port" in options else None


class Handler(http.server.BaseHTTPRequestHandler):
    """Health and repository index, as Triton answers them."""

    started = time.monotonic()
    asked = 0

    def do_GET(self) -> None:
        if self.path.endswith("/config"):
            names = ("text_input", "max_tokens", "bad_words", "stop_words")
            self._answer(200, json.dumps({"input": [{"name": name} for name in names]}).encode())
            return
        # Triton is live, and its port open, before its models are.
        ready = self.path == "/v2/health/ready" and time.monotonic() - self.started > LOADING_S
        self._answer(200 if ready else 400, b"")

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.endswith("/generate_stream"):
            self._generate(json.loads(asked))
            return
        state = "LOADING" if "stuck" in BEHAVIOUR else "READY"
        index = [{"name": "ensemble", "state": "READY"}, {"name": "tensorrt_llm", "state": state}]
        self._answer(200 if self.path == "/v2/repository/index" else 404, json.dumps(index).encode())

    def _generate(self, request: dict[str, object]) -> None:
        """Answer the leader's probe; ``dies`` after the first one."""
        Handler.asked += 1
        if "dies" in BEHAVIOUR and Handler.asked > 1:
            body = json.dumps({"error": "Stub process 'preprocessing_0_0' is not healthy."})
            self._answer(400, f"data: {body}\n\n".encode())
        else:
            wanted = {"text_input", "max_tokens", "bad_words", "stop_words"}
            self._answer(200 if set(request) == wanted else 400, b'data: {"text_output": "b"}\n\n')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the log is the test's."""


def main() -> None:
    """Serve until SIGTERM, or as ``FAKE`` says."""
    for word in sys.argv[1:]:
        if word.startswith("--") and word[2:].split("=")[0] not in _OPTIONS:
            sys.exit(f"{sys.argv[0]}: unrecognized option '{word}'")
    children = []
    if "children" in BEHAVIOUR:
        # One in a session of its own: no signal to a group reaches it.
        children = [subprocess.Popen(["sleep", "120"], start_new_session=True).pid]
    prefix = os.environ.get("FAKE_PREFIX")
    if prefix:
        Path(f"/dev/shm/{prefix}region").write_text("x")
    facts = {
        "pid": os.getpid(),
        "children": children,
        "argv": sys.argv[1:],
        "environment": dict(os.environ),
        "stack": resource.getrlimit(resource.RLIMIT_STACK)[0],
    }
    aside = Path(os.environ["FAKE_STARTED"] + ".new")
    aside.write_text(json.dumps(facts))
    aside.replace(os.environ["FAKE_STARTED"])
    if "says-why" in BEHAVIOUR:
        Path(os.environ["TRTLLM_HPC_RANK_FAILURE"]).write_text("rank 0 was silent for 10 s\n")
    for word in BEHAVIOUR:
        if word.startswith("exit="):
            time.sleep(0.2)
            sys.exit(int(word.removeprefix("exit=")))
    wait_until_stopped()


def wait_until_stopped() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if "deaf" in BEHAVIOUR else stop.set())
    number = port()
    if number is not None and "mute" not in BEHAVIOUR:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", number), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    stop.wait(120)


if __name__ == "__main__":
    main()
