"""Write the proposals of NVIDIA's aiconfigurator (0.12) for TensorRT-LLM as a job file with a sweep.

    python from_aiconfigurator.py out/Qwen/Qwen3-32B_h200_sxm_... /scratch/models/Qwen3-32B > tune.yaml

The first argument is the folder that aiconfigurator wrote below --save-dir; it contains agg/top1 or
disagg/top1. The second argument is the model's folder.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

yaml = YAML(typ="safe")
yaml.default_flow_style = False
KEYS = {
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "moe_expert_parallel_size": "moe_expert_parallel",
    "max_batch_size": "max_batch_size",
    "max_num_tokens": "max_num_tokens",
}
"""Keys of the LLM API, and the keys of ``engine`` that set them."""


def engine(configuration: Path) -> dict[str, Any]:
    """Return the keys of ``engine`` that give a server this configuration of the LLM API."""
    llm_api = yaml.load(configuration)
    llm_api.pop("backend")  # PyTorch
    return {own: llm_api.pop(key) for key, own in KEYS.items() if key in llm_api} | {"llm_api": llm_api}


def benchmark(mode: Path, row: dict[str, str], gpus: int) -> dict[str, Any]:
    """Return the load for which aiconfigurator predicted."""
    isl, osl, prefix = (int(float(row[column])) for column in ("isl", "osl", "prefix"))
    kind = {"kind": "shared-prefix", "prefix_tokens": prefix} if prefix else {"kind": "normal"}
    # A row describes the smallest group of servers that answers alone; a proposal may have several groups.
    in_flight = round(float(row["concurrency"]) * gpus / float(row["num_total_gpus"]))
    # Only aiconfigurator's own classes can read the tags in exp_config.yaml.
    asked = (mode / "exp_config.yaml").read_text(encoding="utf-8")
    limits = dict(re.findall(r"(?m)^(request_latency|ttft|tpot): ([0-9]+(?:\.[0-9]+)?)$", asked))
    if "request_latency" in limits:
        limits = {"latency": limits["request_latency"]}
    return {
        "workload": {**kind, "input_tokens": isl - prefix, "output_tokens": osl},
        "exact_output": True,
        "slo": ",".join(f"{figure}.mean<={float(ms):g}ms" for figure, ms in limits.items()) or None,
        "concurrency": in_flight,
        "requests": 20 * in_flight,
        "warmup_requests": 2 * in_flight,
        "request_timeout_seconds": 60 * math.ceil(5 * float(row["request_latency"]) / 60_000),
    }


def proposal(folder: Path) -> dict[str, Any]:
    """Return the sections of a job file for one proposal, ``MODE/topN``."""
    mode, number = folder.parent, int(folder.name.removeprefix("top"))
    with (mode / "best_config_topn.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    row = {key.removeprefix("(p)"): value for key, value in rows[number - 1].items()}
    if row["backend"] != "trtllm":
        sys.exit(f"{folder}: is for {row['backend']}; choose --backend trtllm")
    workers = yaml.load(folder / "generator_config.yaml")["WorkerConfig"]
    roles = ("prefill", "decode") if (folder / "prefill_config.yaml").exists() else ("agg",)
    engines = {role: engine(folder / f"{role}_config.yaml") for role in roles}
    counts = {role: int(workers[f"{role}_workers"]) for role in roles}
    gpus = sum(
        counts[role] * keys["tensor_parallel"] * keys["pipeline_parallel"] for role, keys in engines.items()
    )
    serve: dict[str, Any] = {"time_limit_minutes": 240, "ready_timeout_seconds": 3600}
    if "agg" in engines:
        serve["instances"], own = counts["agg"], engines["agg"]
    else:
        phases = {"context": "prefill", "generation": "decode"}
        servers = {phase: {"servers": counts[role], **engines[role]} for phase, role in phases.items()}
        serve, own = {**serve, "mode": "disaggregated", "disaggregated": servers}, {}
    companion = {"time_limit_minutes": 150}
    return {
        "engine": {"backend": "pytorch", **own},
        "serve": serve,
        "companion": {**companion, "benchmark": benchmark(mode, row, gpus)},
    }


if __name__ == "__main__":
    result, model = Path(sys.argv[1]), sys.argv[2]
    folders = sorted(file.parent for file in result.glob("*/top*/generator_config.yaml"))
    if not folders:
        sys.exit(f"{result} has no agg/top1 or disagg/top1: name the folder that aiconfigurator wrote")
    variants = {f"{folder.parent.name}-{folder.name}": proposal(folder) for folder in folders}
    job = {"name": "tune", "model": {"path": model}, "engine": {"backend": "pytorch"}}
    yaml.dump({**job, "sweep": {"variants": variants}}, sys.stdout)
