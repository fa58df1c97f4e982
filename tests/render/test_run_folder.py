"""The run folder: whole or not at all, and the runtime that travels in it."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.render.cases import CASES, plan_of
from trtllm_hpc.errors import RenderError
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.render.run_folder import write_run
from trtllm_hpc.render.scripts import render_scripts


def plan(folder: Path, case: str = "sandbox-two-ranks") -> Plan:
    return plan_of(*CASES[case], str(folder))


def test_what_is_written_is_what_is_rendered(tmp_path: Path) -> None:
    made = plan(tmp_path / "new" / "a run's")
    paths = write_run(made)
    for name, text in render_scripts(made).items():
        script = paths.scripts / name
        assert script.read_text() == text
        assert os.access(script, os.X_OK)
    assert paths.spec.is_file() and paths.cluster.is_file() and paths.plan.is_file()
    assert (paths.repository / "ensemble" / "1").is_dir()


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    made = plan(tmp_path / "run")
    write_run(made)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")}
    with pytest.raises(RenderError, match="is already there"):
        write_run(made)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")} == before


def test_a_file_where_a_folder_should_be_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    for folder in (tmp_path / "runs" / "a", tmp_path / "runs" / "a" / "b"):
        with pytest.raises(RenderError, match="cannot be written") as caught:
            write_run(plan(folder))
        assert caught.value.hint is not None and "--runs" in caught.value.hint


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a full disk, writing fails at some point."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 1500, 10_000])
def test_a_disk_that_fills_up_leaves_nothing_half_made(tmp_path: Path, size: int) -> None:
    with largest_file(size), pytest.raises(RenderError, match="cannot be written") as caught:
        write_run(plan(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []
    assert str(caught.value.hint).startswith("ulimit -f unlimited, then")


def test_a_umask_that_shuts_out_its_owner_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        with pytest.raises(RenderError, match="umask of your shell, 0777, you cannot use") as caught:
            write_run(plan(tmp_path / "run"))
    finally:
        os.umask(before)
    assert str(caught.value.hint).startswith("umask 077") and list(tmp_path.iterdir()) == []


def test_a_value_that_fits_no_script_leaves_nothing_half_made(tmp_path: Path) -> None:
    job, cluster = CASES["sandbox-two-ranks"]
    bad = plan_of(job, {**cluster, "environment": {"A": "a"}}, str(tmp_path / "run"))
    bad.cluster.environment["A"] = "a\0b"
    with pytest.raises(RenderError, match="NUL"):
        write_run(bad)
    assert list(tmp_path.iterdir()) == []


# The runtime ----------------------------------------------------------------------------


def test_the_runtime_starts_with_nothing_but_the_standard_library(tmp_path: Path) -> None:
    paths = write_run(plan(tmp_path / "run"))
    answer = subprocess.run(
        [sys.executable, "-I", "-S", str(paths.runtime), "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    for command in ("begin", "end", "leader", "preflight", "rank", "sweep", "spawn", "stop", "heartbeat"):
        assert command in answer.stdout


@pytest.mark.parametrize(
    ("profile", "serve", "lines"),
    [
        ({"gpu_request": "gres", "gpu_type": "a100", "gres": ["nvme:1000"]}, {},
         ["--gres=gpu:a100:4,nvme:1000"]),
        ({"gres": ["tmpfs:200g", "nvme:1"]}, {}, ["--gres=tmpfs:200g,nvme:1", "--gpus-per-node=4"]),
        ({"gpus_per_node": 0, "gres": ["nvme:1"]}, {}, ["--gres=nvme:1"]),
        ({"exclusive": True}, {"memory_gib_per_node": "all"},
         ["--mem=0", "--gpus-per-node=4", "--exclusive"]),
        ({"exclusive": "user"}, {}, ["--gpus-per-node=4", "--exclusive=user"]),
    ],
)  # fmt: skip
def test_what_only_the_server_asks_for(
    tmp_path: Path, profile: dict[str, Any], serve: dict[str, Any], lines: list[str]
) -> None:
    job = {"name": "demo", "engine": {"tensor_parallel": 4}, "serve": serve, "build": {"memory_gib": "all"}}
    cluster = {"name": "here", "gpus_per_node": 4, **profile}
    scripts = render_scripts(plan_of(job, cluster, str(tmp_path / "run")))
    asked = re.findall(r"^#SBATCH (--(?:gres|mem|gpus|exclusive).*)", scripts["serve.sbatch"], re.MULTILINE)
    assert asked == lines
    assert "gres" not in scripts["companion.sbatch"] and "--mem=0" in scripts["build.sbatch"]


def test_several_interfaces_reach_the_ranks_whole(tmp_path: Path) -> None:
    job = {"name": "demo", "engine": {"tensor_parallel": 2}, "serve": {"nodes": 2}}
    cluster = {"name": "here", "gpus_per_node": 1, "network_interface": "hsn0,hsn1"}
    scripts = render_scripts(plan_of(job, cluster, str(tmp_path / "run")))
    assert "\nexport TRTLLM_HPC_INTERFACES=hsn0,hsn1\n" in scripts["serve.sbatch"]
    assert "--interface=hsn0,hsn1" in scripts["instance.sh"]
    assert "--mca oob_tcp_if_include hsn0,hsn1" in scripts["mpirun.sh"]
