"""A node because of which a server has ended, and whether the next job may get it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.logs.test_causes import EXCERPTS
from tests.runtime.conftest import Runtime
from trtllm_hpc.logs.causes.table import causes
from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runtime.bad_nodes import Pool, bad_hosts, bad_nodes, exclude, exclude_option, expanded
from trtllm_hpc.runtime.heartbeat import SILENT
from trtllm_hpc.runtime.records import RankRecord, read_events
from trtllm_hpc.runtime.renewal import RENEWAL, Renewal

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
SINFO = ["n1|n1|mix", "n2|n2|idle", "n3|n3|idle"]


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.make_folders()
    return paths


def ends(paths: RunPaths, rank: int, **end: Any) -> RankRecord:
    """The record of a rank on its own node, n1, n2...; by default it was told to end by rank 0."""
    record = RankRecord("serve", rank, 3, "7", f"n{rank + 1}", 1, 0.0)
    record = replace(record, **{"ended_at": 9.0, "exit_code": 0, "stopped_by": "leader", **end})
    record.write(paths.rank_record("serve", rank))
    return record


CRASHED = {"exit_code": 1, "stopped_by": None}
KILLED = {"ended_at": None, "exit_code": None, "stopped_by": None}


def says(paths: RunPaths, rank: int, text: str) -> None:
    paths.rank_log("serve", rank).write_text(f"{text}\n")


def test_a_rank_that_fell_silent_names_its_node(run: RunPaths) -> None:
    why = f"rank 1 on n2: {SILENT} for 45 s: its node may be lost, or stopped"
    ends(run, 0, stopped_by="heartbeat", reason=why, blames=1)
    ends(run, 1, **KILLED)
    ends(run, 2)
    assert bad_hosts(run) == {"n2": why}


def test_a_stopped_process_or_a_crash_is_not_the_nodes_fault(run: RunPaths) -> None:
    ends(run, 0, stopped_by="probe", reason="rank 1 on n2: its process x (3) is stopped (SIGSTOP)", blames=1)
    ends(run, 1, **CRASHED)
    assert bad_hosts(run) == {}


def test_the_supervisor_names_a_leader_that_fell_silent(run: RunPaths) -> None:
    why = f"rank 0 on n1: {SILENT} for 46 s: its node may be lost, or stopped"
    write_json(run.instances, [{"instance": 0, "reason": why}])
    ends(run, 0, **KILLED)
    assert bad_hosts(run) == {"n1": why}


def test_a_broken_gpu_is_read_from_the_log_of_a_server_that_failed(run: RunPaths) -> None:
    says(run, 2, ECC)
    for rank in range(3):
        ends(run, rank, stopped_by=RENEWAL)
    assert bad_hosts(run) == {}, "it was stopped in good order"
    ends(run, 0, **CRASHED)
    assert bad_hosts(run) == {"n3": "the log of rank 2 says 'uncorrectable ECC error'"}


ABOUT_NODES = [it.id for it in causes().values() if "without that node" in it.next]


@pytest.mark.parametrize("name", ABOUT_NODES)
def test_it_agrees_with_the_table_of_causes(run: RunPaths, name: str) -> None:
    ends(run, 0, **CRASHED)
    says(run, 0, EXCERPTS[name]["log"])
    assert list(bad_hosts(run)) == ["n1"]
    for near_miss in EXCERPTS[name]["not"]:
        says(run, 0, near_miss)
        assert bad_hosts(run) == {}


@pytest.mark.parametrize(
    ("wanted", "line", "kept"),
    [
        (2, "#SBATCH --time=5", None),
        (3, "#SBATCH --time=5", "without it 2 nodes of the partition could be used, and the job needs 3"),
        (2, "#SBATCH --exclude=n[3-4]", "without it 1 nodes of the partition could be used"),
        (1, "#SBATCH --exclude=n[3-4]", None),
        (1, "#SBATCH --nodelist=n1", "(--nodelist)"),
    ],
)
def test_enough_nodes_stay(run: RunPaths, wanted: int, line: str, kept: str | None) -> None:
    run.sbatch("serve").write_text(f"#!/bin/bash\n{line}\n")
    assert exclude(run, {"n1": "why"}, job_id="7", pools=[Pool.of(SINFO, wanted)]) == (kept is None)
    [node] = bad_nodes(run)
    assert (node.node, node.why, node.job_id) == ("n1", "why", "7")
    assert node.kept is None if kept is None else kept in (node.kept or "")
    assert [event.data["kept"] for event in read_events(run, "serve")] == [node.kept]
    own = "n[3-4]," if "exclude" in line else ""
    assert exclude_option(run) == ("" if kept else f"--exclude={own}n1")


def test_nodes_that_no_job_gets_do_not_count(run: RunPaths) -> None:
    sinfo = ["n1|n1|idle", "n2|n2|drain", "n3|n3|idle*", "n4|n4|drng"]
    assert not exclude(run, {"n1": "why"}, job_id="7", pools=[Pool.of(sinfo, 1)])


def test_a_host_is_not_always_called_as_its_node(run: RunPaths) -> None:
    sinfo = ["gpu-1|worker7|idle", "gpu-2|worker8|idle"]
    assert exclude(run, {"worker7.example.org": "why"}, job_id="7", pools=[Pool.of(sinfo, 1)])
    assert exclude_option(run) == "--exclude=gpu-1"
    assert not exclude(run, {"elsewhere": "why"}, job_id="7", pools=[Pool.of([], 1)])


def test_lists_of_nodes_as_slurm_writes_them() -> None:
    assert expanded("n[1-2,07],login,g[09-11]") == ["n1", "n2", "n07", "login", "g09", "g10", "g11"]


def test_the_scripts_have_slurm_change_the_next_job(runtime: Runtime) -> None:
    paths, job = runtime.paths, {"TRTLLM_HPC_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
    Renewal("7", "8").write(paths.renewal)
    ends(paths, 0, **CRASHED)
    says(paths, 0, ECC)
    command, lines = runtime.command("exclude", "--job=7"), "\n".join(SINFO)
    answers = [
        subprocess.run(command, input=lines, env=job, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert answers == ["JobId=8 ExcNodeList=n1\n", ""], "the second time it is no news"
    assert exclude_option(paths) == "--exclude=n1"
    assert runtime("placed", SLURM_JOB_NODELIST="n[2-3]").returncode == 0
    assert runtime("placed", SLURM_JOB_NODELIST="n[1-2]").returncode != 0
