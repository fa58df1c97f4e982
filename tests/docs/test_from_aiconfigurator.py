"""``docs/examples/from_aiconfigurator.py``: what NVIDIA's aiconfigurator 0.12.0 has written, as a sweep.

The files in ``tests/upstream/aiconfigurator`` are some of those that these commands wrote, as they were:

    aiconfigurator cli default --model-path Qwen/Qwen3-32B --total-gpus 8 --system h200_sxm
        --backend trtllm --isl 2000 --osl 300 --ttft 1000 --tpot 20
    ... --model-path Qwen/Qwen3-235B-A22B-FP8 --total-gpus 16 --isl 4000 --osl 1000 --ttft 2000 --tpot 50
        --generated-config-version 1.2.1
    ... --model-path Qwen/Qwen3-32B --total-gpus 8 --backend sglang                         (sglang)
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from trtllm_hpc.backends import backend_of
from trtllm_hpc.validation.load import load_sweep

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "upstream" / "aiconfigurator"


def convert(folder: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "docs" / "examples" / "from_aiconfigurator.py"
    command = [sys.executable, str(script), str(folder), "/models/it"]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(("name", "gpus"), [("qwen3-32b", 8), ("qwen3-235b-a22b", 16)])
def test_every_proposal_is_a_variant_without_a_finding(tmp_path: Path, name: str, gpus: int) -> None:
    job = tmp_path / "tune.yaml"
    job.write_text(convert(RESULTS / name).stdout)
    variants = load_sweep(job, "pyxis").variants
    assert [found for variant in variants for found in variant.diagnostics] == []
    places = sorted(file.parent for file in (RESULTS / name).glob("*/*/generator_config.yaml"))
    assert [variant.override.name for variant in variants] == [f"{it.parent.name}-{it.name}" for it in places]
    for place, variant in zip(places, variants, strict=True):
        facts = variant.facts
        assert facts is not None and facts.job.model.path == "/models/it"
        assert sum(backend_of(facts.job).topology(facts.job, facts.cluster).world_sizes) == gpus
        with (place.parent / "best_config_topn.csv").open() as table:
            row = [*csv.DictReader(table)][int(place.name[3:]) - 1]
        benchmark = facts.job.companion.benchmark
        assert benchmark is not None
        assert benchmark.concurrency == gpus // int(row["num_total_gpus"]) * int(row["concurrency"])


def test_proposals_for_another_server_are_refused() -> None:
    refused = convert(RESULTS / "sglang")
    assert refused.returncode == 1 and "is for sglang; choose --backend trtllm" in refused.stderr
