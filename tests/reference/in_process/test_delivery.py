"""Delivery between an engine and a Triton that both stand in the test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.delivery import Delivery
from trtllm_hpc.reference.generation import Cancelled, GenerationRequest, Listener, Progress, QueueFull
from trtllm_hpc.reference.requests import Part

pytestmark = pytest.mark.model

FINAL = 1
WANTED = frozenset({"output_ids", "batch_index"})


class Error:
    INVALID_ARG, UNAVAILABLE, CANCELLED = "INVALID_ARG", "UNAVAILABLE", "CANCELLED"

    def __init__(self, message: str, code: str) -> None:
        self.message = message
        self.code = code


class Response:
    def __init__(self, tensors: Sequence[Any] = (), error: Error | None = None) -> None:
        self.tensors = dict(tensors)
        self.error = error


class Tensor:
    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> tuple[str, Any]:
        return name, tensor.tolist()


class Triton:
    """What is used of ``triton_python_backend_utils``."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    TritonError = Error
    InferenceResponse = Response
    Tensor = Tensor


@dataclass
class Sender:
    """A client at the other end of a response sender."""

    sent: queue.SimpleQueue[tuple[Response, int]] = field(default_factory=queue.SimpleQueue)
    is_gone: bool = False
    is_used_up: bool = False

    def send(self, response: Response, flags: int) -> None:
        assert not self.is_used_up, "nothing may follow the final response"
        self.is_used_up = flags == FINAL
        self.sent.put((response, flags))

    def is_cancelled(self) -> bool:
        assert not self.is_used_up, "Triton has forgotten the request"
        return self.is_gone

    def next(self) -> tuple[Response, int]:
        return self.sent.get(timeout=5)

    def next_error(self) -> tuple[Error, int]:
        response, flags = self.next()
        assert response.error is not None
        return response.error, flags


class Engine:
    """Keeps what is submitted, and answers when the test says so."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.cancelled: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()
        self.is_full = False

    def submit(self, requests: Sequence[GenerationRequest], listeners: Sequence[Listener]) -> list[int]:
        if self.is_full:
            raise QueueFull("The queue is full.")
        first = len(self.listeners)
        self.listeners.extend(listeners)
        return list(range(first, len(self.listeners)))

    def cancel(self, ticket: int, *, keep: bool) -> None:
        self.cancelled.put((ticket, keep))


class Setup:
    def __init__(self) -> None:
        self.engine = Engine()
        self.lengths: list[tuple[int, int]] = []
        self.delivery = Delivery(
            self.engine,  # type: ignore[arg-type]
            Triton,
            cancellation_check_s=0.01,
            observe=lambda prompt, answer: self.lengths.append((prompt, answer)),
        )

    def accept(self, *parts: Part, request_id: str = "") -> Sender:
        sender = Sender()
        self.delivery.accept(sender, request_id, parts, WANTED)
        return sender


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    yield made
    made.delivery.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sender-")]


def part(index: int | None = None, *, streaming: bool = True) -> Part:
    return Part(GenerationRequest((1, 2, 3), 5, streaming=streaming), index)


def token(value: int, *, is_final: bool = False) -> Progress:
    return Progress(((value,),), ((0.0,),), (0.0,), is_final)


def test_answers_keep_their_order_and_the_last_is_marked(setup: Setup) -> None:
    sender = setup.accept(part())
    for value in range(50):
        setup.engine.listeners[0](token(value, is_final=value == 49))
    found = [sender.next() for _ in range(50)]
    assert [response.tensors["output_ids"] for response, _ in found] == [[[[value]]] for value in range(50)]
    assert [flags for _, flags in found] == [0] * 49 + [FINAL]
    assert setup.lengths == [(3, 50)]


def test_last_answer_of_a_batch_is_that_of_the_last_prompt_to_end(setup: Setup) -> None:
    sender = setup.accept(part(0), part(1))
    setup.engine.listeners[1](token(7, is_final=True))
    response, flags = sender.next()
    assert (response.tensors["batch_index"], flags) == ([[1]], 0)
    setup.engine.listeners[0](RequestFailed("The model failed."))
    error, flags = sender.next_error()
    assert (error.message, flags) == ("The model failed.", FINAL)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestFailed("No."), "INVALID_ARG"),
        (Cancelled("Gone."), "CANCELLED"),
        (QueueFull("Later."), "UNAVAILABLE"),
    ],
)
def test_errors_have_tritons_codes(setup: Setup, error: RequestFailed, code: str) -> None:
    sender = setup.accept(part())
    setup.engine.listeners[0](error)
    assert sender.next_error()[0].code == code


def test_full_queue_is_answered_at_once(setup: Setup) -> None:
    setup.engine.is_full = True
    error, flags = setup.accept(part()).next_error()
    assert (error.code, flags) == ("UNAVAILABLE", FINAL)


def test_client_that_goes_away_cancels_every_part_without_keeping_anything(setup: Setup) -> None:
    sender = setup.accept(part(0), part(1))
    sender.is_gone = True
    assert [setup.engine.cancelled.get(timeout=5) for _ in range(2)] == [(0, False), (1, False)]


def test_client_that_triton_knows_nothing_of_keeps_no_other_from_being_looked_at(setup: Setup) -> None:
    asked = threading.Event()

    class Lost(Sender):
        def is_cancelled(self) -> bool:
            asked.set()
            raise RuntimeError("Triton has forgotten the request")

    setup.delivery.accept(Lost(), "", [part()], WANTED)
    assert asked.wait(5)
    setup.accept(part()).is_gone = True
    assert setup.engine.cancelled.get(timeout=5) == (1, False)


def test_stop_cancels_what_has_the_id_and_keeps_the_tokens(setup: Setup) -> None:
    setup.accept(part(), request_id="a")
    setup.accept(part(), request_id="b")
    sender = Sender()
    setup.delivery.stop(sender, "b")
    response, flags = sender.next()
    assert (response.tensors, response.error, flags) == ({}, None, FINAL)
    assert setup.engine.cancelled.get(timeout=5) == (1, True)
    assert setup.engine.cancelled.empty()


def test_stop_needs_an_id_but_it_may_be_unknown(setup: Setup) -> None:
    known, unknown = Sender(), Sender()
    setup.accept(part())
    setup.delivery.stop(known, "")
    setup.delivery.stop(unknown, "gone already")
    assert "needs a request id" in known.next_error()[0].message
    assert unknown.next()[0].error is None
    assert setup.engine.cancelled.empty()


def test_client_gets_an_error_where_no_tensor_can_be_made(setup: Setup) -> None:
    sender = setup.accept(part())
    setup.engine.listeners[0](Progress((), (), (), is_final=True))
    error, flags = sender.next_error()
    assert "could not be made" in error.message
    assert flags == FINAL
