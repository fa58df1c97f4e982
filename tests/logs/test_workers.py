"""Logs that several processes read, each log once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.schemas.check import documented
from trtllm_hpc.paths import RunPaths

from .runs import add_rank, make_run

RANKS = 40


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """40 MB, so that more than one process reads; the last line tells each log from the others."""
    run = make_run(tmp_path_factory.mktemp("workers") / "run")
    filler = "I0721 10:02:03.123456 99 a.cc:1] fine\n" * 26_000
    for rank in range(RANKS):
        log = f"{filler}\x1b[31merr\x1b[0mor: rank {rank} has seen {'x' * rank}!\n"
        add_rank(run, rank, world_size=RANKS, log=log, ended_at=9.0, exit_code=0, stopped_by="SIGTERM")
    return run


def program(run: RunPaths, *options: str) -> str:
    # As a process of its own: pytest's has threads, and then nothing is forked.
    command = [str(Path(sys.executable).parent / "trtllm-hpc"), "logs", str(run.folder), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_list_has_the_error_of_each_log(run: RunPaths) -> None:
    rows = documented("logs", program(run, "--json"))
    expected = [f"error: rank {rank} has seen {'x' * rank}!" for rank in range(RANKS)]
    assert [row["first_error"] for row in rows] == expected


def test_lines_that_match_come_in_the_order_of_the_logs(run: RunPaths) -> None:
    found = program(run, "--grep", "(?i)ERROR: .*SEEN")
    expected = [f"serve[{rank}] \x1b[31merr\x1b[0mor: rank {rank} has seen" for rank in range(RANKS)]
    assert [line.partition(" x")[0].rstrip(" !") for line in found.splitlines()] == expected
