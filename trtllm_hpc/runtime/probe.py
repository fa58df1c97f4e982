"""The leader's own question: does a request still get an answer, through every model that it passes?

Triton says that it is ready while a model's process is dead, and while the ranks wait for each other for
ever. So a thread asks each model that takes text for one token, as a user does, every few seconds in which
no other request was answered, and reads from the metrics whether the engine still computes.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

INTERVAL_S = 5.0
"""Between two looks. A model that answered a request in between is not asked."""
FAILURES = 3
"""So many questions in a row must fail; the second and third follow at once."""
_RETRY_S = 1.0
_QUICK_S = 2.0
"""Limit on what needs no computing."""
_WAIT_S = 3600.0
"""Limit on a connection that waits for an answer; the question is given up long before."""
BLIND_FACTOR = 10
"""A server that does not tell its steps may be busy with long answers: it gets so many times longer."""

_PROMPT = "a"
_LENGTHS = ("max_tokens", "sampling_param_max_tokens")
"""Input of upstream's text models, and of the LLM API's."""
_NO_WORDS = ("bad_words", "stop_words")
"""Not optional in old releases of upstream's ensemble."""
_NAMES = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm")
_MOST_ASKED = 2
"""Either the first two take text, or (with the LLM API) the last one."""

_TEXTS = re.compile(r'^nv_inference_request_success\{[^}]*model="postprocessing"[^}]*\} (\S+)$', re.MULTILINE)
_STEPS = re.compile(
    r'^nv_trt_llm_general_metrics\{[^}]*general_type="iteration_counter"[^}]*\} (\S+)$', re.MULTILINE
)

Connect = Callable[[float], http.client.HTTPConnection]
"""Makes a connection with this limit on each operation, in seconds."""


