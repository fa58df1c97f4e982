"""What ``doctor --on-nodes`` says of a node and of an image, where no cluster is needed to see it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.errors import Diagnostic, StartFailed, fail
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.caches import CACHES, TOP
from trtllm_hpc.runtime.node_checks.exchange import (
    UNATTENDED_VARIABLE,
    ChildReport,
    Wanted,
    read_found,
    run_child,
    wait_until_unattended,
    write_found,
)
from trtllm_hpc.runtime.node_checks.host import look_at_host
from trtllm_hpc.runtime.node_checks.image import look_at_image
from trtllm_hpc.runtime.node_checks.steps import _reduced
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.runtime.servers.triton import find_server


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, but for the shell's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def on_host(tmp_path: Path, **wanted: Any) -> dict[str, Diagnostic]:
    found, _ = look_at_host(RunPaths(tmp_path), Wanted(**wanted))
    return {code: it for code, it in found.items() if it is not None}


def in_image(tmp_path: Path, **wanted: Any) -> dict[str, Diagnostic]:
    found, _ = look_at_image(RunPaths(tmp_path), Wanted(has_tensorrt_llm=False, **wanted))
    return {code: it for code, it in found.items() if it is not None}


def test_numpy_2_beside_nvidia_pytriton_is_refused_before_and_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's stub for Python models would end at the first request."""
    assert "image-numpy" not in in_image(tmp_path)
    versions = {"numpy": "2.2.6", "nvidia-pytriton": "0.7.0"}
    monkeypatch.setattr("trtllm_hpc.runtime.checks.installed_versions", lambda names: versions)
    found = in_image(tmp_path)["image-numpy"]
    assert found.state == "fail" and "NumPy 2.2.6" in found.message and "'numpy<2'" in (found.hint or "")
    with pytest.raises(StartFailed, match=r"NumPy 2\.2\.6"):
        find_server("pytriton", tmp_path)


