"""Passes requests from Triton to the engine, its answers to Triton, and cancellations to the engine.

The thread that reads what the engine generated also makes tensors of it and sends them to Triton, which is
another process to wait for. If the thread falls behind, all tokens that are ready for a request go into one
response, so that the engine's speed never depends on the number of responses.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.engine_process import EngineClient, Observe
from trtllm_hpc.reference.generation import Cancelled, EngineLost, Outcome, Progress, QueueFull
from trtllm_hpc.reference.inputs import Array, padded
from trtllm_hpc.reference.requests import Part, check_parameters
from trtllm_hpc.reference.text import TextTokenizer

PADDING = -1
"""Fills up shorter beams, in tokens and log-probabilities; ``sequence_length`` is where it begins."""

_PAUSE_OF_EACH_S = 0.002
"""Least time for each open request between two questions (100 µs) whether its client is there."""

_log = logging.getLogger(__name__)


class Answer:
    """The answer to one part of a request, as far as it was sent."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.new_tokens = 0
        """Tokens sent, over all beams."""
        self._log_probs: list[tuple[float, ...]] = [()] * part.beams
        self._context_logits: Array | None = None

    def tensors(self, parts: Sequence[Progress], wanted: Collection[str]) -> dict[str, Array]:
        """The wanted output tensors of the next response by name, as far as they exist.

        Names, types and shapes are those of ``fillTritonResponse`` in
        ``inflight_batcher_llm/src/model_instance_state.cc`` of NVIDIA's tensorrtllm_backend v0.16.0, and what
        each response of a stream holds follows ``createResponse`` of TensorRT-LLM's ``llmRequest.h``: its own
        tokens and their logits, but all log-probabilities so far, and the context logits each time.

        ``output_ids`` begins with the prompt unless the request excludes it or is streaming.
        """
        part, request = self.part, self.part.request
        tokens = _joined([progress.tokens for progress in parts], part.beams)
        self.new_tokens += sum(map(len, tokens))
        if not (request.exclude_input or request.streaming):
            tokens = [(*request.prompt, *beam) for beam in tokens]
        arrays: dict[str, Array] = {
            "output_ids": np.array([padded(tokens, PADDING)], dtype=np.int32),
            "sequence_length": np.array([[len(beam) for beam in tokens]], dtype=np.int32),
        }
        if request.return_log_probs:
            new = _joined([progress.log_probs for progress in parts], part.beams)
            self._log_probs = [before + after for before, after in zip(self._log_probs, new, strict=True)]
            arrays["output_log_probs"] = np.array([padded(self._log_probs, PADDING)], dtype=np.float32)
            arrays["cum_log_probs"] = np.array([[sum(beam) for beam in self._log_probs]], dtype=np.float32)
        for name, index in (("batch_index", part.batch_index), ("sequence_index", part.sequence_index)):
            if index is not None:
                arrays[name] = np.array([[index]], dtype=np.int32)
        arrays |= self._logits(parts)
        return {name: array for name, array in arrays.items() if name in wanted}

    def _logits(self, parts: Sequence[Progress]) -> dict[str, Array]:
        found = {}
        self._context_logits = next(
            (progress.context_logits for progress in parts if progress.context_logits is not None),
            self._context_logits,
        )
        if self._context_logits is not None:
            found["context_logits"] = self._context_logits[None]
        generated = [part.generation_logits for part in parts if part.generation_logits is not None]
        if generated:
            found["generation_logits"] = np.concatenate(generated, axis=1)[None, : self.part.beams]
        return found


class TextAnswer(Answer):
    """An answer of a model that sends text: ``text_output``, with one text for each beam, instead of tokens.

    Tokens that are decoded apart from those before them may begin or end
    within a letter, and lose the space before them; so does upstream's BLS
    model. With accumulation each text of a stream is that of all tokens so far.
    """

    def __init__(
        self, part: Part, *, tokenizer: TextTokenizer, skip_special_tokens: bool, accumulates: bool
    ) -> None:
        super().__init__(part)
        self._decode = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens)
        self._accumulates = accumulates
        self._tokens: list[list[int]] = [[] for _ in range(part.beams)]

    def tensors(self, parts: Sequence[Progress], wanted: Collection[str]) -> dict[str, Array]:
        """As of ``Answer``, but with the text."""
        arrays = super().tensors(parts, {"output_ids", "sequence_length", *wanted})
        rows, lengths = arrays.pop("output_ids")[0], arrays.pop("sequence_length")[0]
        new = [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]
        if self._accumulates:
            self._tokens = [before + after for before, after in zip(self._tokens, new, strict=True)]
            new = self._tokens
        texts = np.array([self._decode(tokens).encode() for tokens in new], dtype=np.object_)
        return {"text_output": texts, **arrays}


