"""A benchmark with LoRA adapters: who has which, what is sent, and what happens to an evicted one."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.render.cases import plan_of
from tests.waiting import eventually
from trtllm_hpc.bench.load.loops import ClosedPlan
from trtllm_hpc.bench.load.messages import Target, encode_request, parse_reply
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.lora_adapters import LoraAdapters
from trtllm_hpc.bench.measure import MeasuredServer, run_measurement
from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.request_feed import RequestFeed
from trtllm_hpc.bench.results import MeasurementSummary
from trtllm_hpc.bench.targets import targets_of
from trtllm_hpc.bench.workload.request import Request, WorkloadSpec
from trtllm_hpc.client.lora import is_unknown_adapter
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.reference.text import TextTokenizer
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.report.measurement_table import measurement_text
from trtllm_hpc.runtime.door import TRITON_KINDS, Door, DoorOptions
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.records import Endpoint

from . import servers
from .servers import World

pytestmark = pytest.mark.triton

PLACES = 8
"""Adapters that the reference backend keeps at once."""
PROMPTS = ["the cat sat on the", "once upon a time", "What is machine learning?", "a b c d e f"]
UNSTRICT: dict[str, Any] = {"min_requests": 1, "min_window_seconds": 0.0, "max_late_share": 1.0}
_task_ids = count(100, 100)


def make_adapter(folder: Path, model: Any, seed: int, rank: int = 4) -> Path:
    """An adapter for the attention's q and v, strong enough to change the greedy answer."""
    source = np.random.RandomState(seed)
    rows, numbers = [], []
    for layer, block in enumerate(model.model.layers):
        for number, module in ((1, block.self_attn.q_proj), (3, block.self_attn.v_proj)):
            outputs, inputs = module.weight.shape
            rows.append(source.normal(scale=0.3, size=rank * (inputs + outputs)))
            numbers.append((number, layer, rank))
    weights = np.zeros((1, len(rows), max(map(len, rows))), dtype=np.float16)
    for place, row in enumerate(rows):
        weights[0, place, : len(row)] = row
    folder.mkdir()
    np.save(folder / "model.lora_weights.npy", weights)
    np.save(folder / "model.lora_config.npy", np.array([numbers], dtype=np.int32))
    return folder


@pytest.fixture(scope="module")
def folders(plain_model: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One adapter more than the server keeps."""
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(folder / f"adapter-{seed}", plain_model, seed) for seed in range(PLACES + 1)]


def with_adapters(folders: Sequence[Path], *shares: float | None, **settings: Any) -> Benchmark:
    """Settings with adapters of these shares, under task ids that no other test has used."""
    first = next(_task_ids)
    lora = [
        {"directory": str(folder), "share": share, "task_id": first + place}
        for place, (folder, share) in enumerate(zip(folders, shares or [None] * len(folders), strict=True))
    ]
    workload = {"kind": "prompts", "prompts": PROMPTS, "lora": lora}
    plain = {"max_tokens": 8, "warmup_requests": 0, **UNSTRICT, **settings, "workload": workload}
    return Benchmark.model_validate(Benchmark.with_defaults(plain))


def measure(
    folder: Path, endpoint: Endpoint, engine: Path, settings: Benchmark
) -> tuple[MeasurementSummary, list[RequestRecord]]:
    paths = RunPaths(folder / "run-1")
    paths.make_folders()
    paths.engine.symlink_to(engine)
    job = JobFile.model_validate({"name": "run"})
    measurement = run_measurement(MeasuredServer(paths, endpoint, job), settings, "adapters")
    return measurement, read_records(paths.measurement("adapters").requests)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls", "tensorrt_llm"])
def test_two_adapters_by_share(
    alone: World, engines: dict[int, Path], folders: list[Path], tmp_path: Path, model: str, protocol: str
) -> None:
    settings = with_adapters(
        folders[:2], 0.5, 0.25, model=model, protocol=protocol, requests=24, concurrency=6
    )
    measurement, records = measure(tmp_path, alone.endpoint, engines[1], settings)
    assert measurement.verdict.findings == [] and [one.error for one in records if not one.ok] == []
    first, second = settings.workload.lora_task_ids
    assert Counter(record.lora_task_id for record in records) == {first: 12, second: 6, None: 6}
    # Known before the first request: none had to be sent again.
    assert not any(record.resent for record in records)
    counts = re.findall(
        r"(?m)^ *(none|\d+: adapter-\d)  +(\d+) +(\d+) +(\d+) ", measurement_text(measurement, records)
    )
    assert counts == [
        ("none", "6", "0", "0"),
        (f"{first}: adapter-0", "12", "0", "0"),
        (f"{second}: adapter-1", "6", "0", "0"),
    ]


def test_in_one_batch_each_answer_is_that_of_its_adapter_alone(
    alone: World, folders: list[Path], tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    settings = with_adapters(folders[:2], model="tensorrt_llm", streaming=False)
    (target,) = targets_of(settings, alone.endpoint, "ensemble")
    adapters = LoraAdapters.read(settings.workload, RunPaths(tmp_path))
    spec = WorkloadSpec(settings, 12, True, _Encodes(tokenizer))
    feed = RequestFeed(spec, [target], adapters.weights)
    adapters.make_known([target], feed.built.requests[0], Clock())
    batch = feed.take(12)
    together = answers(target, batch.payloads, concurrency=12)
    assert together == answers(target, batch.payloads, concurrency=1)
    by_prompt: dict[Any, dict[Any, Any]] = {}
    for request, answer in zip(batch.requests, together, strict=True):
        by_prompt.setdefault(request.token_ids, {})[request.lora_task_id] = answer
    several = [found for found in by_prompt.values() if len(found) > 1]
    assert several and all(len(set(found.values())) == len(found) for found in several)


def answers(target: Target, payloads: Sequence[bytes], concurrency: int) -> list[tuple[int, ...] | None]:
    load = run_load(ClosedPlan(target, payloads, Clock(), concurrency, count=len(payloads)))
    assert [reply.error for reply in load.replies if not reply.ok] == []
    in_order = sorted(load.replies, key=lambda reply: reply.index)
    return [parse_reply(reply, target).token_ids for reply in in_order]


class _Encodes:
    """The engine's tokenizer, as a workload takes it."""

    name = counted_by = "tokenizer"
    token_texts = None

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._tokenizer.encode(text) for text in texts]


