"""Test requests to the server itself, without the proxy: does it still answer?"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass

QUICK_S = 2.0
"""Timeout in seconds of a request that needs no computing."""
_ANSWER_S = 3600.0
"""Timeout in seconds of a connection that waits for an answer; the caller gives up long before."""

PROMPT = "a"
"""Prompt of a question, which asks for one token."""

Connect = Callable[[float], http.client.HTTPConnection]
"""Makes a connection; the argument is the timeout of each operation in seconds."""


class QuestionRefused(Exception):
    """The server answered a question with an error."""


@dataclass(frozen=True)
class Question:
    """A request for one token, in the form that a user's client sends."""

    model: str
    path: str
    body: bytes


def call(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
    """Return the body of an answer with status 200.

    Raises:
        QuestionRefused: the status is another; the exception has the server's message.
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
    """Return the message in an error answer of Triton (plain or an event of a stream) or of OpenAI's API."""
    text = answer.decode(errors="replace").strip().removeprefix("data:").strip()
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error).strip()
    except (ValueError, KeyError, TypeError):
        return text[:200]


class Asked:
    """A question that has been sent; a thread waits for the answer."""

    def __init__(self, connect: Connect, question: Question) -> None:
        self._connect, self._question = connect, question
        self._done = threading.Event()
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="question", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the answer; return whether the question has ended, with an answer or an error."""
        return self._done.wait(timeout_s)

    def check(self) -> None:
        """Raise QuestionRefused or OSError if the question ended without an answer."""
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
    """Return the body of an answer with status 200 within :data:`QUICK_S`; else ``None``."""
    try:
        return call(connect(QUICK_S), method, path)
    except (OSError, http.client.HTTPException, QuestionRefused):
        return None
