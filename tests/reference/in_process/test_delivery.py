"""Delivery between an engine and a Triton that both stand in the test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from typing import Any

import pytest

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.delivery import Delivery
from trtllm_hpc.reference.engine_process import Answers, EngineClient, Ready, Report
from trtllm_hpc.reference.generation import (
    Cancelled,
    EngineLost,
    GenerationRequest,
    Load,
    Outcome,
    Progress,
    QueueFull,
)
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


def make_tensor(name: str, array: Any) -> tuple[str, Any]:
    return name, array.tolist()


class Triton:
    """What is used of ``triton_python_backend_utils``."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    TritonError = Error
    InferenceResponse = Response
    Tensor = staticmethod(make_tensor)


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
        return self.sent.get(timeout=60)

    def next_error(self) -> tuple[Error, int]:
        response, flags = self.next()
        assert response.error is not None
        return response.error, flags


class Full(Sender):
    """There is no memory for the first response."""

    has_failed = False

    def send(self, response: Response, flags: int) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise RuntimeError("No space left in shared memory")
        super().send(response, flags)


class Engine:
    """Keeps what is submitted."""

    def __init__(self) -> None:
        self.submitted: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
        self.cancelled: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()

    def submit(self, tickets: Sequence[int], requests: Sequence[GenerationRequest]) -> None:
        self.submitted.put(tickets)

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

    def hear(self, ticket: int, *outcomes: Outcome) -> None:
        self.delivery.hear({ticket: outcomes})


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    yield made
    made.delivery.close()


def part(index: int | None = None, *, streaming: bool = True) -> Part:
    return Part(GenerationRequest((1, 2, 3), 5, streaming=streaming), index)


def token(value: int, *, is_final: bool = False) -> Progress:
    return Progress(((value,),), ((0.0,),), is_final)


def test_tokens_come_one_by_one_while_triton_keeps_up(setup: Setup) -> None:
    sender = setup.accept(part())
    for value in range(50):
        setup.hear(0, token(value, is_final=value == 49))
        response, flags = sender.next()
        assert (response.tensors["output_ids"], flags) == ([[[value]]], FINAL if value == 49 else 0)
    assert setup.lengths == [(3, 50)]


def test_tokens_that_are_ready_go_into_one_response(setup: Setup) -> None:
    sender = setup.accept(part())
    setup.hear(0, *(token(value, is_final=value == 49) for value in range(50)))
    response, flags = sender.next()
    assert (response.tensors["output_ids"], flags) == ([[list(range(50))]], FINAL)
    assert setup.lengths == [(3, 50)]


def test_reports_that_come_while_triton_is_busy_are_passed_on_together() -> None:
    ours, theirs = Pipe()
    load = Load(**dict.fromkeys(Load.__dataclass_fields__, 0))
    theirs.send(Ready(None, load, {}))  # type: ignore[arg-type]
    heard: queue.SimpleQueue[Mapping[int, Sequence[Outcome]]] = queue.SimpleQueue()
    may_go_on = threading.Event()

    def hear(outcomes: Mapping[int, Sequence[Outcome]]) -> None:
        heard.put(outcomes)
        assert may_go_on.wait(60)

    EngineClient(ours).serve(hear, lambda sentence: None)
    for value in range(10):
        answers = Answers()
        answers.add(7, token(value))
        theirs.send(Report(answers, load, {}))
        if value == 0:
            assert heard.get(timeout=60) == {7: [token(0)]}
    may_go_on.set()
    assert heard.get(timeout=60) == {7: [token(value) for value in range(1, 10)]}


def test_tokens_before_an_error_are_sent_first(setup: Setup) -> None:
    sender = setup.accept(part())
    setup.hear(0, token(5), RequestFailed("The model failed."))
    assert sender.next()[0].tensors["output_ids"] == [[[5]]]
    error, flags = sender.next_error()
    assert (error.message, flags) == ("The model failed.", FINAL)


def test_last_answer_of_a_batch_is_that_of_the_last_prompt_to_end(setup: Setup) -> None:
    sender = setup.accept(part(0), part(1))
    setup.hear(1, token(7, is_final=True))
    response, flags = sender.next()
    assert (response.tensors["batch_index"], flags) == ([[1]], 0)
    setup.hear(0, RequestFailed("The model failed."))
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
    setup.hear(0, error)
    assert sender.next_error()[0].code == code


def test_an_error_ends_the_whole_request_once(setup: Setup) -> None:
    sender = setup.accept(part(0), part(1))
    setup.delivery.hear({0: [QueueFull("Later.")], 1: [QueueFull("Later.")]})
    error, flags = sender.next_error()
    assert (error.code, flags) == ("UNAVAILABLE", FINAL)
    assert setup.engine.cancelled.get(timeout=60) == (0, False)
    assert sender.sent.empty()


def test_client_that_goes_away_cancels_every_part_without_keeping_anything(setup: Setup) -> None:
    sender = setup.accept(part(0), part(1))
    sender.is_gone = True
    assert [setup.engine.cancelled.get(timeout=60) for _ in range(2)] == [(0, False), (1, False)]


def test_client_that_triton_knows_nothing_of_keeps_no_other_from_being_looked_at(setup: Setup) -> None:
    asked = threading.Event()

    class Lost(Sender):
        def is_cancelled(self) -> bool:
            asked.set()
            raise RuntimeError("Triton has forgotten the request")

    setup.delivery.accept(Lost(), "", [part()], WANTED)
    assert asked.wait(60)
    setup.accept(part()).is_gone = True
    assert setup.engine.cancelled.get(timeout=60) == (1, False)


def test_stop_cancels_what_has_the_id_and_keeps_the_tokens(setup: Setup) -> None:
    setup.accept(part(), request_id="a")
    setup.accept(part(), request_id="b")
    sender = setup.accept(request_id="b")
    response, flags = sender.next()
    assert (response.tensors, response.error, flags) == ({}, None, FINAL)
    assert setup.engine.cancelled.get(timeout=60) == (1, True)
    assert setup.engine.cancelled.empty()


def test_stop_needs_an_id_but_it_may_be_unknown(setup: Setup) -> None:
    setup.accept(part())
    without, unknown = setup.accept(), setup.accept(request_id="gone already")
    assert "needs a request id" in without.next_error()[0].message
    assert unknown.next()[0].error is None
    assert setup.engine.cancelled.empty()


def test_client_gets_an_error_where_no_tensor_can_be_made(setup: Setup) -> None:
    sender = setup.accept(part())
    setup.hear(0, Progress((), (), is_final=True))
    error, flags = sender.next_error()
    assert "could not be sent" in error.message
    assert flags == FINAL


def test_client_hears_an_error_where_a_response_cannot_be_sent(setup: Setup) -> None:
    """And nothing waits for what was generated meanwhile."""
    sender = Full()
    setup.delivery.accept(sender, "", [part()], WANTED)
    setup.hear(0, token(1))
    error, flags = sender.next_error()
    assert "No space left" in error.message
    assert flags == FINAL
    setup.hear(0, token(2), token(3, is_final=True))
    other = setup.accept(part())
    setup.hear(1, token(7, is_final=True))
    assert other.next()[1] == FINAL
    assert sender.sent.empty()


def test_requests_to_a_lost_engine_are_answered_with_an_error(setup: Setup) -> None:
    before = setup.accept(part())
    setup.delivery.fail_all(EngineLost("The engine is gone."))
    for sender in (before, setup.accept(part())):
        error, flags = sender.next_error()
        assert (error.message, error.code, flags) == ("The engine is gone.", "UNAVAILABLE", FINAL)
