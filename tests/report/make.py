"""Measurements as a small queueing model would have them: the same from the same arguments, no clock read."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.plans import write_plan
from trtllm_hpc.bench.analysis.aggregate import error_counts, over_repeats, token_totals
from trtllm_hpc.bench.analysis.slo import parse_slo
from trtllm_hpc.bench.metrics import figures
from trtllm_hpc.bench.records import MEASURED, OK, WARMUP, RequestRecord, Sample, append_records
from trtllm_hpc.bench.results import (
    Caveat,
    ClientUse,
    ClosedLoop,
    Level,
    LevelResult,
    MeasurementSummary,
    OpenLoop,
    Pass,
    SearchResult,
    Tried,
    Verdict,
    Window,
    write_measurement,
)
from trtllm_hpc.bench.server_metrics import ServerSample, write_samples
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runtime.records import Endpoint, add_event

SLOTS = 8
"""Requests that the modelled server works at once; more wait."""
STARTED_AT = 1_790_000_000.0
_BETWEEN_S = 1.0


@dataclass
class Made:
    """A measurement with its records and samples."""

    measurement: MeasurementSummary
    records: list[RequestRecord]
    samples: list[ServerSample] = field(default_factory=list)

    def changed(self, **changes: Any) -> Made:
        """The same with fields of the measurement replaced."""
        return Made(replace(self.measurement, **changes), self.records, self.samples)


def noted(sentence: str) -> Caveat:
    """A finding or a warning with this sentence."""
    return Caveat("test", sentence=sentence)


def make(
    levels: Sequence[Level] = (OpenLoop(8.0),),
    *,
    repeats: int = 1,
    requests: int = 60,
    warmup: int = 6,
    streaming: bool = True,
    failed_share: float = 0.0,
    name: str = "benchmark",
    error: str = "deadline exceeded after 60 s",
    slo: str | None = None,
    speed: float = 1.0,
    seed: int = 7,
) -> Made:
    """Measure the modelled server: each level, ``repeats`` times."""
    draw = random.Random(seed)
    records: list[RequestRecord] = []
    results, clock = [], 0.0
    for number, level in enumerate(levels):
        passes = []
        for repeat in range(repeats):
            made = _one_pass(draw, number, level, repeat, clock + _BETWEEN_S, requests, warmup, speed)
            made = [_failed(record, error) if draw.random() < failed_share else record for record in made]
            records += made if streaming else [_whole(record) for record in made]
            passes.append(_summary_of(records[-len(made) :], repeat, level, slo))
            clock = passes[-1].ended_s
        results.append(LevelResult(level, passes, over_repeats([it.metrics for it in passes])))
    measured = [record for record in records if record.measured]
    nothing = noted(f"{len(measured)} requests were measured, and none was answered.")
    verdict = Verdict([nothing] if failed_share >= 1 else [])
    measurement = MeasurementSummary(
        name=name,
        started_at=STARTED_AT,
        settings={**_settings(levels, requests, warmup, repeats), "slo": slo},
        model="ensemble",
        protocol="grpc",
        streaming=streaming,
        provenance=PROVENANCE,
        levels=results,
        tokens=token_totals(records),
        errors=error_counts(records),
        verdict=verdict,
    )
    return Made(measurement, records, make_samples(records))


def _settings(levels: Sequence[Level], requests: int, warmup: int, repeats: int) -> dict[str, Any]:
    load: dict[str, Any] = {
        "rates_per_second": [level.rate_per_s for level in levels if isinstance(level, OpenLoop)],
        "concurrencies": [level.concurrency for level in levels if isinstance(level, ClosedLoop)],
    }
    chosen = Benchmark(**load, requests=requests, warmup_requests=warmup, repeats=repeats, max_tokens=48)
    return chosen.model_dump(mode="json")


def searched() -> Made:
    """A search that found 12 requests/s."""
    made = make([OpenLoop(rate) for rate in (4.0, 8.0, 16.0, 12.0, 14.0)], repeats=3, requests=40)
    slo, tried = parse_slo("ttft.p99<500ms,tpot.p99<50ms"), []
    for level, (rate, holds) in enumerate(
        [(4.0, True), (8.0, True), (16.0, False), (12.0, True), (14.0, False)]
    ):
        passes = made.measurement.levels[level].passes
        broken = [sentence for one in passes for sentence in slo.violations(one.metrics)]
        tried.append(Tried(rate, holds, 3 if holds else 0, 3, [] if holds else broken, level))
    search = SearchResult(str(slo), 12.0, 14.0, tried)
    return made.changed(search=search)


def make_samples(records: Sequence[RequestRecord], interval_s: float = 0.5) -> list[ServerSample]:
    """What the modelled server would tell of itself."""
    end = max((record.ended_s for record in records), default=0.0)
    samples = []
    for step in range(int(end / interval_s) + 2):
        now = step * interval_s
        open_ = sum(record.sent_s <= now < record.ended_s for record in records)
        active = min(open_, SLOTS)
        values = {
            "kv_blocks_used": active * 12.0,
            "kv_blocks_max": 128.0,
            "kv_used_share": active * 12.0 / 128,
            "requests_active": float(active),
            "requests_waiting": float(open_ - active),
        }
        if active:
            values["queue_ms[ensemble]"] = 1.0 + 40.0 * (open_ - active)
            values["compute_ms[ensemble]"] = 400.0 + step % 7
        samples.append(ServerSample(now, 0.002, values))
    return samples


def write_run(folder: Path, made: Made, *, name: str = "benchmark") -> RunPaths:
    """A run folder with this measurement, whose server is ready."""
    paths = RunPaths(folder)
    paths.make_folders()
    write_plan(paths)
    files = paths.measurement(name)
    write_measurement(files.summary, made.measurement)
    append_records(files.requests, made.records)
    write_samples(files.samples, made.samples)
    _write_ready(paths, made.measurement.started_at - 5.0)
    return paths


def _write_ready(paths: RunPaths, at: float) -> None:
    phases = {"preflight": 4.0, "launch": 1.0, "load": 12.0, "total": 17.0}
    endpoint = Endpoint("41", "n1", "10.0.0.1", 1, 2, 3, ["ensemble"], at, phases)
    add_event(paths, "serve", "ready", **endpoint.__dict__)
    stages = {"serve": {"job_id": "41", "submitted_at": at - 60.0}}
    write_json(paths.jobs, {"scheduler": "slurm", "complete": True, "stages": stages})


def _one_pass(
    draw: random.Random,
    number: int,
    level: Level,
    repeat: int,
    start_s: float,
    requests: int,
    warmup: int,
    speed: float,
) -> list[RequestRecord]:
    total = requests + warmup
    tokens = [draw.randint(12, 48) for _ in range(total)]
    records, busy, due = [], [0.0] * SLOTS, start_s
    callers = [start_s] * (level.concurrency if isinstance(level, ClosedLoop) else 0)
    for index in range(total):
        if isinstance(level, OpenLoop):
            due += draw.expovariate(level.rate_per_s)
        else:
            due = heapq.heappop(callers)
        sent = due + abs(draw.gauss(0.0002, 0.0002))
        begun = max(sent, heapq.heappop(busy))
        load = sum(free > begun for free in busy) / SLOTS
        first = begun + (0.030 + 0.02 * load + abs(draw.gauss(0, 0.004))) / speed
        chunks = [first]
        for _ in range(tokens[index] - 1):
            chunks.append(chunks[-1] + (0.011 + 0.007 * load) / speed * draw.lognormvariate(0, 0.25))
        ended = chunks[-1] + 0.001
        heapq.heappush(busy, ended)
        if callers or isinstance(level, ClosedLoop):
            heapq.heappush(callers, ended)
        records.append(
            RequestRecord(
                index,
                number,
                repeat,
                WARMUP if index < warmup else MEASURED,
                _r(due),
                _r(sent),
                _r(ended),
                OK,
                None,
                tokens[index],
                tuple(map(_r, chunks)),
                (1,) * len(chunks),
                draw.randint(20, 200),
                "tokenizer",
                tokens[index],
                "server",
                "n1",
            )
        )
    return records


def _r(seconds: float) -> float:
    return round(seconds, 6)


def _failed(record: RequestRecord, error: str) -> RequestRecord:
    return replace(
        record, status="DEADLINE_EXCEEDED", error=error, chunks_s=(), chunk_tokens=(), output_tokens=None
    )


def _whole(record: RequestRecord) -> RequestRecord:
    return replace(record, chunks_s=(), chunk_tokens=())


def _summary_of(records: list[RequestRecord], repeat: int, level: Level, slo: str | None) -> Pass:
    measured = [record for record in records if record.measured]
    window = Window(measured[0].scheduled_s, max(record.scheduled_s for record in measured) + 0.05)
    good = [record for record in measured if record.ok]
    return Pass(
        repeat=repeat,
        started_s=records[0].scheduled_s,
        ended_s=max(record.ended_s for record in records),
        window=window,
        sent=len(records),
        measured=len(measured),
        failed=len(measured) - len(good),
        metrics=figures(Sample(records, window, level, parse_slo(slo).judge(records) if slo else None)),
        client=ClientUse(0.4, window.length_s, 0.08),
        verdict=Verdict(),
    )


PROVENANCE: dict[str, Any] = {
    "run": {
        "id": "tiny-llama-0001",
        "scheduler": "slurm",
        "job_ids": {"build": "40", "serve": "41"},
        "spec_sha256": "0f" * 32,
    },
    "server": {
        "host": "n1",
        "nodes": ["n1", "n2"],
        "ranks": [
            {"rank": 0, "host": "n1", "gpu_models": ["NVIDIA H200, 570.86, 143771 MiB"]},
            {"rank": 1, "host": "n2"},
        ],
        "gpus": 2,
        "image": None,
        "models": ["ensemble"],
    },
    "engine": {
        "backend": "reference",
        "model": "/models/tiny-llama",
        "version": "0.16.0",
        "key": "tp2-" + "ab" * 8,
        "tensor_parallel": 2,
    },
    "client": {"host": "n2", "same_host": False, "cpus": 2, "python": "3.11.2"},
}
