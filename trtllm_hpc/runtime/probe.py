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
from typing import Protocol

INTERVAL_S = 5.0
"""Between two looks. A model that answered a request in between is not asked."""
FAILURES = 3
"""So many questions in a row must fail; the second and third follow at once."""
_RETRY_S = 1.0
BLIND_FACTOR = 10
"""A server whose metrics lack its steps may be busy with other answers: it gets so many times longer."""

_MOST_ASKED = 2
"""Of the usual models either the first two take text, or (with the LLM API) the last one."""

_TEXTS = re.compile(r'^nv_inference_request_success\{[^}]*model="postprocessing"[^}]*\} (\S+)$', re.MULTILINE)
_STEPS = re.compile(
    r'^nv_trt_llm_general_metrics\{[^}]*general_type="iteration_counter"[^}]*\} (\S+)$', re.MULTILINE
)


# A question to the server itself, without the proxy -------------------------------------

QUICK_S = 2.0
"""Limit on what needs no computing."""
_ANSWER_S = 3600.0
"""Limit on a connection that waits for an answer; the question is given up long before."""

PROMPT = "a"
"""What a question asks for one token."""

Connect = Callable[[float], http.client.HTTPConnection]
"""Makes a connection with this limit on each operation, in seconds."""


class QuestionRefused(Exception):
    """The server answered a question with an error."""


@dataclass(frozen=True)
class Question:
    """A request for one token, as a user makes it."""

    model: str
    path: str
    body: bytes


def call(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
    """Return the body of an answer with status 200.

    Raises:
        QuestionRefused: with another status; with the server's message.
        OSError, http.client.HTTPException: there is no answer.
    """
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read(1 << 22)
        if answer.status != 200:
            raise QuestionRefused(_message(content) or f"status {answer.status}")
        return content
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
        """Raise what came instead of an answer: QuestionRefused, or OSError."""
        if isinstance(self._error, http.client.HTTPException):
            raise ConnectionError(str(self._error)) from None
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        question = self._question
        try:
            answer = call(self._connect(_ANSWER_S), "POST", question.path, question.body)
            if b'"error"' in answer:
                raise QuestionRefused(_message(answer))
        except (OSError, http.client.HTTPException, QuestionRefused) as error:
            self._error = error
        finally:
            self._done.set()


def quickly(connect: Connect, method: str, path: str) -> bytes | None:
    """Return the body of an answer with status 200; ``None`` if there is no such answer."""
    try:
        return call(connect(QUICK_S), method, path)
    except (OSError, http.client.HTTPException, QuestionRefused):
        return None


# The probe --------------------------------------------------------------------------------


class Probed(Protocol):
    """What the probe needs of a server's endpoint; see :mod:`trtllm_hpc.runtime.servers`."""

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a new connection."""

    def questions(self, models: Sequence[str]) -> list[Question]:
        """Return a question to each model that takes text."""

    def metrics(self) -> str:
        """Return the page of metrics."""

    def others_ask(self) -> bool:
        """Return whether others may be waiting for answers."""


class Probe:
    """Asks a server, without the proxy, in a thread of its own, from ``begin`` on.

    A server that does not compute may take ``limit_s`` for an answer, and ``first_limit_s`` for the first
    one, before which it may still compile.
    """

    def __init__(self, server: Probed, limit_s: float, first_limit_s: float) -> None:
        self._server = server
        self._limit_s, self._first_limit_s = limit_s, max(limit_s, first_limit_s)
        self.fault: str | None = None
        """Why the server serves nobody any more, in a sentence."""
        self._is_proven = False
        """Whether the server has answered anybody."""
        self._is_blind = True
        """Whether the metrics lack the engine's steps."""
        self._answered: str | None = None
        self._stop = threading.Event()

    def begin(self, models: Sequence[str]) -> None:
        """Watch those of a ready server's models that take text."""
        threading.Thread(target=self._run, args=(models,), name="probe", daemon=True).start()

    def end(self) -> None:
        """Ask no more."""
        self._stop.set()

    def _run(self, models: Sequence[str]) -> None:
        watched = self._server.questions(models)
        while watched and not self._stop.wait(INTERVAL_S):
            for question in watched:
                fault = self._look(question)
                if fault is not None:
                    self.fault = fault
                    return

    def _look(self, question: Question) -> str | None:
        """Ask a model unless others were answered; returns a sentence if it serves nobody any more."""
        if self._others_were_answered():
            self._is_proven = True
            return None
        refusal = ""
        for attempt in range(FAILURES):
            if attempt and self._stop.wait(_RETRY_S):
                return None
            try:
                fault = self._ask(question)
            except QuestionRefused as error:
                refusal = str(error)
                if not self._is_proven or _is_busy(refusal) or self._others_were_answered():
                    return None  # it may want other inputs than these; or only this question was refused
                continue
            except OSError:
                return None  # the server ends, which its supervisor sees
            self._is_proven = self._is_proven or fault is None
            self._others_were_answered()  # so that this answer does not count as another's
            return fault
        return f"model {question.model} answers every request with an error ({refusal.rstrip('.')})"

    def _ask(self, question: Question) -> str | None:
        """Ask for one token, and wait as long as the engine computes; returns a sentence if it does not."""
        asked = Asked(self._server.connection, question)
        limit_s = self._limit_s if self._is_proven else self._first_limit_s
        state, since = self._progress(), time.monotonic()
        alone_since: float | None = None
        while not self._stop.is_set():
            if asked.wait(INTERVAL_S):
                asked.check()
                return None
            now = self._progress()
            if now != state:
                state, since = now, time.monotonic()
            if alone_since is None and not self._server.others_ask():
                alone_since = time.monotonic()
            silent_s = time.monotonic() - since
            if silent_s >= (BLIND_FACTOR * limit_s if self._is_blind else limit_s) or (
                # Whoever has asked since then comes after this question.
                alone_since is not None and min(silent_s, time.monotonic() - alone_since) >= limit_s
            ):
                silence = f"model {question.model} has answered nothing for {silent_s:.0f} s"
                return silence if self._is_blind else f"{silence}, and computes nothing"
        return None

    def _others_were_answered(self) -> bool:
        """Return whether texts were made of answers since the last look."""
        before, self._answered = self._answered, self._progress()[1]
        return None not in (before, self._answered) and before != self._answered

    def _progress(self) -> tuple[str | None, str | None]:
        """Return how many steps the engine has computed, and how often answers became text.

        Not how many requests were answered: Triton counts those of a decoupled model when it hands them over.
        """
        try:
            page = self._server.metrics()
        except (OSError, http.client.HTTPException, QuestionRefused):
            return None, None
        steps, texts = _STEPS.search(page), _TEXTS.search(page)
        self._is_blind = steps is None
        return steps and steps[1], texts and texts[1]


def _is_busy(message: str) -> bool:
    return "queue" in message.lower() or "maximum" in message.lower()