def _joined(parts: Sequence[tuple[tuple[Any, ...], ...]], beams: int) -> list[tuple[Any, ...]]:
    return [tuple(itertools.chain.from_iterable(rows)) for rows in zip(*parts, strict=True)][:beams]


@dataclass(eq=False)
class _OpenRequest:
    sender: Any
    request_id: str
    wanted: Collection[str]
    tickets: Sequence[int]
    open_parts: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the sender is used, which must not happen after the last response."""

    @property
    def is_closed(self) -> bool:
        return self.open_parts == 0


class Delivery:
    """Submits requests to the engine, sends the answers, and checks for disconnected clients.

    ``triton`` is the module ``triton_python_backend_utils``, which exists only inside Triton; ``observe`` is
    called with the lengths of each finished sequence, before its last response is sent.
    """

    def __init__(
        self,
        engine: EngineClient,
        triton: Any,
        *,
        cancellation_check_s: float,
        observe: Observe = lambda prompt, answer: None,
        make_answer: Callable[[Part], Answer] = Answer,
    ) -> None:
        self._engine = engine
        self._make_answer = make_answer
        self._triton = triton
        self._observe = observe
        self._check_s = cancellation_check_s
        self._tickets = itertools.count()
        self._answers: dict[int, tuple[_OpenRequest, Answer]] = {}
        """By ticket, until the last outcome."""
        self._open: set[_OpenRequest] = set()
        self._open_lock = threading.Lock()
        self._lost: EngineLost | None = None
        """Why the engine is gone; guarded by ``_open_lock``."""
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="cancellations", daemon=True)
        self._watcher.start()

    def accept(self, sender: Any, request_id: str, parts: Sequence[Part], wanted: Collection[str]) -> None:
        """Submit the parts of a Triton request, whose answers go to its response sender.

        A request without parts stops those with the same id.
        """
        if not parts:
            self._stop(sender, request_id)
            return
        tickets = [next(self._tickets) for _ in parts]
        open_request = _OpenRequest(sender, request_id, wanted, tickets, len(parts))
        for ticket, part in zip(tickets, parts, strict=True):
            self._answers[ticket] = open_request, self._make_answer(part)
        with self._open_lock:
            self._open.add(open_request)
            lost = self._lost
        if lost is not None:
            self._fail(open_request, lost)
            return
        self._engine.submit(tickets, [part.request for part in parts])

    def hear(self, outcomes: Mapping[int, Sequence[Outcome]]) -> None:
        """Send what the engine generated, by ticket and oldest first."""
        for ticket, ready in outcomes.items():
            open_request, answer = self._answers[ticket]
            if isinstance(ready[-1], RequestFailed) or ready[-1].is_final:
                del self._answers[ticket]
            self._deliver(open_request, answer, ready)

    def _stop(self, sender: Any, request_id: str) -> None:
        """Stop the requests with this id; each gets what was generated so far.

        The stop request itself gets an empty answer, whether or not there was a request with that id.
        """
        if not request_id:
            missing = RequestFailed("stop=true needs a request id: that of the request to be stopped.")
            _refuse(sender, missing, self._triton)
            return
        for open_request in self._open_requests():
            if open_request.request_id == request_id:
                self._cancel(open_request, keep=True)
        sender.send(
            self._triton.InferenceResponse([]), flags=self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        )

    def fail_all(self, error: EngineLost) -> None:
        """Answer all open requests with an error, and those that still come: the engine is gone."""
        with self._open_lock:
            self._lost = error
        for open_request in self._open_requests():
            self._fail(open_request, error)

    def close(self) -> None:
        """End the thread; the engine must have stopped."""
        self._closing.set()
        self._watcher.join()

    def _open_requests(self) -> list[_OpenRequest]:
        with self._open_lock:
            return list(self._open)

    def _cancel(self, open_request: _OpenRequest, *, keep: bool) -> None:
        for ticket in open_request.tickets:
            self._engine.cancel(ticket, keep=keep)

    def _deliver(self, open_request: _OpenRequest, answer: Answer, ready: Sequence[Outcome]) -> None:
        """Send what is ready, whatever happens: the next answers must still be sent."""
        try:
            parts = [outcome for outcome in ready if isinstance(outcome, Progress)]
            if parts:
                self._respond(open_request, answer, parts)
            if isinstance(ready[-1], RequestFailed):
                self._fail(open_request, ready[-1])
        except Exception as error:  # noqa: BLE001 - whatever Triton raises, its client must hear of it
            _log.exception("an answer could not be sent")
            with suppress(Exception):
                self._fail(open_request, RequestFailed(f"The answer could not be sent: {error}"))

    def _respond(self, open_request: _OpenRequest, answer: Answer, parts: Sequence[Progress]) -> None:
        is_last = parts[-1].is_final
        arrays = answer.tensors(parts, open_request.wanted)
        tensors = [self._triton.Tensor(name, array) for name, array in arrays.items()]
        if is_last:
            self._observe(len(answer.part.request.prompt), answer.new_tokens)
        with open_request.lock:
            if not open_request.is_closed:
                self._send_one(open_request, self._triton.InferenceResponse(tensors), ended_parts=is_last)

    def _fail(self, open_request: _OpenRequest, error: RequestFailed) -> None:
        """Answer the whole request with an error: what is left of its other parts is not sent."""
        with open_request.lock:
            if not open_request.is_closed:
                if open_request.open_parts > 1:
                    self._cancel(open_request, keep=False)
                self._send_one(
                    open_request, _refusal(error, self._triton), ended_parts=open_request.open_parts
                )

    def _send_one(self, open_request: _OpenRequest, response: Any, *, ended_parts: int) -> None:
        is_last = open_request.open_parts == ended_parts
        flags = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
        open_request.sender.send(response, flags=flags)
        # Only now: if it could not be sent, an error may follow.
        open_request.open_parts -= ended_parts
        if is_last:
            with self._open_lock:
                self._open.discard(open_request)

    def _watch(self) -> None:
        asked = 0
        while not self._closing.wait(max(self._check_s, asked * _PAUSE_OF_EACH_S)):
            requests = self._open_requests()
            asked = len(requests)
            for open_request in requests:
                try:
                    if self._is_cancelled(open_request):
                        self._cancel(open_request, keep=False)
                except Exception:  # noqa: BLE001 - after any error the others must be checked
                    _log.exception("cannot ask Triton whether a client disconnected")

    def _is_cancelled(self, open_request: _OpenRequest) -> bool:
        """Ask Triton, unless an answer is being sent now; the next check asks again then."""
        if not open_request.lock.acquire(blocking=False):
            return False
        try:
            return not open_request.is_closed and bool(open_request.sender.is_cancelled())
        finally:
            open_request.lock.release()


def submit(
    triton_requests: Sequence[Any], triton: Any, read: Callable[[Any], tuple[Delivery, Sequence[Part]]]
) -> None:
    """Have Triton requests answered, each by the delivery that ``read`` returns with the request's parts.

    A request that ``read`` refuses is answered with the reason.
    """
    for request in triton_requests:
        sender = request.get_response_sender()
        try:
            check_parameters(request)
            delivery, parts = read(request)
        except RequestFailed as error:
            _refuse(sender, error, triton)
            continue
        delivery.accept(sender, request.request_id(), parts, frozenset(request.requested_output_names()))


def _refuse(sender: Any, error: RequestFailed, triton: Any) -> None:
    """Answer a Triton request with an error and nothing else."""
    sender.send(_refusal(error, triton), flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _refusal(error: RequestFailed, triton: Any) -> Any:
    kinds = triton.TritonError
    if isinstance(error, QueueFull | EngineLost):
        code = kinds.UNAVAILABLE
    else:
        code = kinds.CANCELLED if isinstance(error, Cancelled) else kinds.INVALID_ARG
    return triton.InferenceResponse(error=kinds(error.message, code))
