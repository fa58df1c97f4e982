"""The HTTP endpoint of a server itself, without the door: is it ready, and does it answer a question?"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from trtllm_hpc.runtime.served_model import Chat

QUICK_S = 2.0
"""Limit on what needs no computing."""
_ANSWER_S = 3600.0
"""Limit on a connection that waits for an answer; the question is given up long before."""

_ESTABLISHED = "01"
"""``TCP_ESTABLISHED`` in /proc/net/tcp."""
_PROMPT = "a"
_TOKENS = (1, 2, 3, 4)
"""A prompt for which kv_cache_aware needs no tokenizer, which the front of 1.2.1 would get from the Hub."""
_LENGTHS = ("max_tokens", "sampling_param_max_tokens")
"""Input of upstream's text models, and of the LLM API's."""
_NO_WORDS = ("bad_words", "stop_words")
"""Not optional in old releases of upstream's ensemble."""
_TEXT_MODELS = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm")

Connect = Callable[[float], http.client.HTTPConnection]
"""Makes a connection with this limit on each operation, in seconds."""


class Refused(Exception):
    """The server answered a question with an error."""


@dataclass(frozen=True)
class Question:
    """A request for one token, as a user makes it."""

    model: str
    path: str
    body: bytes | None
    """``None`` for a GET request."""


class ServerHttp(Protocol):
    """What a leader needs of its server."""

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a new connection to the endpoint."""

    def metrics(self) -> str:
        """Return the page of metrics; empty where none may be read. Raises as ``call`` does."""

    def others_ask(self) -> bool:
        """Return whether others than one question wait for an answer; true where that cannot be told."""

    def ready_models(self) -> list[str] | None:
        """Return the models' names once the server and all of them are ready; ``None`` before."""

    def not_ready(self) -> str:
        """Return in a few words what is not ready."""

    def questions(self, models: Sequence[str]) -> list[Question]:
        """Return a question to each of the models that takes text."""


def call(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
    """Return the body of an answer with status 200.

    Raises:
        Refused: with another status; with the server's message.
        OSError, http.client.HTTPException: there is no answer.
    """
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        found = answer.read(1 << 22)
        if answer.status != 200:
            raise Refused(_message(found) or f"status {answer.status}")
        return found
    finally:
        connection.close()


def _message(answer: bytes) -> str:
    """Return the message of Triton's ``{"error": ...}``, also as an event of a stream, or of OpenAI's."""
    text = answer.decode(errors="replace").strip().removeprefix("data:").strip()
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error).strip()
    except (ValueError, KeyError, TypeError):
        return text[:200]


class Asked:
    """A question on its way, whose answer a thread waits for."""

    def __init__(self, connect: Connect, question: Question) -> None:
        self._connect, self._question = connect, question
        self._done = threading.Event()
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="question", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the answer; returns whether there is one, or never will be."""
        return self._done.wait(timeout_s)

    def check(self) -> None:
        """Raise what came instead of an answer: Refused, or OSError."""
        if isinstance(self._error, http.client.HTTPException):
            raise ConnectionError(str(self._error)) from None
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        question = self._question
        try:
            method = "GET" if question.body is None else "POST"
            answer = call(self._connect(_ANSWER_S), method, question.path, question.body)
            if b'"error"' in answer:
                raise Refused(_message(answer))
        except (OSError, http.client.HTTPException, Refused) as error:
            self._error = error
        finally:
            self._done.set()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, file: Path, timeout_s: float) -> None:
        super().__init__("triton", timeout=timeout_s)
        self._file = file

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._file))


@dataclass(frozen=True)
class TritonHttp:
    """Triton."""

    address: str
    port: int
    metrics_port: int
    sockets: Path | None = None
    """Folder of its Unix sockets; ``None`` if it listens on the network."""

    def ready_models(self) -> list[str] | None:
        """Return the models' names once the server and all of them are ready; ``None`` before."""
        if self._ask("GET", "/v2/health/ready") is None:
            return None
        states = self._model_states()
        if not states or any(state != "READY" for state in states.values()):
            return None
        return sorted(states)

    def not_ready(self) -> str:
        """Return the models that are not ready."""
        waiting = sorted(name for name, state in self._model_states().items() if state != "READY")
        return f"not READY: {', '.join(waiting)}" if waiting else "the server does not answer"

    def questions(self, models: Sequence[str]) -> list[Question]:
        """Return a question to each of the usual models, by the inputs that it has."""
        found = []
        for name in _TEXT_MODELS:
            body = self._body(name) if name in models else None
            if body is not None:
                found.append(Question(name, f"/v2/models/{quote(name)}/generate_stream", body))
        return found

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a new connection to the endpoint."""
        if self.sockets is not None:
            return _UnixConnection(self.sockets / "http", timeout_s)
        return http.client.HTTPConnection(self.address, self.port, timeout=timeout_s)

    def metrics(self) -> str:
        """Return the page of metrics."""
        connection: http.client.HTTPConnection
        if self.sockets is not None:
            connection = _UnixConnection(self.sockets / "metrics", QUICK_S)
        else:
            connection = http.client.HTTPConnection(self.address, self.metrics_port, timeout=QUICK_S)
        return call(connection, "GET", "/metrics").decode(errors="replace")

    def others_ask(self) -> bool:
        """Return true: the door's connections over gRPC stay open, whether anybody asks or not."""
        return True

    def _model_states(self) -> dict[str, str]:
        """Return each model's state from the repository index; nothing if the server does not answer."""
        try:
            index = json.loads(self._ask("POST", "/v2/repository/index") or b"[]")
        except ValueError:
            return {}
        return {entry["name"]: entry.get("state", "") for entry in index}

    def _ask(self, method: str, path: str) -> bytes | None:
        return _quickly(self.connection, method, path)

    def _body(self, name: str) -> bytes | None:
        """Return the question to a model by the inputs that it has; ``None`` if it takes no text."""
        try:
            found = json.loads(self._ask("GET", f"/v2/models/{quote(name)}/config") or b"{}")
            inputs = {str(one["name"]) for one in found["input"]}
        except (ValueError, KeyError, TypeError):
            return None
        length = next((each for each in _LENGTHS if each in inputs), None)
        if "text_input" not in inputs or length is None:
            return None
        words = {each: "" for each in _NO_WORDS if each in inputs and length == _LENGTHS[0]}
        return json.dumps({"text_input": _PROMPT, length: 1, **words}).encode()


