"""The lines of docs/how-to/sweep-mlflow.md, with a real MLflow and its database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.environments import environment
from tests.sweeps.make import TP, measured, with_invalid_level, write_sweep

MLFLOW = "mlflow==3.17.2"
_BEFORE = "import sys; sys.path += {paths!r}\n"
_AFTER = """
import json
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name("demo-sweep").experiment_id
runs = [run.data for run in client.search_runs([experiment])]
print(json.dumps([[run.params, run.metrics, run.tags] for run in runs]))
"""


@pytest.mark.thorough
def test_the_page_logs_a_run_for_each_level_of_each_variant(tmp_path: Path) -> None:
    made = {"tp2": ({TP: 2}, measured(1.0)), "tp4": ({TP: 4}, with_invalid_level(measured(1.7, 3), 2))}
    points = write_sweep(tmp_path / "sweeps" / "demo-sweep", made, keys=[TP]).results(gpu_price=2.5).points
    [block] = [it for it in blocks(ROOT / "docs/how-to/sweep-mlflow.md") if it.kind == "python"]
    lines = [line for line in block.text.splitlines() if line and "import" not in line]
    assert len(lines) <= 10
    places = {"TRTLLM_HPC_RUNS": str(tmp_path), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    code = _BEFORE.format(paths=[str(ROOT), *filter(None, sys.path)]) + block.text + _AFTER
    done = subprocess.run(
        [environment("mlflow", [MLFLOW]), "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **places},
    )
    assert done.returncode == 0, done.stderr
    logged = json.loads(done.stdout.splitlines()[-1])
    assert len(logged) == len(points) == 6
    by_name = {(params["variant"], params["level"]): rest for params, *rest in logged}
    for point in points:
        metrics, tags = by_name[point.variant, point.level]
        assert metrics["output_tokens_per_s_per_gpu"] == point.output_tokens_per_s_per_gpu
        assert metrics["ttft_ms.p99"] == point.figures["ttft_ms.p99"]
        assert (tags["valid"], tags["frontier"]) == (str(point.valid), str(point.frontier))
