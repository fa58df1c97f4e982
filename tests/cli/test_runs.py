"""``runs``: all runs at a glance, and the old ones removed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.runs.made import run_with, written
from tests.scheduler.fake_slurm import CONTROLLER_GONE, FakeSlurm
from tests.schemas.check import documented
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import STAGES, RunPaths
from trtllm_hpc.runs.submit import sole_command
from trtllm_hpc.runtime.records import Endpoint, add_event
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord, write_record

DAY_S = 86400


@pytest.fixture
def made(fake_slurm: FakeSlurm, home: Path) -> Callable[..., RunPaths]:
    """Make a run whose three jobs are in this state; they ended some days ago."""

    def make(name: str, state: str, *, days: float = 0) -> RunPaths:
        paths = run_with(fake_slurm, home / "runs" / name, *[state] * 3)
        moment = time.time() - days * DAY_S
        for job in (read_submission(paths) or SubmissionRecord("slurm")).stages.values():
            times = [str(int(moment) - before) for before in (7200, 3600, 0)]
            given = "billing=8,cpu=8,gres/gpu:h100=4,gres/gpu=4,node=1"
            facts = dict(zip(("submitted", "started", "ends"), times, strict=True))
            fake_slurm.set(job.job_id, state, given=given, **facts)
        os.utime(paths.plan, (moment, moment))
        return paths

    return make


def listed(types: Types, *words: str) -> list[dict[str, Any]]:
    shown = types("runs", *words, "--json")
    assert shown.code == 0, shown.errors
    rows: list[dict[str, Any]] = documented("runs", shown.output)
    return rows


def test_every_run_has_its_state_model_endpoint_and_age(
    made: Callable[..., RunPaths], types: Types, home: Path
) -> None:
    made("demo-1", "FAILED", days=3)
    serving = made("demo-2", "RUNNING", days=1)
    Endpoint("2", "n1", "10.0.0.1", 8000, 8001, 8002, ["ensemble"], 0.0).write(serving.endpoint)
    written(home / "runs" / "demo-3")
    rows = listed(types)
    assert [(row["run_id"], row["state"]) for row in rows] == [
        ("demo-3", "rendered"),
        ("demo-2", "serving"),
        ("demo-1", "failed"),
    ]
    assert rows[1]["endpoint"] == "10.0.0.1:8000" and rows[1]["model"] == "tiny-llama"
    assert rows[2]["gpu_hours"] == 12.0
    table = types("runs").output.splitlines()
    assert table[0].split() == ["run", "state", "model", "endpoint", "age", "GPU-h"]
    assert table[-1].split() == ["demo-1", "failed", "tiny-llama", "-", "3", "days", "12"]


def test_they_are_filtered(made: Callable[..., RunPaths], types: Types, home: Path) -> None:
    made("old-1", "COMPLETED", days=9)
    made("new-1", "FAILED", days=1)
    made("new-2", "RUNNING")
    for _ in range(2):  # the second time the states of two are remembered
        rows = listed(types, "--state", "failed", "--state", "completed")
        assert [row["run_id"] for row in rows] == ["new-1", "old-1"]
    assert f"no such runs in {home}/runs\n" == types("runs", "--state", "lost").output


def test_slurm_is_asked_once_for_all_and_never_again_about_what_has_ended(
    fake_slurm: FakeSlurm, made: Callable[..., RunPaths], types: Types, home: Path
) -> None:
    for number in range(3):
        made(f"ended-{number}", "COMPLETED", days=1)
        made(f"busy-{number}", "PENDING")
        written(home / "runs" / f"rendered-{number}")
    assert len(listed(types)) == 9
    first = fake_slurm.calls()
    assert [call[0] for call in first] == ["squeue", "squeue", "sacct"]  # queued by hand; by id; what ended
    assert [row["state"] for row in listed(types)].count("completed") == 3
    again = fake_slurm.calls()[len(first) :]
    assert [call[0] for call in again] == ["squeue", "squeue"]
    assert len(again[1][-1].split(",")) == 9


def test_a_resumed_run_and_one_run_again_by_hand_are_asked_for_again(
    fake_slurm: FakeSlurm, made: Callable[..., RunPaths], types: Types
) -> None:
    resumed, by_hand = made("demo-1", "FAILED"), made("demo-2", "COMPLETED")
    assert {row["state"] for row in listed(types)} == {"failed", "completed"}
    record = SubmissionRecord("slurm", complete=True)
    for stage in STAGES:
        record.add(resumed, stage, job := fake_slurm.add("RUNNING"))
        fake_slurm.assign(resumed, {stage: job})
    again = fake_slurm.add("RUNNING")
    fake_slurm.assign(by_hand, {"serve": again})
    add_event(by_hand, "serve", "stage_begin", job_id=again)
    assert {row["state"] for row in listed(types)} == {"running"}


def test_without_slurms_answer_the_rest_is_shown(
    fake_slurm: FakeSlurm, made: Callable[..., RunPaths], types: Types
) -> None:
    made("demo-1", "COMPLETED")
    listed(types)
    made("demo-2", "RUNNING")
    fake_slurm.trouble("squeue", CONTROLLER_GONE)
    shown = types("runs")
    assert shown.code == 0 and "Unable to contact slurm controller" in shown.errors
    states = {line.split()[0]: line.split()[1] for line in shown.output.splitlines()[2:]}
    assert states == {"demo-1": "completed", "demo-2": "unknown"}


# prune --------------------------------------------------------------------------------


ALL = ("--older-than", "0s")


def pruned(types: Types, *words: str) -> dict[str, str]:
    """What becomes of each chosen run or sweep."""
    shown = types("runs", "prune", *words)
    assert shown.code == 0, shown.errors
    lines = [line for line in shown.output.splitlines() if ": " in line and "next:" not in line]
    return {name: fate for name, _, fate in (line.partition(": ") for line in lines)}


def left(home: Path) -> list[str]:
    return sorted(folder.name for folder in (home / "runs").iterdir())


def test_old_ended_runs_are_listed_and_with_yes_removed(
    made: Callable[..., RunPaths], types: Types, home: Path
) -> None:
    for days in (1, 31, 40):
        made(f"ended-{days}", "COMPLETED", days=days)
    made("busy-90", "RUNNING", days=90)
    served = made("served-2", "COMPLETED", days=2)
    os.utime(served.plan, (0, 0))  # it is as old as its end
    shown = types("runs", "prune", "--older-than", "30d")
    assert "ended-40: would be removed, it ended 40 days ago" in shown.output
    assert "next: the same command with --yes" in shown.output and len(left(home)) == 5
    gone = pruned(types, "--older-than", "30d", "--yes")
    assert list(gone) == ["ended-31", "ended-40"]
    assert left(home) == ["busy-90", "ended-1", "served-2"]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_failed_run_with_a_job_that_has_not_ended_stays(
    fake_slurm: FakeSlurm, home: Path, types: Types, state: str
) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "FAILED=7:0", state)
    assert pruned(types, *ALL, "--yes") == {} and left(home) == ["demo-1"]


def test_what_slurm_does_not_say_is_no_end(
    fake_slurm: FakeSlurm, made: Callable[..., RunPaths], types: Types, home: Path
) -> None:
    lost = made("lost-1", "COMPLETED", days=1)
    for job in (read_submission(lost) or SubmissionRecord("slurm")).stages.values():
        fake_slurm.forget(job.job_id)
    assert types("runs", "prune", *ALL, "--yes").output == "0 removed\n"
    made("demo-1", "COMPLETED", days=1)
    fake_slurm.trouble("squeue", CONTROLLER_GONE)
    silent = types("runs", "prune", *ALL, "--yes")
    assert silent.output == "0 removed\n" and "Unable to contact" in silent.errors
    assert left(home) == ["demo-1", "lost-1"]


def test_a_half_removed_run_is_no_run_and_goes_with_the_next_prune(
    made: Callable[..., RunPaths], types: Types, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("demo-1", "COMPLETED", days=9)

    def interrupted(*arguments: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        assert types("runs", "prune", *ALL, "--yes").code == ExitCode.INTERRUPTED
    assert left(home) == [".removed-demo-1"]
    assert listed(types) == []
    [fate] = pruned(types, "--older-than", "30d", "--yes").values()
    assert fate == "removed, it was left by an interrupted removal" and left(home) == []


def test_what_another_command_is_at_stays(
    fake_slurm: FakeSlurm, made: Callable[..., RunPaths], types: Types, home: Path
) -> None:
    resumed, busy = made("resumed-1", "COMPLETED", days=9), made("busy-1", "COMPLETED", days=8)
    # The run is resumed after it was found to have ended.
    squeue, token = fake_slurm.bin / "squeue", '"token": "'
    line = f"sed -i 's/{token}/{token}f/' '{resumed.jobs}'"
    squeue.write_text(squeue.read_text().replace("exec ", f"{line}\nexec "))
    with sole_command(busy):
        done = pruned(types, *ALL, "--yes")
    assert done == {
        "resumed-1": "stays, it was submitted again just now",
        "busy-1": "stays, it is submitted, cancelled or removed by another command right now",
    }
    assert left(home) == ["busy-1", "resumed-1"]


def test_a_sweep_goes_as_a_whole_when_its_last_variant_has_ended(
    fake_slurm: FakeSlurm, made: Callable[..., RunPaths], types: Types, home: Path
) -> None:
    for sweep, state in (("ended-1", "FAILED"), ("busy-1", "RUNNING")):
        for variant, its in (("tp1", "COMPLETED"), ("tp2", state)):
            made(f"sweeps/{sweep}/{variant}", its, days=9)
        write_record(SweepPaths(home / "runs" / "sweeps" / sweep), SweepRecord("demo", "sandbox", (), ()))
    (home / "runs" / "best").symlink_to("sweeps/ended-1/tp1")
    made("demo-1", "COMPLETED")
    done = pruned(types, "--older-than", "2d", "--yes")
    assert list(done) == ["sweeps/ended-1"]
    assert left(home) == ["best", "demo-1", "sweeps"]
    assert sorted(folder.name for folder in (home / "runs" / "sweeps").iterdir()) == ["busy-1"]


def test_a_run_whose_record_cannot_be_read_saves_no_other(
    made: Callable[..., RunPaths], types: Types, home: Path
) -> None:
    made("ended-1", "COMPLETED", days=1)
    damaged = made("damaged-1", "RUNNING", days=1)
    damaged.jobs.unlink()
    damaged.jobs.mkdir()
    assert list(pruned(types, *ALL, "--yes")) == ["ended-1"]
    assert left(home) == ["damaged-1"]


def test_a_local_run_on_another_machine_stays(home: Path, types: Types) -> None:
    for name, host in (("here-1", os.uname().nodename), ("there-1", "another-machine")):
        _, paths = written(home / "runs" / name, scheduler="local")
        record = SubmissionRecord("local", complete=True)
        for stage in STAGES:
            record.add(paths, stage, "999999", process_started=1)
            facts: dict[str, Any] = {"host": host, "group": 999999, "group_started": 1}
            add_event(paths, stage, "stage_begin", job_id="local1", **facts)
    for _ in range(2):
        assert list(pruned(types, *ALL)) == ["here-1"]
