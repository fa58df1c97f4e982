"""The load generator's every way to ask, against the reference backend's models."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from trtllm_hpc.bench.load.loops import LoadResult, OpenPlan
from trtllm_hpc.bench.load.messages import ParsedReply, Target, encode_request, parse_reply
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.quick_check import check_under_load
from trtllm_hpc.bench.targets import targets_of
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.gateway.tokenizer import ModelTokenizer

from .servers import World

pytestmark = pytest.mark.triton

Protocol = Literal["grpc", "http"]
PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "http"])
MODELS = pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls", "tensorrt_llm"])
PROMPT = "the cat sat on the"
COUNT = 12


def target(world: World, model: str, protocol: Protocol, streaming: bool | None = None) -> Target:
    settings = Benchmark(protocol=protocol, streaming=streaming, exact_output=True)
    (found,) = targets_of(settings.model_copy(update={"model": model}), world.endpoint, "ensemble")
    return found


def ask(asked: Target, *requests: Request) -> tuple[LoadResult, list[ParsedReply]]:
    payloads = [encode_request(request, asked, str(number + 1)) for number, request in enumerate(requests)]
    load = run_load(OpenPlan(asked, payloads, Clock(), [0.0] * len(payloads)))
    assert [(reply.status, reply.error) for reply in load.replies] == [("ok", None)] * len(payloads)
    return load, [parse_reply(reply, asked) for reply in load.replies]


def request(asked: Target, tokenizer: ModelTokenizer) -> Request:
    if asked.takes_token_ids:
        return Request(COUNT, token_ids=tuple(tokenizer.encode(PROMPT)))
    return Request(COUNT, PROMPT)


@PROTOCOLS
@MODELS
def test_a_decoupled_model_streams_token_by_token(
    alone: World, tokenizer: ModelTokenizer, model: str, protocol: Protocol
) -> None:
    asked = target(alone, model, protocol)
    load, (parsed,) = ask(asked, request(asked, tokenizer))
    # A response has more than one token if the server is behind.
    assert parsed.streamed and 1 < len(parsed.chunks) <= COUNT
    times = [chunk.time_s for chunk in parsed.chunks]
    assert times == sorted(times) and load.replies[0].ended_s >= times[-1] > times[0]
    if model == "tensorrt_llm":
        assert parsed.token_ids is not None and len(parsed.token_ids) == COUNT


@PROTOCOLS
@pytest.mark.parametrize("streaming", [True, False])
@MODELS
def test_a_model_that_is_not_decoupled_answers_in_one_piece_either_way(
    pair: World, tokenizer: ModelTokenizer, model: str, streaming: bool, protocol: Protocol
) -> None:
    asked = target(pair, model, protocol, streaming)
    _, (parsed,) = ask(asked, request(asked, tokenizer))
    assert len(parsed.chunks) == 1 and parsed.streamed == streaming


def test_every_protocol_and_both_ways_give_the_same_tokens(alone: World, tokenizer: ModelTokenizer) -> None:
    prompt = tuple(tokenizer.encode(PROMPT))
    answers = set()
    for protocol in ("grpc", "http"):
        for streaming in (True, False):
            asked = target(alone, "tensorrt_llm", protocol, streaming)
            _, (parsed,) = ask(asked, request(asked, tokenizer))
            assert parsed.token_ids is not None
            answers.add(parsed.token_ids[0 if streaming else len(prompt) :])
    assert len(answers) == 1


@PROTOCOLS
@MODELS
def test_the_quick_check_finds_a_healthy_server_healthy(
    alone: World, tokenizer: ModelTokenizer, model: str, protocol: Protocol
) -> None:
    asked = target(alone, model, protocol)
    texts = (PROMPT, "one two three", "a b c d e f g", "so it goes")
    requests = [replace(request(asked, tokenizer), prompt=text) for text in texts]
    if asked.takes_token_ids:
        requests = [Request(COUNT, token_ids=tuple(tokenizer.encode(text))) for text in texts]
    found = check_under_load(requests, [asked], Clock())
    assert (found.answered, found.garbled, found.finding) == (64, {}, None)
    assert found.equal >= 60
