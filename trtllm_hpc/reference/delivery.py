"""Passes answers from the engine to Triton, and cancellations from Triton to the engine.

The engine's thread only puts its results into a queue. A few threads of this
module make tensors of them and send these to Triton, for which they must wait
for another process. All answers to one request go through the same thread, so
that they keep their order.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.generation import Cancelled, Progress, QueueFull
from trtllm_hpc.reference.requests import Part

if TYPE_CHECKING:
    import torch

    from trtllm_hpc.reference.leader import Leader

PADDING = -1
"""Fills up shorter beams, in tokens and log-probabilities; ``sequence_length`` is where it begins."""


def output_tensors(part: Part, progress: Progress, wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """The wanted output tensors by name, as far as they exist.

    ``output_ids`` holds prompt and answer, or only the new tokens if the
    request excludes its prompt or is streaming.

    Names, types and shapes are those of ``fillTritonResponse`` in
    ``inflight_batcher_llm/src/model_instance_state.cc`` of NVIDIA's
    tensorrtllm_backend v0.16.0.
    """
    import torch

    request = part.request
    kept = () if request.exclude_input or request.streaming else request.prompt
    tokens = [(*kept, *beam) for beam in progress.tokens[: part.beams]]
    tensors = {
        "output_ids": torch.tensor([_padded(tokens)], dtype=torch.int32),
        "sequence_length": torch.tensor([[len(beam) for beam in tokens]], dtype=torch.int32),
    }
    if request.return_log_probs:
        probabilities = _padded(progress.log_probs[: part.beams])
        tensors["output_log_probs"] = torch.tensor([probabilities], dtype=torch.float32)
        tensors["cum_log_probs"] = torch.tensor([progress.cumulative[: part.beams]], dtype=torch.float32)
    for name, index in (("batch_index", part.batch_index), ("sequence_index", part.sequence_index)):
        if index is not None:
            tensors[name] = torch.tensor([[index]], dtype=torch.int32)
    if progress.context_logits is not None:
        tensors["context_logits"] = progress.context_logits.float().contiguous()[None]
    if progress.generation_logits is not None:
        tensors["generation_logits"] = progress.generation_logits[: part.beams].float().contiguous()[None]
    return {name: tensor for name, tensor in tensors.items() if name in wanted}


def _padded(beams: Sequence[Sequence[float]]) -> list[list[float]]:
    longest = max(map(len, beams))
    return [[*beam, *[PADDING] * (longest - len(beam))] for beam in beams]


SENDERS = 4
"""Number of threads that send answers: while one waits for Triton, another makes its tensors."""

_log = logging.getLogger(__name__)

Outcome = Progress | RequestFailed
Observe = Callable[[int, int], None]
"""Called with the tokens of prompt and answer of each sequence that ended without an error."""


@dataclass(eq=False)
class _OpenRequest:
    """One Triton request that is being answered."""

    sender: Any
    request_id: str
    wanted: Collection[str]
    open_parts: int
    tickets: Sequence[int] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the sender is used, which must not happen after the last answer."""

    @property
    def is_closed(self) -> bool:
        return self.open_parts == 0


@dataclass(eq=False)
class _PartListener:
    """Receives the answer to one part of a request from the engine."""

    open_request: _OpenRequest
    part: Part
    results: _Results
    new_tokens: int = 0

    def __call__(self, outcome: Outcome) -> None:
        self.results.put((self, outcome))


_Results = queue.SimpleQueue[tuple[_PartListener, Outcome] | None]


