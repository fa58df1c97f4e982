"""Answers on their way from the engine to Triton, and cancellations on their way back.

The engine's thread only puts what it made into a queue. Making tensors of it
and handing them to Triton, which means waiting for another process, is done
by a few threads of this module. All answers to one request go through one
thread, so that they keep their order.
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
from trtllm_hpc.reference.generation import Cancelled, Progress, QueueFull, Service
from trtllm_hpc.reference.requests import Part

if TYPE_CHECKING:
    import torch


PADDING = -1
"""Fills the shorter beams, in tokens and log-probabilities; ``sequence_length`` tells where it begins."""


def output_tensors(part: Part, progress: Progress, wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """Output tensors by name, those that are wanted and that there are.

    ``output_ids`` holds prompt and answer. It holds the new tokens alone if
    the request excludes its prompt, or wants each token as it comes.
    """
    tensors = {**_tokens(part, progress), **_logits(part, progress)}
    return {name: tensor for name, tensor in tensors.items() if name in wanted}


def _tokens(part: Part, progress: Progress) -> dict[str, torch.Tensor]:
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
    return tensors


def _logits(part: Part, progress: Progress) -> dict[str, torch.Tensor]:
    tensors = {}
    if progress.context_logits is not None:
        tensors["context_logits"] = progress.context_logits.float().contiguous()[None]
    if progress.generation_logits is not None:
        tensors["generation_logits"] = progress.generation_logits[: part.beams].float().contiguous()[None]
    return tensors


def _padded(beams: Sequence[Sequence[float]]) -> list[list[float]]:
    longest = max(map(len, beams))
    return [[*beam, *[PADDING] * (longest - len(beam))] for beam in beams]


COURIERS = 4
"""Threads that send answers. While one waits for Triton another makes its tensors."""

_log = logging.getLogger(__name__)

Outcome = Progress | RequestFailed
Observe = Callable[[int, int], None]
"""Told the tokens of prompt and answer of each sequence that ended without an error."""


@dataclass(eq=False)
class _Order:
    """One Triton request that is being answered."""

    sender: Any
    request_id: str
    wanted: Collection[str]
    open_parts: int
    tickets: Sequence[int] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while Triton is told something: after the last answer the sender must not be used any more."""

    @property
    def is_closed(self) -> bool:
        return self.open_parts == 0


@dataclass(eq=False)
class _PartListener:
    """Where the engine puts the answer to one part of an order."""

    order: _Order
    part: Part
    courier: queue.SimpleQueue[tuple[_PartListener, Outcome] | None]
    new_tokens: int = 0

    def progress(self, progress: Progress) -> None:
        self.courier.put((self, progress))

    def failed(self, error: RequestFailed) -> None:
        self.courier.put((self, error))