def test_fewer_gpus_than_were_asked_for(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(programs, "nvidia-smi", "echo 'NVIDIA H100 80GB HBM3, 570.86.15, 81559 MiB'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    few = on_host(tmp_path, gpus_per_node=2)["node-gpus"]
    assert few.state == "fail" and "gave this job 1 GPU(s), not 2" in few.message
    enough = on_host(tmp_path, gpus_per_node=1)["node-gpus"]
    assert enough.state == "ok" and "NVIDIA H100 80GB HBM3, driver 570.86.15" in enough.message
    assert "node-gpus" not in on_host(tmp_path)


def test_a_slurm_without_pmix_is_a_warning(programs: Path, tmp_path: Path) -> None:
    program(programs, "srun", "echo 'MPI plugin types are...'; echo '  none'; echo '  pmi2'")
    found = on_host(tmp_path, mpi="pmix")["node-mpi-plugin"]
    assert found.state == "warn" and "only none, pmi2" in found.message
    assert on_host(tmp_path, mpi="pmi2")["node-mpi-plugin"].state == "ok"


def test_what_haproxy_does_not_say(programs: Path, tmp_path: Path) -> None:
    program(programs, "haproxy", "exit 1")
    assert "does not print a version" in on_host(tmp_path, haproxy="haproxy")["node-haproxy"].message
    program(programs, "haproxy", "echo 'HA-Proxy version 2.4.0 2021/05/14'")
    assert on_host(tmp_path, haproxy="haproxy")["node-haproxy"].state == "ok"


def test_what_the_launcher_calls_must_be_there(programs: Path, tmp_path: Path) -> None:
    for name in ("trtllm-llmapi-launch", "ps"):
        program(programs, name, "exit 0")
    found = in_image(tmp_path, launcher="trtllm-llmapi-launch")["image-launcher"]
    assert found.state == "fail" and "has no openssl" in found.message
    program(programs, "openssl", "exit 0")
    assert in_image(tmp_path, launcher="trtllm-llmapi-launch")["image-launcher"].state == "ok"


def test_options_are_those_of_the_help(programs: Path, tmp_path: Path) -> None:
    program(programs, "trtllm-build", "echo '  --max_batch_size N  see --max_num_tokens'")
    words = ["trtllm-build", "--max_batch_size", "--gemm_plugin=auto"]
    found = in_image(tmp_path, programs=[words])
    assert found["image-programs"].state == "ok"
    assert (
        found["image-options"].state == "fail"
        and "trtllm-build --gemm_plugin" in found["image-options"].message
    )
    missing = in_image(tmp_path, programs=[["quantize.py", "--qformat"]])
    assert missing["image-programs"].state == "fail" and "not on PATH" in missing["image-programs"].message
    assert "image-options" not in missing


def test_every_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "image-caches" not in in_image(tmp_path)
    monkeypatch.setenv(TOP, str(tmp_path))
    for name, folder in CACHES.items():
        monkeypatch.setenv(name, str(tmp_path / "new" / folder))
    assert in_image(tmp_path)["image-caches"].state == "ok"
    assert (tmp_path / "new" / "triton").is_dir()
    monkeypatch.setenv("TRITON_CACHE_DIR", "/proc/cache")
    monkeypatch.delenv("FLASHINFER_WORKSPACE_BASE")
    monkeypatch.delenv("XDG_CACHE_HOME")  # the home has it
    caches = in_image(tmp_path)["image-caches"]
    assert caches.state == "fail" and "TRITON_CACHE_DIR (/proc/cache: " in caches.message
    assert "FLASHINFER_WORKSPACE_BASE (-: not set)" in caches.message and "XDG" not in caches.message


def test_what_is_found_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = RunPaths(tmp_path)
    monkeypatch.setenv("SLURM_PROCID", "1")
    write_found(paths, "ranks", {"ranks-joined": fail("no", "h"), "of-one-node": None}, {"joined": 2})
    monkeypatch.setenv("SLURM_PROCID", "0")
    write_found(paths, "host", {}, {})
    (paths.node_findings / "damaged.json").write_text("{")
    first, second = read_found(paths)
    assert (first.part, second.part, second.task, second.facts) == ("host", "ranks", 1, {"joined": 2})
    assert second.diagnostics == [Diagnostic("ranks-joined", "no", hint="h")]


def test_a_child_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "runtime.py"
    runtime.write_text("import time\nprint('loading', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setattr("sys.argv", [str(runtime)])
    began = time.monotonic()
    outcome = run_child(RunPaths(tmp_path), "image", os.environ, limit_s=1.0)
    assert outcome.ended == "did not end within 1 s" and outcome.steps == {} and "loading" in outcome.log
    assert time.monotonic() - began < 60


def test_a_job_ends_some_time_after_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, now = RunPaths(tmp_path), [0]
    paths.heartbeat.touch()

    def pause(seconds: float) -> None:
        now[0] += int(seconds)
        if now[0] <= 5:
            os.utime(paths.heartbeat, ns=(now[0], now[0]))

    monkeypatch.setenv(UNATTENDED_VARIABLE, "3")
    monkeypatch.setattr(time, "sleep", pause)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    wait_until_unattended(paths)
    # The change at 5 s is seen then, and three more seconds pass without another.
    assert now == [8]


@pytest.mark.parametrize(
    ("event", "state", "message"),
    [
        (("network_ok", {"nodes": 2}), "ok", "the nodes reach each other"),
        (("preflight_failed", {"reason": "network: n1 and n2 cannot talk"}), "fail", "n1 and n2 cannot talk"),
        (("begin", {}), "unknown", "whether the nodes reach each other is not known"),
    ],
)
def test_what_an_earlier_step_has_found_in_the_network(
    tmp_path: Path, event: tuple[str, dict[str, Any]], state: str, message: str
) -> None:
    paths = RunPaths(tmp_path)
    paths.events.mkdir()
    add_event(paths, "serve", event[0], **event[1])
    found = look_at_host(paths, Wanted(tries_network=True))[0]["node-network"]
    assert found is not None and (found.state, found.message) == (state, message)


@pytest.mark.parametrize(
    ("steps", "state", "words"),
    [
        (
            {"nccl": {"library": "NCCL 2.28", "gb_per_s": 226.1}},
            "ok",
            "NCCL 2.28 joins the ranks: an all-red",
        ),
        ({"nccl": {"error": "ModuleNotFoundError: No module named 'torch'"}}, "unknown", "NCCL is not tried"),
        ({"nccl": {"error": "DistBackendError: socket"}}, "fail", "do not reach each other by NCCL: Dist"),
        ({}, "fail", "first all-reduce did not end within 180 s: NCCL INFO"),
    ],
)
def test_whether_nccl_joins_the_ranks(steps: dict[str, Any], state: str, words: str) -> None:
    outcome = ChildReport({"joined": {"world_size": 2}, **steps}, "did not end within 180 s", "NCCL INFO")
    found = _reduced(outcome)
    assert found is not None and found.state == state and words in found.message
