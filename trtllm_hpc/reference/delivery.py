"""Passes requests from Triton to the engine, its answers to Triton, and cancellations to the engine.

The thread that hears what the engine generated makes tensors of it and sends them. If it falls behind, all
tokens that are ready for a request go into one response.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.generation import (
    Generated,
    GenerationRequest,
    Outcome,
    QueueFull,
    RankEngine,
)
from trtllm_hpc.reference.requests import Array

CHECK_S = 0.1
"""Time between two questions to Triton (100 µs each) whether clients are still there."""

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Open:
    """A Triton request that is not answered yet."""

    sender: Any
    request_id: str
    wanted: Collection[str]
    """Names of the outputs that its client wants."""
    number: int = 0
    """By which the engine knows it."""
    request: GenerationRequest | None = None
    generated: Generated = field(default_factory=lambda: Generated((), (), False))
    """As last heard."""
    sent: int = 0
    """Tokens of it that the client has."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the sender is used, which must not happen after the last response."""
    is_answered: bool = False


class Delivery:
    """Submits requests to the engine, sends the answers, and checks for disconnected clients.

    ``triton`` is the module ``triton_python_backend_utils``, which exists only inside Triton; ``observe`` is
    called with the lengths of each finished sequence, before its last response is sent.
    """

    def __init__(self, engine: RankEngine, triton: Any, *, observe: Callable[[int, int], object]) -> None:
        self._engine = engine
        self._triton = triton
        self._observe = observe
        self._numbers = itertools.count()
        self._open: dict[int, _Open] = {}
        """By number."""
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="cancellations", daemon=True)
        self._watcher.start()

    def submit(self, request: Any, read: Callable[[Any], GenerationRequest | None]) -> None:
        """Have a Triton request answered; one that ``read`` or the engine refuses, with the reason.

        Where ``read`` returns ``None`` the request stops those with the same id.
        """
        sender, wanted = request.get_response_sender(), frozenset(request.requested_output_names())
        opened = _Open(sender, request.request_id(), wanted, next(self._numbers))
        try:
            opened.request = read(request)
            if opened.request is None:
                self._stop(opened)
                return
            self._open[opened.number] = opened
            self._engine.submit(opened.number, opened.request)
        except RequestFailed as error:
            self._fail(opened, error)

    def hear(self, number: int, outcome: Outcome) -> None:
        """Send what the engine generated, whatever happens: the next answers must still be sent."""
        opened = self._open.get(number)
        if opened is None:
            return
        try:
            if isinstance(outcome, RequestFailed):
                self._fail(opened, outcome)
            else:
                self._respond(opened, outcome)
        except Exception as error:  # noqa: BLE001 - whatever Triton raises, its client must hear of it
            _log.exception("an answer could not be sent")
            with suppress(Exception):
                self._fail(opened, RequestFailed(f"The answer could not be sent: {error}"))

    def close(self) -> None:
        """End the thread; the engine must have stopped."""
        self._closing.set()
        self._watcher.join()

    def _stop(self, stopping: _Open) -> None:
        """Stop the requests with this id; each gets what was generated so far.

        The stop request itself gets an empty answer, whether or not there was a request with that id.
        """
        if not stopping.request_id:
            raise RequestFailed("stop=true needs a request id: that of the request to be stopped.")
        for opened in list(self._open.values()):
            if opened.request_id == stopping.request_id:
                self._engine.cancel(opened.number)
                self._respond(opened, opened.generated._replace(is_final=True))
        self._send(stopping, self._triton.InferenceResponse([]), is_last=True)

    def _respond(self, opened: _Open, generated: Generated) -> None:
        request = opened.request
        with opened.lock:
            if opened.is_answered or request is None:
                return
            opened.generated = generated
            if not (generated.is_final or request.streaming):
                return
            arrays = tensors(request, opened.sent, generated)
            opened.sent = len(generated.tokens)
            response = self._triton.InferenceResponse(
                [self._triton.Tensor(name, it) for name, it in arrays.items() if name in opened.wanted]
            )
            if generated.is_final:
                self._observe(len(request.prompt), len(generated.tokens))
            self._send(opened, response, is_last=generated.is_final)

    def _fail(self, opened: _Open, error: RequestFailed, *, is_cancelled: bool = False) -> None:
        """Answer a request with an error."""
        kinds = self._triton.TritonError
        code = kinds.UNAVAILABLE if isinstance(error, QueueFull) else kinds.INVALID_ARG
        code = kinds.CANCELLED if is_cancelled else code
        with opened.lock:
            if opened.is_answered:
                return
            self._engine.cancel(opened.number)
            response = self._triton.InferenceResponse(error=kinds(error.message, code))
            self._send(opened, response, is_last=True)

    def _send(self, opened: _Open, response: Any, *, is_last: bool) -> None:
        flags = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
        opened.sender.send(response, flags=flags)
        # Only now: if it could not be sent, an error may follow.
        if is_last:
            opened.is_answered = True
            self._open.pop(opened.number, None)

    def _watch(self) -> None:
        while not self._closing.wait(CHECK_S):
            for opened in list(self._open.values()):
                try:
                    with opened.lock:
                        is_left = not opened.is_answered and opened.sender.is_cancelled()
                    if is_left:
                        error = RequestFailed("The request was cancelled.")
                        self._fail(opened, error, is_cancelled=True)
                except Exception:  # noqa: BLE001 - after any error the others must be checked
                    _log.exception("cannot ask Triton whether a client disconnected")


def tensors(request: GenerationRequest, sent: int, generated: Generated) -> dict[str, Array]:
    """The output tensors of the next response by name, when so many tokens have been sent.

    Names, types and shapes are those of ``fillTritonResponse`` in
    ``inflight_batcher_llm/src/model_instance_state.cc`` of NVIDIA's tensorrtllm_backend v0.16.0, and what
    each response of a stream holds follows ``createResponse`` of TensorRT-LLM's ``llmRequest.h``: its own
    tokens, but all log-probabilities so far. ``output_ids`` begins with the prompt unless the request
    excludes it or is streaming.
    """
    new = generated.tokens[sent:]
    tokens = new if request.exclude_input or request.streaming else [*request.prompt, *new]
    arrays: dict[str, Array] = {
        "output_ids": np.array([[tokens]], dtype=np.int32),
        "sequence_length": np.array([[len(tokens)]], dtype=np.int32),
    }
    if request.return_log_probs:
        arrays["output_log_probs"] = np.array([[generated.log_probs]], dtype=np.float32)
        arrays["cum_log_probs"] = np.array([[sum(generated.log_probs)]], dtype=np.float32)
    return arrays
