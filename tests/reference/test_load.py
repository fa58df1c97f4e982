"""The load generator's every way to ask, against the reference backend's models."""

from __future__ import annotations

from itertools import product
from typing import Literal

import pytest

from trtllm_hpc.bench.load.loops import OpenPlan
from trtllm_hpc.bench.load.messages import Target, encode_request, parse_reply
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
PROMPT = "the cat sat on the"
COUNT = 12


def target(world: World, model: str, protocol: Protocol, streaming: bool | None = None) -> Target:
    settings = Benchmark(protocol=protocol, streaming=streaming, exact_output=True)
    (found,) = targets_of(settings.model_copy(update={"model": model}), world.endpoint, "ensemble")
    return found


def test_every_protocol_and_both_ways_give_the_same_tokens(alone: World, tokenizer: ModelTokenizer) -> None:
    prompt = tuple(tokenizer.encode(PROMPT))
    answers = set()
    protocols: tuple[Protocol, ...] = ("grpc", "http")
    for protocol, streaming in product(protocols, (True, False)):
        asked = target(alone, "tensorrt_llm", protocol, streaming)
        payload = encode_request(Request(COUNT, token_ids=prompt), asked, "1")
        [reply] = run_load(OpenPlan(asked, [payload], Clock(), [0.0])).replies
        parsed = parse_reply(reply, asked)
        assert (reply.error, parsed.streamed) == (None, streaming) and parsed.token_ids is not None
        answers.add(parsed.token_ids[0 if streaming else len(prompt) :])
    assert len(answers) == 1


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls", "tensorrt_llm"])
def test_the_quick_check_finds_a_healthy_server_healthy(
    alone: World, tokenizer: ModelTokenizer, model: str, protocol: Protocol
) -> None:
    asked = target(alone, model, protocol)
    requests = [
        Request(COUNT, token_ids=tuple(tokenizer.encode(text)))
        if asked.takes_token_ids
        else Request(COUNT, text)
        for text in (PROMPT, "one two three", "a b c d e f g", "so it goes")
    ]
    found = check_under_load(requests, [asked], Clock())
    assert (found.answered, found.garbled, found.finding) == (64, {}, None)
    assert found.equal >= 60
