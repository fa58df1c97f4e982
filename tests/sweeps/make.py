"""Sweeps with measurements of the modelled server: variants of different speed, some without figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from tests.plans import planned_stage, write_plan
from tests.report.make import Made, make, noted, write_run
from trtllm_hpc.bench.analysis.aggregate import overall_verdict
from trtllm_hpc.bench.results import ClosedLoop, Level, LevelResult, Verdict
from trtllm_hpc.sweeps.measured import SweepResults, read_results
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord, Variant, write_record
from trtllm_hpc.sweeps.status import SweepStatus, VariantStatus

SLO = "ttft.p99<800ms,tpot.p99<30ms"
TP, BATCH = "engine.tensor_parallel", "engine.max_batch_size"
LEVELS = (ClosedLoop(2), ClosedLoop(8), ClosedLoop(24))
FAILED = "rank 1 of the server was killed by SIGKILL on n2"
REFUSED = "engine.max_batch_size: <32> is too large & more"
FINDING = "5 of 60 requests failed, more than 1 %."


@cache
def measured(
    speed: float,
    seed: int = 7,
    *,
    levels: Sequence[Level] = LEVELS,
    repeats: int = 3,
    slo: str | None = SLO,
    streaming: bool = True,
    requests: int = 40,
) -> Made:
    return make(
        levels,
        repeats=repeats,
        requests=requests,
        warmup=2,
        slo=slo,
        speed=speed,
        seed=seed,
        streaming=streaming,
    )


def with_invalid_level(made: Made, place: int) -> Made:
    """The same, as if too many requests of a level had failed."""
    levels = list(made.measurement.levels)
    passes = [replace(one, verdict=Verdict([noted(FINDING)])) for one in levels[place].passes]
    levels[place] = LevelResult(levels[place].level, passes, levels[place].metrics)
    return made.changed(levels=levels, verdict=overall_verdict(levels, None))


@dataclass(frozen=True)
class WrittenSweep:
    """A sweep's folder, and what Slurm would say of it."""

    paths: SweepPaths
    status: SweepStatus

    def results(self, *, slo: str | None = None) -> SweepResults:
        return read_results(self.paths, slo=slo, status=self.status)


def write_sweep(
    folder: Path,
    variants: Mapping[str, tuple[Mapping[str, Any], Made | None]],
    *,
    states: Mapping[str, tuple[str, str]] | None = None,
    keys: Sequence[str] = (TP, BATCH),
) -> WrittenSweep:
    """A variant's GPUs are its tensor parallelism; ``states``: of those without figures, and why."""
    paths = SweepPaths(folder)
    folder.mkdir(parents=True)
    rows = [Variant(name, values) for name, (values, _) in variants.items()]
    write_record(paths, SweepRecord("chat", "sandbox", keys, rows, created_at=1_790_000_000.0))
    found = []
    for name, (values, made) in variants.items():
        run = paths.run(name)
        if made is not None:
            write_run(run.folder, made)
            write_plan(run, stages=(planned_stage("serve", gpus_per_node=values.get(TP, 2)),))
        state, sentence = (states or {}).get(name, ("completed", None))
        found.append(VariantStatus(name, values, state, sentence, str(run.folder)))
    return WrittenSweep(paths, SweepStatus(paths.sweep_id, str(paths.folder), "chat", keys, found))


def grid(folder: Path) -> WrittenSweep:
    """Two by three variants: one was refused, one has failed, one has a level that is not valid."""
    variants: dict[str, tuple[dict[str, Any], Made | None]] = {}
    for tp, batch in product((2, 4), (8, 16, 32)):
        made = measured({2: 1.0, 4: 1.7}[tp] * {8: 0.9, 16: 1.0, 32: 1.1}[batch], seed=tp * batch)
        variants[f"tp{tp}-bs{batch}"] = ({TP: tp, BATCH: batch}, made)
    variants["tp2-bs8"] = (variants["tp2-bs8"][0], with_invalid_level(measured(0.9, 16), 2))
    variants["tp4-bs16"] = (variants["tp4-bs16"][0], None)
    variants["tp4-bs32"] = (variants["tp4-bs32"][0], None)
    states = {"tp4-bs16": ("failed", FAILED), "tp4-bs32": ("refused", REFUSED)}
    return write_sweep(folder, variants, states=states)
