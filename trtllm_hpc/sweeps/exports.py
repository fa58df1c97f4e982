"""The points of a sweep for other programs: CSV, Parquet, and the rows that InferenceX compares."""

from __future__ import annotations

import csv
import re
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.config.files import read_spec
from trtllm_hpc.errors import TrtllmHpcError
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths, read_plan, write_aside, write_json, write_text
from trtllm_hpc.sweeps.points import Point
from trtllm_hpc.sweeps.results import SweepResults

_LATENCIES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "itl_ms": "itl", "latency_ms": "e2el"}
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}


def write_csv(results: SweepResults, to: Path) -> None:
    """Write a row for each point; a figure that is not known is empty."""
    rows, text = [point.row() for point in results.points], StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    table = csv.DictWriter(text, list(names), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(to, text.getvalue())


def write_parquet(results: SweepResults, to: Path) -> None:
    """Write the same as Parquet; raises TrtllmHpcError without pandas or pyarrow."""
    table = results.frame()
    try:
        with write_aside(to) as aside:
            table.to_parquet(aside, engine="pyarrow", index=False)
    except ImportError as error:
        hint = "pip install 'trtllm-hpc[notebook]', or write --csv FILE"
        raise TrtllmHpcError(f"Parquet needs pyarrow: {error.__cause__ or error}.", hint=hint) from error


def write_inferencex(results: SweepResults, folder: Path) -> None:
    """Write a file ``agg_SWEEP_VARIANT_LEVEL.json`` for each valid point; the folder is made if missing."""
    folder.mkdir(exist_ok=True)
    runs = {variant.name: RunPaths(variant.folder) for variant in results.status.variants}
    for point in filter(lambda it: it.valid, results.points):
        name = f"{results.status.sweep_id}_{point.variant}_{point.level}"
        row = inferencex_row(point, _about(runs[point.variant]))
        write_json(folder / f"agg_{re.sub(r'[^-.A-Za-z0-9_]+', '-', name)}.json", row)


def inferencex_row(point: Point, about: dict[str, Any]) -> dict[str, Any]:
    """Return a point as InferenceX's ``utils/process_result.py`` (August 2026) writes ``agg_*.json``.

    Times are in seconds; ``*_intvty`` is 1000 / the same statistic of TPOT in milliseconds; ``tput_per_gpu``
    counts prompts and answers. A disaggregated run lacks input and output tokens per GPU, because
    InferenceX divides these by the GPUs of their phase. What a run does not know is left out: ``precision``,
    ``spec_decoding``, ``infmax_model_prefix``, ``recipe_fingerprint``, ``dp_attention``, standard deviations.
    """
    total, output = point.total_tokens_per_s_per_gpu, point.output_tokens_per_s_per_gpu
    row = {**about, "tput_per_gpu": total}
    row["conc"] = int(point.load) if point.load_kind == "closed-loop" else None
    if not about["disagg"] and total is not None and output is not None:
        row |= {"output_tput_per_gpu": output, "input_tput_per_gpu": total - output}
    for key, name in _LATENCIES.items():
        for statistic, prefix in _STATISTICS.items():
            if value := point.figures.get(f"{key}.{statistic}"):
                row[f"{prefix}_{name}"] = value / 1000
                row |= {f"{prefix}_intvty": 1000 / value} if name == "tpot" else {}
    return {name: value for name, value in row.items() if value is not None}


@lru_cache(maxsize=1)
def _about(run: RunPaths) -> dict[str, Any]:
    """Return what a run knows of model, hardware, topology and lengths."""
    measurement = read_measurement(run.measurement(COMPANION_MEASUREMENT).summary)
    plan, job = read_plan(run), read_spec(run.spec)
    server, workload = measurement.provenance.get("server", {}), measurement.settings.get("workload", {})
    models = [it for rank in server.get("ranks", ()) for it in rank.get("gpu_models", ())]
    drawn, disagg = workload.get("kind") == "normal", job.serve.mode == "disaggregated"
    return {
        "hw": models[0] if models else None,
        "image": server.get("image"),
        "model": job.model.path or measurement.model,
        "framework": "trt" if plan.get("release") else None,
        "disagg": disagg,
        "is_multinode": plan["layout"]["nodes"] > 1,
        "tp": None if disagg else job.engine.tensor_parallel,
        "pp": None if disagg else job.engine.pipeline_parallel,
        "ep": None if disagg else job.engine.moe_expert_parallel,
        "isl": workload.get("input_tokens") if drawn else None,
        "osl": workload.get("output_tokens") or measurement.settings.get("max_tokens") if drawn else None,
    }
