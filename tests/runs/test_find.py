"""A run by the names that people give it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from tests.plans import write_plan
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.errors import ConfigError, RunNotFound
from trtllm_hpc.paths import RunPaths, call_name, default_runs_folder, user_config_file
from trtllm_hpc.runs.find import find_run, list_runs
from trtllm_hpc.runs.hub import runs_folder
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.scheduler.submission_record import StageJob, SubmissionRecord


def make(folder: Path, name: str, age_s: int, *, submitted: bool = True) -> RunPaths:
    """A run that was made so long ago, and submitted at once."""
    paths = RunPaths(folder)
    paths.make_folders()
    write_plan(paths, name=name)
    os.utime(paths.plan, (1_700_000_000 - age_s, 1_700_000_000 - age_s))
    if submitted:
        submit(paths, age_s)
    return paths


def submit(paths: RunPaths, age_s: int, *, complete: bool = True) -> None:
    job = StageJob("7", 1_700_000_000.0 - age_s)
    SubmissionRecord("local", complete=complete, stages={"serve": job}).write(paths)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    make(folder / "llama-1", "llama", 300)
    make(folder / "llama-2", "llama", 200)
    make(folder / "falcon-1", "falcon", 100)
    (folder / "not-a-run").mkdir()
    (folder / "notes.txt").write_text("")
    return folder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("latest", "falcon-1"),
        ("llama", "llama-2"),
        ("falcon", "falcon-1"),
        ("llama-1", "llama-1"),
    ],
)
def test_runs_are_found_by_id_job_name_and_latest(runs: Path, name: str, expected: str) -> None:
    assert find_run(name, runs).run_id == expected


def test_what_was_not_submitted_is_not_the_latest(runs: Path) -> None:
    rendered = make(runs / "falcon-2", "falcon", 50, submitted=False)
    refused = make(runs / "falcon-3", "falcon", 40, submitted=False)
    SubmissionRecord("slurm").write(refused)
    interrupted = make(runs / "falcon-4", "falcon", 30, submitted=False)
    submit(interrupted, 30, complete=False)
    for name in ("latest", "falcon"):
        assert find_run(name, runs).run_id == "falcon-1"
    for paths in (rendered, refused, interrupted):
        assert find_run(paths.run_id, runs) is not None
    submit(interrupted, 20)
    assert find_run("latest", runs).run_id == find_run("falcon", runs).run_id == "falcon-4"
    submit(RunPaths(runs / "llama-1"), 10)  # it was resumed
    assert find_run("latest", runs).run_id == find_run("llama", runs).run_id == "llama-1"


def test_scripts_submitted_by_hand_make_a_run_the_latest_when_they_begin(runs: Path) -> None:
    by_hand = make(runs / "other-1", "other", 500, submitted=False)
    assert find_run("latest", runs).run_id == "falcon-1"
    add_event(by_hand, "build", "stage_begin", job_id="9")
    assert find_run("latest", runs).run_id == "other-1"


def test_where_nothing_was_submitted_there_is_no_latest_run(tmp_path: Path) -> None:
    make(tmp_path / "demo-1", "demo", 20, submitted=False)
    make(tmp_path / "demo-2", "demo", 10, submitted=False)
    with pytest.raises(RunNotFound, match=r"No run in .* was submitted.*: demo-2\.") as caught:
        find_run("latest", tmp_path)
    assert caught.value.hint == f"trtllm-hpc status {tmp_path / 'demo-2'}"
    assert find_run("demo", tmp_path).run_id == "demo-2"


def test_runs_are_found_by_folder_from_anywhere(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_run(str(runs / "llama-1"), tmp_path / "none").folder == runs / "llama-1"
    monkeypatch.chdir(runs)
    assert find_run("llama-1", tmp_path / "none").folder == runs / "llama-1"


@pytest.mark.parametrize("name", ["nothing", "", "a\0b", "a" * 5000, "../..", "\udcff", "notes.txt"])
def test_an_unknown_name_is_refused_with_the_newest_runs(runs: Path, name: str) -> None:
    with pytest.raises(RunNotFound) as caught:
        find_run(name, runs)
    if "\0" not in name:
        assert "falcon-1, llama-2, llama-1" in caught.value.message
        assert caught.value.hint == f"trtllm-hpc status {runs / 'falcon-1'}"
    assert str(caught.value).encode("utf-8", "backslashreplace")


@pytest.mark.parametrize("folder", ["none", "file"])
def test_no_runs_at_all(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunNotFound, match="there are no runs in") as caught:
        find_run("latest", tmp_path / folder)
    assert caught.value.hint is not None and caught.value.hint.startswith("trtllm-hpc submit starts")
    assert "--runs" in caught.value.hint


def test_folders_that_may_not_be_read_hold_no_runs(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run folders are for their owner alone; somebody else's are no reason for a traceback."""
    real = os.stat

    def stat(path: object, *arguments: object, **more: object) -> os.stat_result:
        if "falcon-1" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    assert [run.run_id for run in list_runs(runs)] == ["llama-2", "llama-1"]
    assert find_run("latest", runs).run_id == "llama-2"
    for name in (str(runs / "falcon-1"), "falcon-1"):
        with pytest.raises(RunNotFound, match=r"falcon-1/plan\.json cannot be read: Permission denied"):
            find_run(name, runs)


