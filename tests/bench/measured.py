"""Whole measurements of a server that is not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trtllm_hpc.bench.analysis.aggregate import over_repeats
from trtllm_hpc.bench.analysis.compare import Side
from trtllm_hpc.bench.analysis.slo import parse_slo
from trtllm_hpc.bench.metrics import figures
from trtllm_hpc.bench.records import RequestRecord, Sample
from trtllm_hpc.bench.results import LevelResult, MeasurementSummary, OpenLoop, Pass, Verdict, Window
from trtllm_hpc.config.benchmark import Benchmark

from .make import IDLE
from .queueing import last_due_ms, served


def measured(
    name: str,
    *,
    rates: Sequence[float] = (50,),
    repeats: int = 1,
    requests: int = 300,
    capacity_per_s: float = 100,
    seed: int = 0,
    provenance: dict[str, Any] | None = None,
    verdict: Verdict | None = None,
    **settings: Any,
) -> Side:
    """A measurement; the seed stands for the noise of one run of the server."""
    asked = Benchmark(repeats=repeats, slo="latency<500ms", **settings)
    levels = list[LevelResult]()
    for place, rate in enumerate(rates):
        passes = []
        for repeat in range(repeats):
            own_seed = seed * 10_000 + place * 100 + repeat
            ran = served(rate, requests=requests, warmup=50, seed=own_seed, capacity_per_s=capacity_per_s)
            ran = [replace(record, level=place, repeat=repeat) for record in ran]
            passes.append(_pass(ran, OpenLoop(rate), repeat))
        levels.append(LevelResult(OpenLoop(rate), passes, over_repeats([it.metrics for it in passes])))
    measurement = MeasurementSummary(
        name=name,
        started_at=0.0,
        settings=asked.model_dump(mode="json"),
        model="ensemble",
        protocol="grpc",
        streaming=False,
        provenance=provenance or {},
        levels=levels,
        tokens={},
        errors={},
        verdict=verdict or Verdict(),
    )
    return Side(name, measurement)


def _pass(records: Sequence[RequestRecord], level: OpenLoop, repeat: int) -> Pass:
    is_good = parse_slo("latency<500ms").judge(records)
    sample = Sample(records, Window(0, last_due_ms(records) / 1e3), level, is_good)
    return Pass(
        repeat=repeat,
        started_s=records[0].scheduled_s,
        ended_s=max(record.ended_s for record in records),
        window=sample.window,
        sent=len(records),
        measured=len(sample.measured),
        failed=0,
        metrics=figures(sample),
        client=IDLE,
        verdict=Verdict(),
    )