def most_tokens(seconds: float) -> int:
    """Return how many tokens a probe may ask for in a time, if each question is answered."""
    return _MOST_ASKED * (1 + int(seconds // INTERVAL_S))


class Refused(Exception):
    """The server answered a question with an error."""


@dataclass(frozen=True)
class _Watched:
    """A model, and what it is asked."""

    name: str
    body: bytes


class Probe:
    """Asks in a thread of its own, from ``begin`` on.

    Args:
        http, metrics: to the server's own ports, without the door.
        limit_s: how long a server that does not compute may take for an answer.
        first_limit_s: the same for the first answer, before which a server may still compile.
    """

    def __init__(self, http: Connect, metrics: Connect, limit_s: float, first_limit_s: float) -> None:
        self._http, self._metrics = http, metrics
        self._limit_s, self._first_limit_s = limit_s, max(limit_s, first_limit_s)
        self._fault: str | None = None
        self._is_proven = False
        """Whether the server has answered anybody."""
        self._is_blind = True
        """Whether the metrics do not tell the engine's steps."""
        self._answered: str | None = None
        self._stop = threading.Event()

    @property
    def fault(self) -> str | None:
        """Why the server serves nobody any more, in a sentence."""
        return self._fault

    def begin(self, models: Sequence[str]) -> None:
        """Watch those of a ready server's models that take text."""
        names = [name for name in _NAMES if name in models]
        threading.Thread(target=self._run, args=(names,), name="probe", daemon=True).start()

    def end(self) -> None:
        """Ask no more."""
        self._stop.set()

    def _run(self, names: Sequence[str]) -> None:
        bodies = {name: body for name in names if (body := self._body(name)) is not None}
        watched = [_Watched(name, body) for name, body in bodies.items()]
        while watched and not self._stop.wait(INTERVAL_S):
            for model in watched:
                fault = self._look(model)
                if fault is not None:
                    self._fault = fault
                    return

    def _look(self, model: _Watched) -> str | None:
        """Ask a model unless others were answered; returns a sentence if it serves nobody any more."""
        if self._others_were_answered():
            self._is_proven = True
            return None
        refusal = ""
        for attempt in range(FAILURES):
            if attempt and self._stop.wait(_RETRY_S):
                return None
            try:
                fault = self._ask(model)
            except Refused as error:
                refusal = str(error)
                if not self._is_proven or _is_busy(refusal) or self._others_were_answered():
                    return None  # it may want other inputs than these; or only this question was refused
                continue
            except OSError:
                return None  # the server ends, which its supervisor sees
            self._is_proven = self._is_proven or fault is None
            self._others_were_answered()  # so that this answer does not count as another's
            return fault
        return f"model {model.name} answers every request with an error ({refusal.rstrip('.')})"

    def _ask(self, model: _Watched) -> str | None:
        """Ask for one token, and wait as long as the engine computes; returns a sentence if it does not."""
        question = _Question(self._http(_WAIT_S), model)
        limit_s = self._limit_s if self._is_proven else self._first_limit_s
        state, since = self._progress(), time.monotonic()
        while not self._stop.is_set():
            if question.wait(INTERVAL_S):
                question.check()
                return None
            now = self._progress()
            if now != state:
                state, since = now, time.monotonic()
            silent_s = time.monotonic() - since
            if silent_s >= (BLIND_FACTOR * limit_s if self._is_blind else limit_s):
                return f"model {model.name} has answered nothing for {silent_s:.0f} s, and computes nothing"
        return None

    def _others_were_answered(self) -> bool:
        """Return whether texts were made of answers since the last look."""
        before, self._answered = self._answered, self._progress()[1]
        return None not in (before, self._answered) and before != self._answered

    def _progress(self) -> tuple[str | None, str | None]:
        """Return how many steps the engine has computed, and how often answers became text.

        Not how many requests a model has answered: for a decoupled Python model, such as the BLS's or the
        LLM API's, Triton counts them when it hands them over.
        """
        try:
            page = _call(self._metrics(_QUICK_S), "GET", "/metrics").decode(errors="replace")
        except (OSError, http.client.HTTPException, Refused):
            return None, None
        steps, texts = _STEPS.search(page), _TEXTS.search(page)
        self._is_blind = steps is None
        return steps and steps[1], texts and texts[1]

    def _body(self, name: str) -> bytes | None:
        """Return the question to a model by the inputs that it has; ``None`` if it takes no text."""
        try:
            found = json.loads(_call(self._http(_QUICK_S), "GET", f"/v2/models/{quote(name)}/config"))
            inputs = {str(one["name"]) for one in found["input"]}
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, Refused):
            return None
        length = next((each for each in _LENGTHS if each in inputs), None)
        if "text_input" not in inputs or length is None:
            return None
        words = {each: "" for each in _NO_WORDS if each in inputs and length == _LENGTHS[0]}
        return json.dumps({"text_input": _PROMPT, length: 1, **words}).encode()


class _Question:
    """One request, whose answer a thread waits for."""

    def __init__(self, connection: http.client.HTTPConnection, model: _Watched) -> None:
        self._connection = connection
        self._done = threading.Event()
        self._error: Exception | None = None
        self._path = f"/v2/models/{quote(model.name)}/generate_stream"
        threading.Thread(target=self._run, args=(model.body,), name="question", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def check(self) -> None:
        """Raise what came instead of an answer: Refused, or OSError."""
        if isinstance(self._error, http.client.HTTPException):
            raise ConnectionError(str(self._error)) from None
        if self._error is not None:
            raise self._error

    def _run(self, body: bytes) -> None:
        try:
            answer = _call(self._connection, "POST", self._path, body)
            if b'"error"' in answer:
                raise Refused(_message(answer))
        except (OSError, http.client.HTTPException, Refused) as error:
            self._error = error
        finally:
            self._done.set()


def _call(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        found = answer.read(1 << 22)
        if answer.status != 200:
            raise Refused(_message(found) or f"status {answer.status}")
        return found
    finally:
        connection.close()


def _message(answer: bytes) -> str:
    """Return the message of Triton's ``{"error": ...}``, also as an event of a stream."""
    text = answer.decode(errors="replace").strip().removeprefix("data:").strip()
    try:
        return str(json.loads(text)["error"]).strip()
    except (ValueError, KeyError, TypeError):
        return text[:200]


def _is_busy(message: str) -> bool:
    """Return whether a full queue refused the question."""
    return "queue" in message.lower() or "maximum" in message.lower()
