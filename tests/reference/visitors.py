"""Clients as they come: some wait for their answer and check it, some go away before it is there."""

from __future__ import annotations

import json
import multiprocessing
import socket
import struct
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from trtllm_hpc.gateway.tokenizer import ModelTokenizer

from . import clients
from .clients import STOP, Answer, Stream, connect, stream, tensors, token_inputs
from .servers import World

MODEL = "tensorrt_llm"
ACCUMULATES = {"ensemble": False, "tensorrt_llm_bls": True}
"""The models that take text, and whether a streamed text is that of all tokens so far."""

TEXT_NAMES = {"runtime_top_k": "top_k", "runtime_top_p": "top_p"}
"""Inputs that the models which take text name otherwise."""

RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing sends a reset, and not a polite end, as when a machine fails."""


def tokens(answer: Answer) -> list[int]:
    if isinstance(answer, InferenceServerException):
        raise answer
    return clients.tokens(answer)


def ask(world: World, inputs: Mapping[str, Any]) -> list[Answer]:
    """All answers to one request; an error raises."""
    answers = clients.ask(world, MODEL, inputs)
    for answer in answers:
        tokens(answer)
    return answers


def are_of_tokens(
    texts: list[str], answer: list[int], tokenizer: ModelTokenizer, *, accumulates: bool
) -> bool:
    """Whether the texts of a stream are those of an answer's tokens, in order and none left out.

    A response has one token, or more if the server was behind.
    """
    ends = {0}
    for text in texts:
        ends = {
            end
            for begin in ends
            for end in range(begin + 1, len(answer) + 1)
            if tokenizer.decode(answer[0 if accumulates else begin : end]) == text
        }
    return len(answer) in ends


@dataclass(frozen=True)
class Question:
    """A request, and the answer to it."""

    text: str
    prompt: list[int]
    count: int
    settings: Mapping[str, Any]
    """Inputs of ``tensorrt_llm``, each one value."""
    answer: list[int] = field(default_factory=list)
    """New tokens, of the first beam."""

    def inputs(self, **more: Any) -> dict[str, Any]:
        return token_inputs(self.prompt, self.count, exclude_input_in_output=True, **self.settings, **more)

    def body(self, **more: Any) -> dict[str, Any]:
        settings = {TEXT_NAMES.get(name, name): value for name, value in self.settings.items()}
        known = {"text_input": self.text, "max_tokens": self.count, "exclude_input_in_output": True}
        return {**known, **settings, **more}


@dataclass(frozen=True)
class Visitor:
    """Each method is one visit: it raises an error if the server did not do what it must."""

    world: World
    tokenizer: ModelTokenizer

    # Those that wait for their answer.

    def tokens(self, question: Question) -> None:
        assert tokens(clients.ask_one(self.world, MODEL, question.inputs())) == question.answer

    def streamed_tokens(self, question: Question) -> None:
        answers = ask(self.world, question.inputs(streaming=True))
        assert [token for answer in answers for token in tokens(answer)] == question.answer

    def batch(self, question: Question) -> None:
        rows = {
            name: value * 3 if isinstance(value, list) else [[value]] * 3
            for name, value in question.inputs().items()
        }
        answers = ask(self.world, rows)
        assert sorted(int(answer.as_numpy("batch_index")[0, 0]) for answer in answers) == [0, 1, 2]
        assert [tokens(answer) for answer in answers] == [question.answer] * 3

    def everything(self, question: Question) -> None:
        """Ask a greedy question with all that can come back: some hundred kilobytes."""
        names = ("return_log_probs", "return_context_logits", "return_generation_logits")
        answer = clients.ask_one(self.world, MODEL, question.inputs(**dict.fromkeys(names, True)))
        assert tokens(answer) == question.answer
        assert answer.as_numpy("generation_logits")[0, 0].argmax(-1).tolist() == question.answer
        assert answer.as_numpy("context_logits").shape[1] == len(question.prompt)
        total = answer.as_numpy("output_log_probs").sum()
        assert answer.as_numpy("cum_log_probs").item() == pytest.approx(total, abs=1e-3)

    def unary_tokens(self, question: Question) -> None:
        with connect(self.world) as client:
            answer = client.infer(MODEL, tensors(question.inputs()), client_timeout=60)
        assert tokens(answer) == question.answer

    def text(self, question: Question, model: str) -> None:
        status, answer = self.world.generate(question.body(), model)
        assert (status, answer["text_output"]) == (200, self.tokenizer.decode(question.answer))

    def streamed_text(self, question: Question, model: str) -> None:
        events = self.world.generate_stream(question.body(stream=True), model)
        texts = [event["text_output"] for event in events]
        assert are_of_tokens(texts, question.answer, self.tokenizer, accumulates=ACCUMULATES[model])

    # Those that go away.

    def cancel_stream(self, question: Question, count: int) -> None:
        with stream(self.world) as opened:
            opened.send(MODEL, question.inputs(streaming=True))
            got: list[int] = []
            while len(got) < count:
                got += tokens(opened.next())
            assert got == question.answer[: len(got)]
            opened.cancel()

    def cancel_whole(self, question: Question, after_s: float, model: str) -> None:
        with stream(self.world) as opened:
            opened.send(model, question.inputs() if model == MODEL else question.body())
            time.sleep(after_s)
            opened.cancel()

    def cancel_unary(self, question: Question, after_s: float) -> None:
        with connect(self.world) as client:
            call = client.async_infer(MODEL, tensors(question.inputs()), lambda result, error: None)
            time.sleep(after_s)
            call.cancel()

    def run_out_of_time(self, question: Question, after_s: float) -> None:
        exceeded = pytest.raises(InferenceServerException, match="Deadline Exceeded")
        with connect(self.world) as client, exceeded:
            client.infer(MODEL, tensors(question.inputs()), client_timeout=after_s)

    def hang_up(self, question: Question, model: str, *, is_streaming: bool, is_polite: bool) -> None:
        """Close an HTTP connection in the middle of a streamed answer, or while waiting for a whole one."""
        verb, body = ("generate_stream", {"stream": True}) if is_streaming else ("generate", {})
        content = json.dumps(question.body(**body)).encode()
        head = (
            f"POST /v2/models/{model}/{verb} HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.world.http_port), timeout=60) as connection:
            connection.sendall(head.encode() + content)
            if is_streaming:
                assert connection.recv(12) == b"HTTP/1.1 200"
            if not is_polite:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def stop(self, question: Question, after_s: float, lengths: list[int]) -> None:
        """Stop a request by its id; its answer is what was there, and its length goes to ``lengths``."""
        number = uuid.uuid4().hex
        with stream(self.world) as opened:
            opened.send(MODEL, question.inputs(), request_id=number)
            time.sleep(after_s)
            assert not clients.ask_one(self.world, MODEL, STOP, request_id=number).get_response().outputs
            found = tokens(opened.next())
        assert found == question.answer[: len(found)]
        lengths.append(len(found))

    def stop_stream(self, question: Question, count: int, lengths: list[int]) -> None:
        """The same after so many streamed tokens."""
        number = uuid.uuid4().hex
        with stream(self.world) as opened:
            opened.send(MODEL, question.inputs(streaming=True), request_id=number)
            found: list[int] = []
            while len(found) < count:
                found += tokens(opened.next())
            clients.ask_one(self.world, MODEL, STOP, request_id=number)
            found += [token for answer in opened.rest() for token in tokens(answer)]
        assert found == question.answer[: len(found)]
        lengths.append(len(found))

    def die(self, question: Question, requests: int, after_s: float) -> None:
        """Send requests from another process, and kill it."""
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        inputs = question.inputs()
        process = context.Process(target=_doomed, args=(self.world.grpc_port, inputs, requests, there))
        process.start()
        try:
            assert here.poll(60), "the client's process did not send anything"
            time.sleep(after_s)
        finally:
            process.kill()
            process.join()
            here.close()
            there.close()


def _doomed(port: int, inputs: dict[str, Any], requests: int, parent: Connection) -> None:
    opened = Stream(triton.InferenceServerClient(f"127.0.0.1:{port}"))
    for _ in range(requests):
        opened.send(MODEL, inputs)
    parent.send("sent")
    parent.recv()
