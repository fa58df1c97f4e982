"""Token counts of the benchmark, of answers of the reference backend's models."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from trtllm_hpc.bench.load.loops import OpenPlan
from trtllm_hpc.bench.load.messages import Target, encode_request, parse_reply
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import Window
from trtllm_hpc.bench.targets import target_of
from trtllm_hpc.bench.token_counts import to_records
from trtllm_hpc.bench.workload.build import make_workload
from trtllm_hpc.bench.workload.prompt_source import find_tokenizer
from trtllm_hpc.bench.workload.request import TextEncoder, Vocabulary, WorkloadSpec
from trtllm_hpc.config.benchmark import Benchmark, Workload

from .servers import World

pytestmark = pytest.mark.triton

REQUESTED = 7


def measure(target: Target, tokenizer: TextEncoder, vocabulary: Vocabulary | None) -> list[RequestRecord]:
    settings = Benchmark(workload=Workload(kind="normal", input_tokens=12, output_tokens=REQUESTED))
    spec = WorkloadSpec(settings, 4, target.takes_token_ids, tokenizer, vocabulary)
    workload = make_workload(spec).requests
    payloads = [encode_request(request, target, str(at)) for at, request in enumerate(workload)]
    load = run_load(OpenPlan(target, payloads, Clock(), [0.0, 0.01, 0.02, 0.03]))
    parsed = [parse_reply(reply, target) for reply in load.replies]
    return to_records(
        load.replies,
        parsed,
        workload,
        level=0,
        repeat=0,
        window=Window(0.0, 1.0),
        tokenizer=tokenizer,
    )


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls", "tensorrt_llm"])
def test_every_token_of_every_model_is_counted(
    world: World, engines: dict[int, Path], model: str, protocol: Literal["grpc", "http"]
) -> None:
    tokenizer, vocabulary = find_tokenizer(Workload(), [engines[1]])
    assert tokenizer is not None
    core = model == "tensorrt_llm"
    settings = Benchmark(protocol=protocol, exact_output=True)
    target = target_of(settings.model_copy(update={"model": model}), world.endpoint, "ensemble")
    records = measure(target, tokenizer, vocabulary)
    assert [record.status for record in records] == ["ok"] * 4, records[0].error
    assert {record.input_tokens for record in records} == {12}
    # The text of a random model, tokenized again, may have a token more or fewer than were generated.
    assert all(abs((record.output_tokens or 0) - REQUESTED) <= (not core) for record in records)
    assert {record.output_by for record in records} == {"server" if core else "tokenizer"}
    for record in records:
        # A server that is behind joins tokens in one response.
        assert len(record.chunks_s) == len(record.chunk_tokens) <= REQUESTED
        if core and target.decoupled:
            assert sum(record.chunk_tokens) == record.output_tokens
