"""Who has run a shipped job file, and on what: ``runs.toml`` beside the job files."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any

from trtllm_hpc.bench.analysis.diff import leaves
from trtllm_hpc.config.files import jobs
from trtllm_hpc.config.inheritance import read_job
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.lock import Lock
from trtllm_hpc.runtime.records import read_events


def entry_of(run: RunPaths, by: str, tokens_per_s: float) -> dict[str, Any]:
    """Return the entry of a run. Raises ConfigError: not of a shipped job file, or it has not served."""
    lock = Lock.read(run.lock)
    name = lock.job["name"] if lock else run.run_id
    if lock is None or name not in jobs() or not any(it.name == "ready" for it in read_events(run)):
        wrong = "has not served" if name in jobs() else f"is of {name}, which is not a shipped job file"
        hint = "name a run that has served (trtllm-hpc runs), of a job file in: trtllm-hpc jobs list"
        raise ConfigError([Diagnostic("not-a-run-of-a-job", f"{run.run_id} {wrong}", hint=hint)])
    shipped = dict(leaves(json.loads(read_job(jobs()[name]).engine.model_dump_json()), "engine"))
    own, image = dict(leaves(lock.job["engine"], "engine")), lock.image or {}
    gpus = Counter(model for node in lock.nodes for model in node.get("gpus") or ())
    return {
        "job": name,
        "date": f"{datetime.fromtimestamp(run.lock.stat().st_mtime):%Y-%m-%d}",
        "by": by,
        "gpus": ", ".join(f"{count} x {model}" for model, count in gpus.items()) or "no GPU",
        "nodes": len(lock.nodes),
        "release": lock.release or "unknown",
        "image": " ".join(str(image[key]) for key in ("name", "header") if key in image),
        "changed": [key for key in {**shipped, **own} if shipped.get(key) != own.get(key)],
        "tokens_per_s": tokens_per_s,
    }


def status_of(name: str) -> str:
    """Return in words whether upstream's code has parsed a job file, and who has run it."""
    it = _known()
    runs = [
        f"run by {one['by']} on {one['gpus']}, {one['date']}, {one['release']}"
        + (f", {one['tokens_per_s']:,.0f} tokens/s" if one["tokens_per_s"] else "")
        + (f", with other {', '.join(one['changed'])}" if one["changed"] else "")
        for one in it.get("run", ())
        if one["job"] == name
    ]
    parsed = "not parsed" if name in it["not_parsed"] else "parsed"
    return "; ".join(runs) or f"{parsed} by {it['parsed_by']}'s code, never run"


@cache
def _known() -> dict[str, Any]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(toml.loads((resources.files("trtllm_hpc.jobs") / "runs.toml").read_text("utf-8")))