def test_a_unique_prefix_of_an_id_is_enough(runs: Path) -> None:
    assert find_run("fal", runs).run_id == "falcon-1"
    with pytest.raises(RunNotFound, match=r"2 runs in .* begin with 'll'. The newest: llama-2, llama-1"):
        find_run("ll", runs)


def test_the_name_for_commands_works_from_anywhere(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRTLLM_HPC_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)
    assert call_name(RunPaths(runs / "llama-1")) == "llama-1"
    odd = make(tmp_path / "my runs" / "llama-9", "llama", 0)
    assert call_name(odd) == f"'{odd.folder}'"
    assert find_run(shlex.split(call_name(odd))[0], default_runs_folder()).folder == odd.folder
    monkeypatch.setenv("TRTLLM_HPC_RUNS", "my runs")
    assert call_name(odd) == "llama-9"


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_damaged_plan_is_an_error_without_traceback(runs: Path, content: str) -> None:
    plan = RunPaths(runs / "llama-2").plan
    plan.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert find_run("llama", runs).run_id == "llama-1"
    assert find_run("llama-2", runs).run_id == "llama-2", "its jobs are known all the same"
    RunPaths(runs / "llama-2").jobs.unlink()
    with pytest.raises(RunNotFound, match=r"plan\.json"):
        find_run("llama-2", runs)
    with pytest.raises(RunNotFound, match=r"plan\.json"):
        find_run(str(runs / "llama-2"), runs)


def test_the_folder_of_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRTLLM_HPC_RUNS", raising=False)
    assert default_runs_folder() == Path("runs").absolute()
    profile = ClusterProfile(name="here", runs_folder="/site/runs")
    assert runs_folder(profile) == Path("/site/runs")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    user_config_file().parent.mkdir()
    user_config_file().write_text('runs_folder = "~/runs"\n')
    assert default_runs_folder() == runs_folder(profile) == Path.home() / "runs"
    monkeypatch.setenv("TRTLLM_HPC_RUNS", "/scratch/runs")
    assert default_runs_folder() == runs_folder(profile) == Path("/scratch/runs")
    monkeypatch.delenv("TRTLLM_HPC_RUNS")
    for wrong in (
        'runs_folder = "runs"',
        "runs_folder = 7",
        "",
        "runs_folder: /runs",
        'runs-folder = "/runs"',
    ):
        user_config_file().write_text(wrong)
        with pytest.raises(ConfigError) as caught:
            default_runs_folder()
        [found] = caught.value.diagnostics
        assert found.file == str(user_config_file()) and "/scratch/me/runs" in (found.hint or "")
