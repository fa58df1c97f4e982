"""The load generator's every way to ask, against the reference backend's models."""

from __future__ import annotations

from itertools import product
from typing import Literal

import pytest

from trtllm_hpc.bench.load.loops import OpenPlan
from trtllm_hpc.bench.load.messages import Target, encode_request, parse_reply
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.targets import target_of
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.gateway.tokenizer import ModelTokenizer

from .servers import World

pytestmark = pytest.mark.triton

Protocol = Literal["grpc", "http"]
PROMPT = "the cat sat on the"
COUNT = 12


def target(world: World, model: str, protocol: Protocol, streaming: bool | None = None) -> Target:
    settings = Benchmark(protocol=protocol, streaming=streaming, exact_output=True)
    return target_of(settings.model_copy(update={"model": model}), world.endpoint, "ensemble")


def test_every_protocol_and_both_ways_give_the_same_tokens(alone: World, tokenizer: ModelTokenizer) -> None:
    prompt = tuple(tokenizer.encode(PROMPT))
    answers = set()
    protocols: tuple[Protocol, ...] = ("grpc", "http")
    for protocol, streaming in product(protocols, (True, False)):
        asked = target(alone, "tensorrt_llm", protocol, streaming)
        payload = encode_request(WorkloadRequest(COUNT, token_ids=prompt), asked, "1")
        [reply] = run_load(OpenPlan(asked, [payload], Clock(), [0.0])).replies
        parsed = parse_reply(reply, asked)
        assert (reply.error, parsed.streamed) == (None, streaming) and parsed.token_ids is not None
        answers.add(parsed.token_ids[0 if streaming else len(prompt) :])
    assert len(answers) == 1