class Delivery:
    """Submits requests to the engine, sends the answers, and checks for disconnected clients.

    Args:
        engine: the one that answers.
        triton: the module ``triton_python_backend_utils``, which exists only inside Triton.
        cancellation_check_s: seconds between two checks.
        observe: called with the lengths of each finished sequence.
    """

    def __init__(self, engine: Leader, triton: Any, *, cancellation_check_s: float, observe: Observe) -> None:
        self._engine = engine
        self._triton = triton
        self._observe = observe
        self._check_s = cancellation_check_s
        self._open: set[_OpenRequest] = set()
        self._open_lock = threading.Lock()
        self._closing = threading.Event()
        self._queues: list[_Results] = [queue.SimpleQueue() for _ in range(SENDERS)]
        self._next_queue = itertools.cycle(self._queues)
        self._threads = [
            threading.Thread(target=self._send, args=(results,), name=f"sender-{index}", daemon=True)
            for index, results in enumerate(self._queues)
        ]
        self._threads.append(threading.Thread(target=self._watch, name="cancellations", daemon=True))
        for thread in self._threads:
            thread.start()

    def accept(self, sender: Any, request_id: str, parts: Sequence[Part], wanted: Collection[str]) -> None:
        """Submit the parts of a Triton request; their answers go to its response sender."""
        open_request = _OpenRequest(sender, request_id, wanted, len(parts))
        results = next(self._next_queue)
        listeners = [_PartListener(open_request, part, results) for part in parts]
        with self._open_lock:
            self._open.add(open_request)
        try:
            open_request.tickets = self._engine.submit([part.request for part in parts], listeners)
        except RequestFailed as error:
            self._forget(open_request)
            self.refuse(sender, error)

    def refuse(self, sender: Any, error: RequestFailed) -> None:
        """Answer a request with an error and nothing else."""
        sender.send(self._error(error), flags=self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def stop(self, sender: Any, request_id: str) -> None:
        """Stop the requests with this id; each gets what was generated so far.

        The stop request itself gets an empty answer, whether or not there was
        a request with that id.
        """
        if not request_id:
            self.refuse(
                sender,
                RequestFailed("stop=true needs a request id: that of the request to be stopped."),
            )
            return
        for open_request in self._open_requests():
            if open_request.request_id == request_id:
                self._cancel(open_request, keep=True)
        sender.send(
            self._triton.InferenceResponse([]), flags=self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        )

    def close(self) -> None:
        """Send what is queued and end the threads; the engine must have stopped."""
        self._closing.set()
        for results in self._queues:
            results.put(None)
        for thread in self._threads:
            thread.join()

    def _open_requests(self) -> list[_OpenRequest]:
        with self._open_lock:
            return list(self._open)

    def _forget(self, open_request: _OpenRequest) -> None:
        with self._open_lock:
            self._open.discard(open_request)

    def _cancel(self, open_request: _OpenRequest, *, keep: bool) -> None:
        for ticket in open_request.tickets:
            self._engine.cancel(ticket, keep=keep)

    def _send(self, results: _Results) -> None:
        while (item := results.get()) is not None:
            try:
                self._deliver(*item)
            except Exception:  # noqa: BLE001 - after any error the next answers must still be sent
                _log.exception("an answer could not be sent")

    def _deliver(self, listener: _PartListener, outcome: Outcome) -> None:
        open_request, ends = listener.open_request, isinstance(outcome, RequestFailed) or outcome.is_final
        if isinstance(outcome, Progress):
            listener.new_tokens += sum(map(len, outcome.tokens[: listener.part.beams]))
            if ends:
                self._observe(len(listener.part.request.prompt), listener.new_tokens)
        response = self._response(listener, outcome)
        with open_request.lock:
            open_request.open_parts -= ends
            if open_request.is_closed:
                self._forget(open_request)
            flags = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL if open_request.is_closed else 0
            open_request.sender.send(response, flags=flags)

    def _response(self, listener: _PartListener, outcome: Outcome) -> Any:
        if isinstance(outcome, RequestFailed):
            return self._error(outcome)
        try:
            # By DLPack: the stub of this Triton release misreads NumPy 2 arrays.
            tensors = output_tensors(listener.part, outcome, listener.open_request.wanted)
            return self._triton.InferenceResponse(
                [self._triton.Tensor.from_dlpack(name, tensor) for name, tensor in tensors.items()]
            )
        except Exception as error:  # noqa: BLE001 - after any error the client must get an answer
            _log.exception("the tensors of an answer could not be made")
            return self._error(RequestFailed(f"The tensors of the answer could not be made: {error}"))

    def _error(self, error: RequestFailed) -> Any:
        kinds = self._triton.TritonError
        if isinstance(error, QueueFull):
            code = kinds.UNAVAILABLE
        else:
            code = kinds.CANCELLED if isinstance(error, Cancelled) else kinds.INVALID_ARG
        return self._triton.InferenceResponse(error=kinds(error.message, code))

    def _watch(self) -> None:
        while not self._closing.wait(self._check_s):
            for open_request in self._open_requests():
                try:
                    if self._is_cancelled(open_request):
                        self._cancel(open_request, keep=False)
                except Exception:  # noqa: BLE001 - after any error the others must be checked
                    _log.exception("cannot ask Triton whether a client disconnected")

    def _is_cancelled(self, open_request: _OpenRequest) -> bool:
        """Ask Triton, unless an answer is being sent now; the next check asks again then."""
        if not open_request.tickets or not open_request.lock.acquire(blocking=False):
            return False
        try:
            return not open_request.is_closed and bool(open_request.sender.is_cancelled())
        finally:
            open_request.lock.release()
