"""What `logs` and `status` show of a server with many ranks."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.plans import planned_stage, write_plan
from tests.schemas.check import documented
from trtllm_hpc.cli import command as main
from trtllm_hpc.cli.status import command
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import add_event

from .runs import add_rank, logs, make_run

OOM = "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (a.h:1)\n"


def ended_run(folder: Path, **facts: object) -> RunPaths:
    paths = make_run(folder)
    write_plan(paths, scheduler="local", stages=(planned_stage("serve"),), **facts)
    add_event(paths, "serve", "stage_begin")
    add_event(paths, "serve", "stage_end", exit_code=1)
    return paths


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A failed run of 1,024 ranks: rank 5 failed, four were stopped, the others left no record."""
    paths = ended_run(tmp_path / "run")
    add_rank(paths, 5, world_size=1024, log=OOM, ended_at=8.0, exit_code=1)
    for rank in (0, 1, 2, 4):
        log = "error: lost it\n" if rank else "ready\n"
        add_rank(paths, rank, world_size=1024, log=log, ended_at=9.0, exit_code=0, stopped_by="SIGTERM")
    return paths


def status(run: RunPaths, *options: str) -> str:
    arguments = [str(run.folder), "--runs", str(run.folder.parent), *options]
    return CliRunner().invoke(command, arguments).output


def test_status_shows_ranks_in_the_same_state_on_one_line(run: RunPaths) -> None:
    lines = [line for line in status(run).splitlines() if line.startswith("rank")]
    assert lines == [
        "ranks 0-2,4 on 4 hosts: stopped by SIGTERM",
        "ranks 3,6-1023: no record",
        "rank 5 on n5: failed (exit code 1)",
    ]
    record = documented("status", status(run, "--json"))
    assert [rank["rank"] for rank in record["ranks"]] == list(range(1024))


def test_the_list_shows_ranks_in_the_same_state_on_one_line(run: RunPaths) -> None:
    output = logs(run).output
    assert [re.split(" {2,}", line) for line in output.splitlines() if line.startswith("serve ")] == [
        ["serve", "-", "-", "failed (exit code 1)", "-"],
        ["serve", "0-2,4", "4 hosts", "stopped by SIGTERM", "51 B"],
        ["serve", "3,6-1023", "-", "no record", "-"],
        ["serve", "5", "n5", "failed (exit code 1)", f"{len(OOM)} B"],
    ]
    assert output.partition("first errors:\n")[2].splitlines()[:2] == [
        "serve[0-2,4]: rank 1 and 2 more: error: lost it",
        f"serve[5]: {OOM.strip().rpartition('] ')[2]}",
    ]
    assert len(documented("logs", logs(run, "--json").output)) == 1025


def test_the_list_of_a_failed_run_names_the_cause(run: RunPaths) -> None:
    lines = logs(run).output.splitlines()
    assert "cause: The GPU's memory is full." in lines
    assert any(line.startswith("next: Lower the KV cache's share") for line in lines)


def test_of_many_failed_ranks_the_first_eight_are_named(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "run")
    for rank in range(20):
        add_rank(run, rank, world_size=20, ended_at=8.0, exit_code=1)
    lines = [line for line in status(run).splitlines() if line.startswith("rank")]
    assert lines[:8] == [f"rank {rank} on n{rank}: failed (exit code 1)" for rank in range(8)]
    assert lines[8:] == ["ranks 8-19 on 12 hosts: failed (exit code 1)"]


def test_alike_instances_are_on_one_line(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "run", world_sizes=(2,) * 6)
    for instance in range(6):
        for rank in range(2):
            code = 1 if (instance, rank) == (3, 1) else 0
            stopped_by = None if code else "companion"
            step = f"serve.{instance}"
            add_rank(run, rank, step=step, ended_at=8.0, exit_code=code, stopped_by=stopped_by)
    lines = [line for line in status(run).splitlines() if line.startswith(("rank", "instance"))]
    assert lines == [
        "instances 0-2,4-5 ranks 0-1 on 2 hosts: stopped by companion",
        "instance 3 rank 0 on n0: stopped by companion",
        "instance 3 rank 1 on n1: failed (exit code 1)",
    ]
    assert ["serve.0-2,4-5", "0-1"] in [line.split()[:2] for line in logs(run).output.splitlines()]


def test_scattered_ranks_do_not_fill_the_screen(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "run")
    for rank in range(0, 64, 2):
        add_rank(run, rank, world_size=64, ended_at=8.0, exit_code=0, stopped_by="companion")
    assert "ranks 0,2,4,6,8,10,12,14,... (32 in all) on 32 hosts: stopped by companion\n" in status(run)


HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x1b[0m \u202e\x9b2J hf_abcdefghijkl KEY-OF-THE-RUN"


@pytest.mark.parametrize("command", ["status", "status --json", "logs", "logs --json", "explain"])
def test_what_a_log_holds_neither_reaches_the_terminal_as_it_is_nor_shows_a_key(
    tmp_path: Path, command: str
) -> None:
    run = ended_run(tmp_path / "run")
    run.key.write_text("KEY-OF-THE-RUN\n")
    log = f"RuntimeError: {HOSTILE}\nOSError: [Errno 122] Disk quota exceeded: {HOSTILE}\n"
    add_rank(run, 0, world_size=2, log=log, ended_at=8.0, exit_code=1, reason=f"it says {HOSTILE}")
    name, *options = command.split()
    where = (
        [str(run.rank_log("serve", 0))] if name == "explain" else [str(run.folder), "--runs", str(tmp_path)]
    )
    output = CliRunner().invoke(main, [name, *where, *options], color=True).output
    assert "hf_***" in output
    assert "hf_abc" not in output
    assert name == "explain" or "KEY-OF" not in output
    assert all(it == "\n" or unicodedata.category(it) not in ("Cc", "Cf") for it in output)
    assert "\\x1b]0;owned" in output and "[31m" not in output