class OpenAIHttp:
    """A server with OpenAI's protocol, ``trtllm-serve``.

    ``/health`` answers as soon as it listens, and goes on when a rank has died. It is ready when it has made
    a token: ``/health_generate`` makes one, with the model's chat template, but not in gpt-oss's way. Where
    that route fails or does not fit, a chat model is asked for a chat, any other model for a completion.

    Args:
        place: ``address:port``.
        models: those that it has, if it does not tell.
        chat: how the model chats.
    """

    def __init__(self, place: str, models: Sequence[str] = (), *, chat: Chat = "none") -> None:
        self._place, self._known_models = place, list(models)
        self._chats = chat != "none"
        self._asked: Asked | None = None
        self._is_refused = chat == "harmony"
        """Whether ``/health_generate`` is of no use here."""
        self._says: str | None = None

    def ready_models(self) -> list[str] | None:
        """Return the name of the model once the server has made a token; ``None`` before."""
        if _quickly(self.connection, "GET", "/health") is None:
            return None
        if self._asked is None:
            self._asked = Asked(self.connection, self._question(self._models()))
        if not self._asked.wait(0):
            return None
        asked, self._asked = self._asked, None
        try:
            asked.check()
        except Refused as error:
            self._is_refused, self._says = True, str(error)
            return None
        except OSError:
            return None
        return self._models() or None

    def not_ready(self) -> str:
        """Return how far it has come."""
        if self._asked is None and self._says is None:
            return "the server does not answer"
        what = "a chat" if self._chats else "one"
        refusal = "" if self._says is None else f"; asked for {what}, it said: {self._says}"
        return f"/health answers, but no token comes{refusal}"

    def questions(self, models: Sequence[str]) -> list[Question]:
        """Return the question that has been answered."""
        return [self._question(models)]

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a new connection to the endpoint."""
        return http.client.HTTPConnection(self._place, timeout=timeout_s)

    def metrics(self) -> str:
        """Return nothing: whoever reads the statistics takes them away from a benchmark that samples them."""
        return ""

    def others_ask(self) -> bool:
        """Return whether more than one connection is open: the door keeps none without a request."""
        return _open_connections(int(self._place.rpartition(":")[2])) > 1

    def _question(self, models: Sequence[str]) -> Question:
        name = models[0] if models else ""
        if not self._is_refused:
            return Question(name, "/health_generate", None)
        chat = {"messages": [{"role": "user", "content": _PROMPT}]}
        body = {"model": name, "max_tokens": 1, **(chat if self._chats else {"prompt": _TOKENS})}
        path = "/v1/chat/completions" if self._chats else "/v1/completions"
        return Question(name, path, json.dumps(body).encode())

    def _models(self) -> list[str]:
        if self._known_models:
            return self._known_models
        try:
            listed = json.loads(_quickly(self.connection, "GET", "/v1/models") or b"{}")
            return [str(model["id"]) for model in listed["data"]]
        except (ValueError, KeyError, TypeError):
            return []


def _quickly(connect: Connect, method: str, path: str) -> bytes | None:
    """Return the body of an answer with status 200; ``None`` if there is no such answer."""
    try:
        return call(connect(QUICK_S), method, path)
    except (OSError, http.client.HTTPException, Refused):
        return None


def _open_connections(port: int) -> int:
    """Return how many clients are connected to a port of this node (the kernel's proc_net_tcp.rst)."""
    count = 0
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for row in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, *_ = row.split()
                count += local.endswith(f":{port:04X}") and state == _ESTABLISHED
    return count
