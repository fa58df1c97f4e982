"""What a rank reads of its GPUs, at the boundary of the driver's library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import nvml as stand_in
from tests.nvml import StandIn, gpu
from tests.runtime.ranks import Ranks, end
from tests.waiting import eventually
from trtllm_hpc.logs.facts import logs_facts
from trtllm_hpc.runtime import gpus as watching
from trtllm_hpc.runtime.gpus import GpuWatch, gpus_of_rank, read_seconds
from trtllm_hpc.runtime.server_spec import RankOptions, ServerSpec
from trtllm_hpc.runtime.stop import request_stop


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(watching, "LIBRARY", str(stand_in.library() / watching.LIBRARY))
    monkeypatch.setattr(watching, "_TICKS_A_SECOND", 3)
    file = tmp_path / "gpus.txt"
    monkeypatch.setenv("NVML_STAND_IN", str(file))
    return StandIn(file)


def watched(file: Path, *names: str, lines: int = 3) -> list[dict[str, Any]]:
    """What a watch has written after so many lines, and its end."""
    watch = GpuWatch(names, file)
    watch.begin()
    assert eventually(lambda: file.exists() and file.read_bytes().count(b"\n") >= lines, 10)
    watch.end()
    found = list(read_seconds(file.read_bytes()))
    assert found[-len(watch.last) :] == watch.last
    return found


@pytest.mark.alone
def test_power_is_added_up_to_the_counter_and_the_state_is_read(gpus: StandIn, tmp_path: Path) -> None:
    gpus.has(gpu(0, 500, swing=200, reasons=0x4 | 0x20 | 0x1), gpu(1, 100))
    first, *_, last = (it for it in watched(tmp_path / "g.jsonl", "0", "1", lines=10) if it["index"] == 0)
    assert last["total_j"] == pytest.approx(last["counter_j"] - first["counter_j"], rel=0.02)
    assert 500 < last["total_peak_w"] <= 700
    assert (last["busy_share"], last["sm_mhz"], last["memory_mhz"], last["celsius"]) == (0.97, 1980, 2619, 54)
    assert (last["memory_used_bytes"], last["uncorrected_errors"]) == (70 << 30, 0)
    assert last["throttled"] == ["power_cap", "sw_thermal"]


def test_what_a_driver_or_a_part_of_a_gpu_does_not_know_is_unknown(
    gpus: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LIBRARY", str(stand_in.library(old=True) / "libnvidia-ml.so.1"))
    gpus.has(gpu(0, 300, reasons=0x80), gpu(1, is_="mig"))
    old, part = watched(tmp_path / "g.jsonl", "0", "MIG-00000001-aaaa", "7")[-2:]
    assert (old["counter_j"], old["throttled"]) == (None, ["power_brake"]) and old["joules"] > 0
    assert (part["seconds"], part["joules"], part["busy_share"], part["throttled"]) == (0, 0, None, None)
    assert part["memory_used_bytes"] == 70 << 30


def test_without_the_library_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LIBRARY", str(tmp_path / "none.so"))
    watch = GpuWatch(["0"], tmp_path / "g.jsonl")
    watch.begin()
    watch.end()
    assert watch.last == [] and not (tmp_path / "g.jsonl").exists()


@pytest.mark.parametrize(
    ("rank", "ranks", "environment", "expected"),
    [
        (0, 1, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "0 1 2 3"),  # a server that spawns its workers
        (5, 4, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, "5"),
        (1, 2, {"CUDA_VISIBLE_DEVICES": "GPU-ab"}, "GPU-ab"),  # Slurm has bound one to each task
        (0, 2, {"CUDA_VISIBLE_DEVICES": ""}, ""),
        (1, 2, {"SLURM_STEP_GPUS": "6,7"}, "7"),
        (1, 2, {}, "1"),  # as planned
    ],
)
def test_two_ranks_never_share_a_gpu(
    rank: int, ranks: int, environment: dict[str, str], expected: str
) -> None:
    options = RankOptions(rank, 8, ranks, "trt", 1.0, ServerSpec("triton", ["x"]))
    assert gpus_of_rank(options, environment, 2) == expected.split()


def test_a_rank_records_its_gpu_and_its_faults_become_causes(ranks: Ranks, tmp_path: Path) -> None:
    gpus = StandIn(tmp_path / "gpus.txt")
    gpus.has(gpu(3, 250))
    variables = {
        "LD_LIBRARY_PATH": str(stand_in.library()),
        "NVML_STAND_IN": str(gpus.file),
        "CUDA_VISIBLE_DEVICES": "0",
    }
    process = ranks.start(supervisor={}, environment=variables)
    ranks.endpoint()
    paths = ranks.runtime.paths
    file = paths.gpu_readings("serve", 0)
    assert eventually(lambda: file.exists(), 10)
    gpus.has(gpu(3, 250, xid=79, is_="lost"))
    assert eventually(lambda: any(it["xids"] for it in read_seconds(file.read_bytes())), 10)
    request_stop(paths, by="companion", reason="it is done")
    code, output = end(process)
    assert code == 0, output
    (last,) = ranks.record().gpus
    assert (last["uuid"], last["total_peak_w"]) == ("GPU-00000003-aaaa", 250.0) and "busy_share" not in last
    assert output.count("NVML: GPU 00000000:04:00.0: GPU is lost") == 1
    log = tmp_path / "log"
    log.write_text(output)
    causes = {it.id for it in logs_facts([log])[0].causes}
    assert causes == {"nvml-gpu-lost", "cuda-xid-bus"}