@pytest.mark.parametrize("processes", [1, 2])
def test_nine_adapters_for_eight_places_are_sent_again(
    alone: World, engines: dict[int, Path], folders: list[Path], tmp_path: Path, processes: int
) -> None:
    shares = [1 / len(folders)] * len(folders)
    settings = with_adapters(folders, *shares, requests=36, concurrency=2, processes=processes)
    measurement, records = measure(tmp_path, alone.endpoint, engines[1], settings)
    assert [record.error for record in records if not record.ok] == []
    assert set(settings.workload.lora_task_ids) == {record.lora_task_id for record in records}
    resent = [record for record in records if record.resent and record.measured]
    assert resent and len(resent) < len(records)
    (warning,) = [one for one in measurement.verdict.warnings if "sent again" in one]
    assert warning.startswith(f"{len(resent)} requests were sent again with the LoRA adapter's weights")


def test_over_http_an_evicted_adapter_is_a_failure_with_its_cause(
    alone: World, engines: dict[int, Path], folders: list[Path], tmp_path: Path
) -> None:
    shares = [1 / len(folders)] * len(folders)
    settings = with_adapters(
        folders, *shares, requests=18, concurrency=1, protocol="http", max_error_share=1.0
    )
    measurement, records = measure(tmp_path, alone.endpoint, engines[1], settings)
    failed = [record for record in records if not record.ok]
    assert failed and all(is_unknown_adapter(record.error or "") for record in failed)
    (warning,) = [one for one in measurement.verdict.warnings if "no longer had their" in one]
    assert warning.startswith(f"{len(failed)} requests failed") and "--protocol grpc" in warning


def test_an_adapter_that_the_model_cannot_take_ends_the_benchmark_before_the_load(
    alone: World, engines: dict[int, Path], plain_model: Any, tmp_path: Path
) -> None:
    large = make_adapter(tmp_path / "large", plain_model, 0, rank=16)
    settings = with_adapters([large])
    with pytest.raises(
        RequestFailed, match=r"does not take the LoRA adapter \d+ in .*large: .*rank 16"
    ) as raised:
        measure(tmp_path, alone.endpoint, engines[1], settings)
    assert raised.value.hint and "--no-lora" in raised.value.hint
    assert not (tmp_path / "run-1" / "results" / "adapters.json").exists()


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed (.ci/test does)")
def test_behind_a_door_every_instance_knows_each_adapter_before_the_load(
    alone: World,
    served: dict[int, Path],
    folders: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = with_adapters(folders[:2], requests=24, concurrency=6)
    with servers.serve(tmp_path / "other", served[1], decoupled=True) as other:
        with door_before([alone, other], tmp_path / "run-0", monkeypatch) as endpoint:
            measurement, records = measure(tmp_path, endpoint, served[1], settings)
        for world in (alone, other):
            (target,) = targets_of(settings, world.endpoint, "ensemble")
            for task_id in settings.workload.lora_task_ids:
                known = encode_request(Request(1, "x", lora_task_id=task_id), target)
                (reply,) = run_load(ClosedPlan(target, [known], Clock(), 1, count=1)).replies
                assert reply.ok, (task_id, reply.error)
    assert measurement.verdict.findings == []
    assert all(record.ok and not record.resent for record in records)


@contextmanager
def door_before(worlds: Sequence[World], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A real HAProxy with the configuration of a job in front of these servers."""
    monkeypatch.setenv("TRTLLM_HPC_JOB_ID", "adapters")
    paths = RunPaths(folder)
    paths.make_folders()
    job = {"name": "demo", "serve": {"instances": len(worlds), "key": False}}
    profile = {"name": "here", "gpus_per_node": len(worlds), "triton": {"server": "pytriton"}}
    plan = plan_of(job, profile, str(folder))
    paths.door(0).write_text(render_scripts(plan)[paths.door(0).name], encoding="utf-8")
    kinds = plan.door_kinds
    ports = dict(zip(kinds, free_ports(len(kinds)), strict=True))
    further: dict[str, str] = {}
    for place, world in enumerate(worlds):
        there = (world.http_port, world.grpc_port, world.metrics_port)
        further |= {
            f"{kind}_{place}": f"127.0.0.1:{port}" for kind, port in zip(TRITON_KINDS, there, strict=True)
        }
    program = shutil.which("haproxy") or "haproxy"
    door = Door(paths, 0, DoorOptions(program, kinds, "127.0.0.1"), ports, [], further)
    try:
        assert eventually(lambda: door.servers_up() == len(worlds), 20), paths.batch_log("door").read_text()
        found = (ports["http"], ports["grpc"], ports["metrics"])
        yield Endpoint("1", "localhost", "127.0.0.1", *found, [], 0.0, instances=len(worlds))
    finally:
        door.close()


def test_a_model_without_the_inputs_is_refused_by_name(alone: World, folders: list[Path]) -> None:
    settings = with_adapters(folders[:1], model="preprocessing")
    with pytest.raises(RequestFailed, match=r"'preprocessing' takes no LoRA adapters.*'lora_task_id'"):
        targets_of(settings, alone.endpoint, "ensemble")