class Delivery:
    """Submits requests to the engine, sends the answers, and looks for clients that went away.

    Args:
        service: the engine.
        triton: the module ``triton_python_backend_utils``, which exists only inside Triton.
        cancellation_check_s: seconds between two looks.
        observe: told the lengths of each finished sequence.
    """

    def __init__(
        self, service: Service, triton: Any, *, cancellation_check_s: float, observe: Observe
    ) -> None:
        self._service = service
        self._triton = triton
        self._observe = observe
        self._check_s = cancellation_check_s
        self._orders: set[_Order] = set()
        self._orders_lock = threading.Lock()
        self._closing = threading.Event()
        self._couriers: list[queue.SimpleQueue[tuple[_PartListener, Outcome] | None]] = [
            queue.SimpleQueue() for _ in range(COURIERS)
        ]
        self._next_courier = itertools.cycle(self._couriers)
        self._threads = [
            threading.Thread(target=self._carry, args=(courier,), name=f"courier-{index}", daemon=True)
            for index, courier in enumerate(self._couriers)
        ]
        self._threads.append(threading.Thread(target=self._watch, name="cancellations", daemon=True))
        for thread in self._threads:
            thread.start()

    def accept(self, sender: Any, request_id: str, parts: Sequence[Part], wanted: Collection[str]) -> None:
        """Submit the parts of a Triton request; their answers go to its response sender."""
        order = _Order(sender, request_id, wanted, len(parts))
        courier = next(self._next_courier)
        listeners = [_PartListener(order, part, courier) for part in parts]
        with self._orders_lock:
            self._orders.add(order)
        try:
            order.tickets = self._service.submit([part.request for part in parts], listeners)
        except RequestFailed as error:
            self._forget(order)
            self.refuse(sender, error)

    def refuse(self, sender: Any, error: RequestFailed) -> None:
        """Answer a request with an error and nothing else."""
        sender.send(self._error(error), flags=self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def stop(self, sender: Any, request_id: str) -> None:
        """End the requests of a client's id; each still gets what was generated.

        The request that asks for it gets an empty answer, whether or not one
        of that id is still open.
        """
        if not request_id:
            self.refuse(
                sender,
                RequestFailed("stop=true needs a request id: that of the request which is to be stopped."),
            )
            return
        for order in self._open_orders():
            if order.request_id == request_id:
                self._cancel(order, keep=True)
        sender.send(
            self._triton.InferenceResponse([]), flags=self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        )

    def close(self) -> None:
        """Send what is queued and end the threads; the engine must have stopped."""
        self._closing.set()
        for courier in self._couriers:
            courier.put(None)
        for thread in self._threads:
            thread.join()

    def _open_orders(self) -> list[_Order]:
        with self._orders_lock:
            return list(self._orders)

    def _forget(self, order: _Order) -> None:
        with self._orders_lock:
            self._orders.discard(order)

    def _cancel(self, order: _Order, *, keep: bool) -> None:
        for ticket in order.tickets:
            self._service.cancel(ticket, keep=keep)

    def _carry(self, courier: queue.SimpleQueue[tuple[_PartListener, Outcome] | None]) -> None:
        while (item := courier.get()) is not None:
            try:
                self._deliver(*item)
            except Exception:  # noqa: BLE001 - whatever is wrong with one, those behind it must still be sent
                _log.exception("an answer could not be sent")

    def _deliver(self, listener: _PartListener, outcome: Outcome) -> None:
        order, ends = listener.order, isinstance(outcome, RequestFailed) or outcome.is_final
        if isinstance(outcome, Progress):
            listener.new_tokens += sum(map(len, outcome.tokens[: listener.part.beams]))
            if ends:
                self._observe(len(listener.part.request.prompt), listener.new_tokens)
        response = self._response(listener, outcome)
        with order.lock:
            order.open_parts -= ends
            if order.is_closed:
                self._forget(order)
            flags = self._triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL if order.is_closed else 0
            order.sender.send(response, flags=flags)

    def _response(self, listener: _PartListener, outcome: Outcome) -> Any:
        if isinstance(outcome, RequestFailed):
            return self._error(outcome)
        try:
            # By DLPack: the stub of this Triton release misreads NumPy 2 arrays.
            tensors = output_tensors(listener.part, outcome, listener.order.wanted)
            return self._triton.InferenceResponse(
                [self._triton.Tensor.from_dlpack(name, tensor) for name, tensor in tensors.items()]
            )
        except Exception as error:  # noqa: BLE001 - whatever it was, the client must get some answer
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
            for order in self._open_orders():
                try:
                    if self._is_cancelled(order):
                        self._cancel(order, keep=False)
                except Exception:  # noqa: BLE001 - whatever Triton says of one, the others must be looked at
                    _log.exception("Triton does not say whether a client went away")

    def _is_cancelled(self, order: _Order) -> bool:
        """Ask Triton, unless an answer is just being sent: then the next look will tell."""
        if not order.tickets or not order.lock.acquire(blocking=False):
            return False
        try:
            return not order.is_closed and bool(order.sender.is_cancelled())
        finally:
            order.lock.release()
