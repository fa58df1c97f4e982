"""The energy of a server on real Slurm, with a stand-in for the driver's library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import nvml
from tests.nvml import StandIn, gpu
from trtllm_hpc.bench.results import Interval, read_measurement

from .conftest import Person
from .test_backbone import SMALL, two_ranks

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]


def test_a_benchmark_on_two_gpus_shows_its_joules_and_the_gpu_that_is_too_warm(
    person: Person, engine: Path
) -> None:
    gpus = StandIn(person.folder / "gpus.txt")
    gpus.has(gpu(0, 400, swing=50, reasons=0x4), gpu(1, 300, reasons=0x20), gpu(2, 999))
    variables = {"LD_LIBRARY_PATH": str(nvml.library()), "NVML_STAND_IN": str(gpus.file)}
    with person.profile.open("a") as profile:
        profile.write(f"\nenvironment: {json.dumps(variables)}\n")
    benchmark = {**SMALL, "requests": 12, "rate_per_second": 4.0, "slo": "latency.p99<60s"}
    sections = two_ranks(engine, serve={"nodes": 1}, companion={"benchmark": benchmark})
    said, run = person.submit(person.job("energy", **sections))
    files = run.measurement("benchmark")
    measured = read_measurement(files.summary)
    assert measured.energy == "by NVML, of 2 GPUs"
    figures = {key: it.mean for key, it in measured.levels[0].metrics.items() if isinstance(it, Interval)}
    assert figures["power_mean_w"] == pytest.approx(700, rel=0.03)
    each = figures["power_mean_w"] / figures["output_tokens_per_s"]
    assert figures["energy_per_output_token_j"] == pytest.approx(each)
    assert figures["energy_per_request_j"] == pytest.approx(
        figures["power_mean_w"] / figures["finished_rate_per_s"]
    )
    host = person.rank(run, 0).host
    (warning,) = (str(it) for it in measured.verdict.warnings if it.code == "gpus-slowed")
    assert f"GPU1 of {host} (sw_thermal, " in warning and "GPU0" not in warning
    assert "energy: by NVML, of 2 GPUs" in said and "J/output" in said and "note: Heat" in said
    page = run.report.read_text()
    assert "Energy of the GPUs" in page and "J/output token" in page and "sw_thermal" in page
    use = person.status(run)["use"]
    assert use["server_mean_w"] == pytest.approx(700, rel=0.03) and use["server_peak_w"] <= 751
