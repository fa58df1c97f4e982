"""``status``, ``cancel``, ``render`` and ``submit`` as a person types them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.runs.made import run_with, written
from tests.runs.test_find import make
from tests.scheduler.fake_slurm import FakeSlurm
from tests.schemas.check import documented
from trtllm_hpc.api.run import Run
from trtllm_hpc.cli import command
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.records import Endpoint

HERE = ("job.yaml", "--cluster", "./here.yaml")


@pytest.fixture
def files(home: Path) -> Path:
    """A job file, and the profile of a cluster that the fake Slurm is."""
    (home / "job.yaml").write_text("name: demo\n")
    (home / "here.yaml").write_text("name: here\npartition: batch\nnode_local_folders: []\n")
    return home


# A run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["status", "cancel", "logs"])
def test_an_unknown_run_is_an_error_with_the_next_command(home: Path, types: Types, name: str) -> None:
    nothing = types(name, "tiny")
    assert nothing.code == ExitCode.RUN
    assert f"No run is called 'tiny': there are no runs in {home}/runs." in nothing.errors
    make(home / "runs" / "llama-1", "llama", 0)
    assert "next: trtllm-hpc status llama-1" in types(name, "tiny").errors


def test_status_shows_each_stage_and_what_failed(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    paths = run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "FAILED=8:0", "CANCELLED")
    shown = types("status")
    assert shown.code == 0, shown.errors
    for words in ("demo-1", "COMPLETED", "FAILED", "n1", "failed: stage serve has failed (exit code 8)"):
        assert words in shown.output
    assert f"folder: {paths.folder}" in shown.output
    record = documented("status", types("status", "demo", "--json").output)
    assert (record["state"], record["exit_code"]) == ("failed", ExitCode.READINESS)


def test_status_of_waiting_and_running_jobs_and_of_the_endpoint(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    paths = run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "RUNNING", "PENDING")
    now = int(time.time())
    fake_slurm.set("102", "RUNNING", submitted=now - 900, started=now - 600, ends=now + 3000)
    fake_slurm.set("103", "PENDING", submitted=now - 900, started=now + 7200)
    # ``:AB:`` is an emoji's name in the markup of rich.
    secret: dict[str, Any] = {"key_file": "/k", "certificate_file": "/c", "fingerprint": "4E:AB:65:4D"}
    Endpoint("2", "n1", "10.0.0.1", 1, 2, 3, ["ensemble"], 0.0, **secret).write(paths.endpoint)
    shown = types("status").output
    assert "runs (for 10:" in shown and "until its time limit)" in shown
    assert "(waits for 15:" in shown and ", expected to start " in shown
    assert "SHA-256 4E:AB:65:4D" in shown


@pytest.mark.parametrize(("width", "most"), [(200, 80), (60, 60)])
@pytest.mark.parametrize("words", [("status",), ("logs",), ("explain",)])
def test_a_terminal_gets_sentences_of_at_most_80_columns(
    fake_slurm: FakeSlurm,
    home: Path,
    types: Types,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    width: int,
    most: int,
) -> None:
    paths = run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "FAILED=1:0", "CANCELLED")
    paths.batch_log("serve").write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=102.0.\n")
    whole = types(*words).output
    assert any(len(line) > 80 and line.startswith("next: ") for line in whole.splitlines())
    monkeypatch.setattr("trtllm_hpc.report.tables.terminal_width", lambda: width)
    monkeypatch.setattr("trtllm_hpc.report.log_table.terminal_width", lambda: width)
    monkeypatch.setenv("TERM", "dumb")
    lines = types(*words).output.splitlines()
    long = [
        line for line in lines if len(line) > most and not line.startswith("  ") and str(home) not in line
    ]
    assert long == []
    advice = next(place for place, line in enumerate(lines) if line.startswith("next: "))
    assert lines[advice + 1].startswith("  "), "the sentence goes on in a further line"


def test_a_run_without_gpus_has_no_gpu_hours(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "RUNNING", "PENDING")
    fake_slurm.set("102", "RUNNING", submitted=int(time.time()) - 900, started=int(time.time()) - 600)
    assert "GPU-hours" not in types("status").output and "GPU-h" not in types("runs").output


def test_logs_are_listed_by_stage(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "RUNNING", "PENDING")
    assert types("logs").output.split()[:3] == ["stage", "rank", "host"]


def test_cancel_shows_the_final_state(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "RUNNING", "RUNNING")
    for _ in range(2):
        cancelled = types("cancel", "latest")
        assert cancelled.code == 0
        assert cancelled.output.startswith("demo-1: cancelled, stage serve was cancelled")
    run_with(fake_slurm, home / "runs" / "done-1", "COMPLETED", "COMPLETED", "COMPLETED")
    assert types("cancel", "done-1").output.startswith("done-1: completed, every stage has completed")
    written(home / "runs" / "new-1")
    assert types("cancel", "new-1")[:2] == (0, "new-1 was never submitted: there is nothing to cancel\n")


def test_cancel_without_a_name_takes_the_only_run_that_lives(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    nothing = types("cancel")
    assert nothing.code == ExitCode.RUN and "there is nothing to cancel" in nothing.errors
    for name, states in (("done-1", ["COMPLETED"] * 3), ("live-1", ["COMPLETED", "RUNNING", "PENDING"])):
        run_with(fake_slurm, home / "runs" / name, *states)
    assert types("cancel").output.startswith("live-1: cancelled")
    for name in ("live-2", "live-3"):
        run_with(fake_slurm, home / "runs" / name, "COMPLETED", "RUNNING", "PENDING")
    before = fake_slurm.calls("scancel")
    refused = types("cancel")
    assert refused.code == ExitCode.RUN and fake_slurm.calls("scancel") == before
    assert "2 runs have queued or running jobs: live-3 (running), live-2 (running)." in refused.errors
    assert "trtllm-hpc cancel live-3" in refused.errors


def test_runs_may_be_kept_elsewhere(home: Path) -> None:
    make(home / "elsewhere" / "falcon-1", "falcon", 0)
    for arguments, environment in (
        (["status", "--runs", "elsewhere", "--json"], {}),
        (["status", "--json"], {"TRTLLM_HPC_RUNS": "elsewhere"}),
        (["status", os.fspath(home / "elsewhere" / "falcon-1"), "--json"], {}),
    ):
        shown = CliRunner().invoke(command, arguments, env=environment)
        assert shown.exit_code == 0, shown.output
        assert documented("status", shown.stdout)["run_id"] == "falcon-1"


@pytest.mark.parametrize(
    ("states", "code", "words"),
    [
        (("CANCELLED", "CANCELLED", "CANCELLED"), ExitCode.CANCELLED, "stage build was cancelled"),
        (("COMPLETED", "NODE_FAIL", "CANCELLED"), ExitCode.START, "has no server: stage serve"),
        (("COMPLETED", "COMPLETED", "COMPLETED"), ExitCode.START, "The server of run demo-1 has already"),
    ],
)
def test_a_run_that_can_never_answer_is_not_waited_for(
    fake_slurm: FakeSlurm, home: Path, types: Types, states: tuple[str, str, str], code: ExitCode, words: str
) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", *states)
    for arguments in (["client", "--prompt", "x", "--wait-seconds", "100"], ["bench"]):
        asked = types(*arguments)
        assert asked.code == code and words in asked.errors, asked.errors


def test_a_run_that_may_still_answer_is_waited_for(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", "RUNNING", "PENDING", "PENDING")
    asked = types("client", "--prompt", "x", "--wait-seconds", "0.2")
    assert asked.code == ExitCode.READINESS and "no endpoint within 0.2 s" in asked.errors
    # One question at the first pause and one at the end: Slurm is not asked at every turn.
    assert len([call for call in fake_slurm.calls() if call[0] == "squeue"]) == 2


# A job file ----------------------------------------------------------------------------------


def test_a_refused_submission_has_its_exit_code_and_does_not_take_over_latest(
    fake_slurm: FakeSlurm, files: Path, types: Types
) -> None:
    run_with(fake_slurm, files / "runs" / "demo-1", "COMPLETED", "RUNNING", "RUNNING")
    (files / "here.yaml").write_text("name: here\npartition: gpuu\nnode_local_folders: []\n")
    before = types("submit", *HERE)
    assert before.code == ExitCode.CONFIG and "there is no partition 'gpuu'" in before.errors
    refused = types("submit", *HERE, "--ignore", "partition")
    assert refused.code == ExitCode.SUBMISSION
    assert "Invalid partition name specified" in refused.errors
    assert "set partition in the cluster profile" in refused.errors
    [run] = (it for it in (files / "runs").iterdir() if it.name != "demo-1")
    assert f"The rendered scripts are in {run}/scripts." in refused.errors
    status = types("status", run.name).output
    assert "cause: Sbatch refused" in status and "Invalid partition name specified" in status
    assert "next: sinfo, then set partition in the cluster profile" in status
    assert types("render", *HERE).code == 0
    for words in (("status",), ("status", "latest"), ("status", "demo")):
        assert types(*words).output.startswith("run demo-1"), types(*words)
    assert types("cancel").output.startswith("demo-1: cancelled")
    assert Run.find().id == "demo-1"


def test_the_next_command_names_the_folder_where_the_id_would_not_do(
    fake_slurm: FakeSlurm, files: Path, types: Types
) -> None:
    assert "build: job " in (near := types("submit", *HERE, "--runs", "runs").output)
    [run] = (files / "runs").iterdir()
    assert f"next: trtllm-hpc status {run.name}, or trtllm-hpc logs {run.name} --follow" in near
    far = types("submit", *HERE, "--runs", "elsewhere").output
    [run] = (files / "elsewhere").iterdir()
    assert f"next: trtllm-hpc status '{run}', or trtllm-hpc logs '{run}' --follow" in far


def test_render_and_submit_name_the_run_and_what_to_submit_by_hand(
    fake_slurm: FakeSlurm, files: Path, types: Types
) -> None:
    for name, made in (("render", "scripts"), ("submit", "jobs")):
        record = documented(name, types(name, *HERE, "--json").output)
        assert list(record) == ["run_id", "folder", made, "engine"]
        assert Path(record["folder"]).name == record["run_id"]
    output = types("render", *HERE, "--runs", "by hand").output
    [run] = (files / "by hand").iterdir()
    assert f"rendered {run}" in output and f"cd '{run}'" in output
    assert "companion=$(sbatch --parsable" in output
    assert "--dependency=after:$serve,afterok:$build" in output


def test_a_dry_run_shows_what_submit_would_do_and_leaves_nothing(
    fake_slurm: FakeSlurm, files: Path, types: Types
) -> None:
    before = sorted(files.rglob("*"))
    output = types("submit", *HERE, "--dry-run").output
    assert f"  folder {files / 'runs'}/demo-" in output
    assert "  serve=$(sbatch --parsable" in output and "--dependency=after:$serve,afterok:$build" in output
    assert "Nothing was written or submitted." in output
    record = documented("submit", types("submit", *HERE, "--dry-run", "--json").output)
    assert list(record) == ["run_id", "folder", "commands", "engine"]
    assert record["commands"][0] == f"cd '{record['folder']}'"
    assert [line.partition("=")[0] for line in record["commands"][1:]] == ["build", "serve", "companion"]
    assert "choose one" in types("submit", *HERE, "--dry-run", "--wait").errors
    assert sorted(files.rglob("*")) == before and fake_slurm.calls("sbatch") == []


def test_a_dry_run_ends_as_the_checks_of_submit(fake_slurm: FakeSlurm, files: Path, types: Types) -> None:
    (files / "here.yaml").write_text("name: here\npartition: gpuu\nnode_local_folders: []\n")
    refused = types("submit", *HERE, "--dry-run")
    assert refused.code == ExitCode.CONFIG and "there is no partition 'gpuu'" in refused.errors
    ignored = types("submit", *HERE, "--dry-run", "--ignore", "partition")
    assert ignored.code == 0 and "Nothing was written or submitted." in ignored.output


def test_all_problems_are_reported_at_once_and_nothing_is_written(
    fake_slurm: FakeSlurm, files: Path, types: Types
) -> None:
    (files / "job.yaml").write_text("name: demo\nengin: {}\nserve:\n  nodes: many\n")
    more = ("--set", "companion.request.prompt=a b", "--runs", "r s")
    for name in ("render", "submit"):
        refused = types(name, "job.yaml", "--cluster", "local", *more)
        assert refused.code == ExitCode.CONFIG and "2 problems found.\n" in refused.errors
        assert "job.yaml:2" in refused.errors and "job.yaml:4" in refused.errors
        assert refused.errors.endswith(
            f"  next: fix them and type: trtllm-hpc {name} job.yaml --cluster local "
            "--set 'companion.request.prompt=a b' --runs 'r s'\n"
        )
    assert not (files / "runs").exists() and fake_slurm.calls() == []


WRONG = [f"--set={it}" for it in ("serve.nodes=many", "serve.nods=2", "nonsense", "serve.instances=3")]
IMAGE = "--set=cluster.container.image=tritonserver:25.10-trtllm-python-py3"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("none.yaml", "--cluster", "local"),
            ["no such job file", "trtllm-hpc init job writes one"],
        ),
        (("tiny-lama",), ["did you mean tiny-llama, which"]),
        (("job.yaml", "--cluster", "site"), ["called 'site'; did you mean ./site.yaml?"]),
        (
            ("job.yaml", "--cluster", "local", *WRONG),
            ["--set serve.nodes=VALUE --set KEY=VALUE --set KEY=VALUE --set serve.instances=3"],
        ),
        (
            ("ifb-gpt", "--cluster", "pyxis", IMAGE),
            [
                "next: type --set engine.tensorrt_llm_version=null to go by the image, or name",
                "add --set KEY=VALUE for each key to change to: trtllm-hpc render ifb-gpt",
                "or edit a copy: cp ",
            ],
        ),
        (
            ("site.yaml", "--cluster", "job.yaml"),
            [
                "1 problem found.\nsite.yaml: this is a cluster profile, not a job file; job.yaml is the job",
                "next: trtllm-hpc render job.yaml --cluster site.yaml",
            ],
        ),
        (("site.yaml", "--cluster", "local"), ["1 problem found.\nsite.yaml: this is a cluster profile"]),
        (("tiny-llama", "--cluster", "job.yaml"), ["1 problem found.\njob.yaml: this is a job file"]),
        (("latest.yaml",), ["latest.yaml:1: name: 'latest' means the last submitted run"]),
    ],
)
def test_a_mistake_gets_a_sentence_and_the_next_command(
    home: Path, types: Types, words: tuple[str, ...], said: list[str]
) -> None:
    (home / "job.yaml").write_text("name: demo\nmodel: {synthetic: tiny-llama}\nserve: {nodes: 1}\n")
    (home / "latest.yaml").write_text("name: latest\n")
    (home / "site.yaml").write_text("name: site\npartition: gpu\ngpus_per_node: 4\n")
    refused = types("render", *words)
    assert refused.code == ExitCode.CONFIG
    assert [it for it in said if it not in refused.errors] == [], refused.errors


def test_an_impossible_runs_folder_is_refused(files: Path, types: Types) -> None:
    bad = types("render", "job.yaml", "--cluster", "local", "--runs", "100%")
    assert bad.code == ExitCode.RENDER and "choose another folder with --runs" in bad.errors
    below = types("render", "job.yaml", "--cluster", "local", "--runs", "job.yaml/runs")
    assert below.code == ExitCode.RENDER and "cannot be written" in below.errors
    for name in ("doctor", "submit"):
        key = f"cluster.runs_folder=/{'x' * 300}"
        refused = types(name, "job.yaml", "--cluster", "local", "--set", key)
        said = refused.output + refused.errors
        assert refused.code == ExitCode.CONFIG and "namei -l" in said and "Traceback" not in said


def test_a_prompt_without_quotes_is_advised_to_have_them(home: Path, types: Types) -> None:
    refused = types("client", "What", "is", "ML?")
    assert refused.code == ExitCode.RUN
    assert (
        "next: to send all words as one prompt, quote them: trtllm-hpc client 'What is ML?'" in refused.errors
    )
