from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.plans import planned_stage, write_plan
from tests.runs.made import run_with
from tests.scheduler.conftest import fake_slurm  # noqa: F401
from tests.scheduler.fake_slurm import FakeSlurm
from tests.schemas.check import documented
from trtllm_hpc.errors import ExitCode, RunNotFound
from trtllm_hpc.logs.reading import escaped
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.runtime.stop import request_stop

from .runs import add_rank, followed, logs, make_run


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run whose build is done, whose rank 1 was killed, and whose companion never came."""
    paths = make_run(tmp_path / "my run $(x)")
    write_plan(paths, world_sizes=(2,), stages=tuple(map(planned_stage, ("build", "serve", "companion"))))
    for stage in ("build", "serve", "companion"):
        paths.sbatch(stage).write_text("#!/bin/bash\n")
    add_event(paths, "build", "stage_begin")
    add_event(paths, "build", "stage_end", exit_code=0)
    paths.batch_log("build").write_text("built\n")
    add_event(paths, "serve", "stage_begin")
    paths.batch_log("serve").write_text("srun: error: n1: task 1: Killed\n")
    add_rank(paths, 0, log="one\ntwo\nthree\n", ended_at=9.0, exit_code=0, stopped_by="SIGTERM")
    add_rank(paths, 1, log=b"one\n\xff\x1b[31mtwo\n", ended_at=8.0, exit_code=-9)
    add_event(paths, "serve", "stage_end", exit_code=137)
    return paths


def test_the_list_tells_state_size_and_first_error(run: RunPaths) -> None:
    rows = documented("logs", logs(run, "--json").output)
    assert [(row["step"], row["rank"], row["host"], row["state"], row["size_bytes"]) for row in rows] == [
        ("build", None, None, "ended 0", 6),
        ("serve", None, None, "failed (signal 9 (SIGKILL))", 32),
        ("serve", 0, "n0", "stopped by SIGTERM", 14),
        ("serve", 1, "n1", "failed (signal 9 (SIGKILL))", 14),
        ("companion", None, None, "never started", None),
    ]
    assert rows[1]["first_error"] == "srun: error: n1: task 1: Killed"
    table = logs(run).output
    assert "srun: error: n1: task 1: Killed" in table and "stopped by SIGTERM" in table


def test_a_rank_without_record_and_a_running_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    add_event(run, "serve", "stage_begin")
    add_rank(run, 0, log="")
    rows = documented("logs", logs(run, "--json").output)
    assert [(row["rank"], row["state"]) for row in rows] == [
        (None, "running"),
        (0, "running"),
        (1, "no record"),
    ]


def test_one_rank_is_printed_as_it_is(run: RunPaths) -> None:
    assert logs(run, "--rank", "0").output == "one\ntwo\nthree\n"


def test_odd_bytes_are_replaced(run: RunPaths) -> None:
    assert logs(run, "--rank", "1").output == "one\n�\x1b[31mtwo\n"


def test_several_logs_are_prefixed(run: RunPaths) -> None:
    assert logs(run, "--stage", "serve", "--tail", "1").output == (
        "serve srun: error: n1: task 1: Killed\nserve[0] three\nserve[1] �\x1b[31mtwo\n"
    )


def test_grep_filters_all_logs(run: RunPaths) -> None:
    assert logs(run, "--grep", "^t|ui").output == "build built\nserve[0] two\nserve[0] three\n"


def test_tail_counts_after_grep(run: RunPaths) -> None:
    assert logs(run, "--rank", "0", "--grep", "o", "--tail", "1").output == "two\n"


def test_grep_without_a_match_exits_with_1(run: RunPaths) -> None:
    result = logs(run, "--grep", "nowhere")
    assert (result.exit_code, result.output) == (1, "")


def test_a_bad_expression_is_a_usage_error(run: RunPaths) -> None:
    result = logs(run, "--grep", "(")
    assert result.exit_code == ExitCode.USAGE and "is not a regular expression" in result.output


def test_json_is_for_the_list_only(run: RunPaths) -> None:
    assert logs(run, "--json", "--rank", "0").exit_code == ExitCode.USAGE


def test_a_log_that_is_not_there_is_named(run: RunPaths) -> None:
    error = logs(run, "--stage", "preflight", "--rank", "0").exception
    assert isinstance(error, RunNotFound) and "preflight[0]" in error.message
    assert error.hint == f"trtllm-hpc logs '{run.folder}'"


@pytest.mark.parametrize("options", [[], ["--follow"], ["--rank", "0"]])
def test_a_run_whose_engine_came_from_the_cache_has_no_build_stage(
    tmp_path: Path, options: list[str]
) -> None:
    run = make_run(tmp_path / "run")
    write_plan(run, engine_found="/cache/e1", stages=(planned_stage("serve"),))
    error = logs(run, "--stage", "build", *options).exception
    assert isinstance(error, RunNotFound)
    assert error.message == "Run run has no build stage: its engine came from the cache (/cache/e1)."
    write_plan(run, stages=(planned_stage("serve"),))
    other = logs(run, "--stage", "build", *options).exception
    assert isinstance(other, RunNotFound) and "names a finished engine" in other.message
    write_plan(run, stages=(planned_stage("build"),))
    if "--follow" not in options:
        late = logs(run, "--stage", "build", *options).exception
        assert isinstance(late, RunNotFound) and "has not written the log of" in late.message


def test_an_unknown_rank_is_a_usage_error(run: RunPaths) -> None:
    for options, words in (
        ([], "serve of run my run $(x) has ranks 0 and 1."),
        (["--follow"], "serve of run my run $(x) has ranks 0 and 1."),
        (["--stage", "build"], "build of run my run $(x) has rank 0 only."),
    ):
        result = logs(run, "--rank", "9", *options)
        assert result.exit_code == ExitCode.USAGE and words in result.output
    components = (*planned_stage("serve").components, *planned_stage("serve", tasks=16).components)
    write_plan(run, world_sizes=(1, 8), stages=(replace(planned_stage("serve"), components=components),))
    assert "has ranks 0 to 7." in logs(run, "--rank", "8").output
    assert "has ranks 0 to 15." in logs(run, "--stage", "preflight", "--rank", "16").output


def states(run: RunPaths) -> list[tuple[str, int | None, str]]:
    rows = documented("logs", logs(run, "--json").output)
    return [(row["step"], row["rank"], row["state"]) for row in rows]


def test_a_cancelled_run_is_listed_as_cancelled(tmp_path: Path) -> None:
    """The local profile notes the cancellation; a job of Slurm may write its end after the request."""
    run = make_run(tmp_path / "run")
    for stage in ("build", "serve", "companion"):
        run.sbatch(stage).write_text("#!/bin/bash\n")
    add_event(run, "build", "stage_begin")
    add_event(run, "build", "stage_cancelled")
    add_event(run, "build", "stage_end", exit_code=143)
    add_event(run, "serve", "stage_begin")
    request_stop(run, by="cancel", reason="the run was cancelled")
    add_event(run, "serve", "stage_end", exit_code=143)
    add_event(run, "companion", "stage_cancelled")
    assert states(run) == [
        ("build", None, "cancelled"),
        ("serve", None, "cancelled"),
        ("companion", None, "never started"),
    ]


def test_states_that_only_slurm_knows_are_listed(fake_slurm: FakeSlurm, tmp_path: Path) -> None:  # noqa: F811
    run = run_with(fake_slurm, tmp_path / "run", "RUNNING", "PENDING", "PENDING")
    add_event(run, "build", "stage_begin", job_id="")
    assert states(run) == [
        ("build", None, "running"),
        ("serve", None, "pending"),
        ("companion", None, "pending"),
    ]
    for job in list(fake_slurm.jobs):
        fake_slurm.set(job, "CANCELLED")
    assert states(run) == [
        ("build", None, "cancelled"),
        ("serve", None, "never started"),
        ("companion", None, "never started"),
    ]


def test_a_killed_servers_ranks_are_not_running(fake_slurm: FakeSlurm, tmp_path: Path) -> None:  # noqa: F811
    run = run_with(fake_slurm, tmp_path / "run", "COMPLETED", "NODE_FAIL", "CANCELLED")
    add_event(run, "build", "stage_end", exit_code=0)
    add_event(run, "serve", "stage_begin", job_id="")
    add_rank(run, 0, world_size=1)
    assert states(run)[1:] == [
        ("serve", None, "ended without a record"),
        ("serve", 0, "ended without a record"),
        ("companion", None, "never started"),
    ]


def test_follow_of_a_run_that_is_over_prints_and_ends(run: RunPaths) -> None:
    lines = logs(run, "--follow", "--tail", "1").output.splitlines()
    assert lines == [
        "build built",
        "serve srun: error: n1: task 1: Killed",
        "serve[0] three",
        "serve[1] �\x1b[31mtwo",
    ]


def test_follow_waits_for_lines_and_ends_with_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    write_plan(run, world_sizes=(2,))
    add_event(run, "serve", "stage_begin")

    def begin() -> None:
        add_rank(run, 1, log="ready\nhalf")

    def end() -> None:
        with run.rank_log("serve", 1).open("a") as log:
            log.write(" and half\nlast")
        add_event(run, "serve", "stage_end", exit_code=0)

    output = followed(monkeypatch, run, "--rank", "1", meanwhile=[begin, end])
    assert output == "ready\nhalf and half\nlast\n"


def test_control_characters_are_escaped_for_a_terminal() -> None:
    assert escaped("a\tb\x1b]0;title\x07\r\u202eevil\x9b") == ("a\tb\\x1b]0;title\\x07\\r\\u202eevil\\x9b")
    assert escaped("naïve 東京 ✓") == "naïve 東京 ✓"
