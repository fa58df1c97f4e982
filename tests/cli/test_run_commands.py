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


@pytest.mark.parametrize("name", ["status", "cancel", "logs"])
def test_an_unknown_run_is_an_error_with_the_next_command(home: Path, types: Types, name: str) -> None:
    nothing = types(name, "tiny")
    assert nothing.code == ExitCode.RUN
    assert f"No run is called 'tiny': there are no runs in {home}/runs." in nothing.errors
    make(home / "runs" / "llama-1", "llama", 0)
    other = types(name, "tiny")
    assert other.code == ExitCode.RUN and "next: trtllm-hpc status llama-1" in other.errors


def test_status_shows_each_stage_and_what_failed(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    paths = run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "FAILED=8:0", "CANCELLED")
    shown = types("status")
    assert shown.code == 0, shown.errors
    for words in ("demo-1", "COMPLETED", "FAILED", "n1", "failed: stage serve has failed (exit code 8)"):
        assert words in shown.output
    assert f"folder: {paths.folder}" in shown.output
    record = documented("status", types("status", "demo", "--json").output)
    assert (record["state"], record["exit_code"]) == ("failed", ExitCode.READINESS)


def test_status_says_when_a_waiting_job_is_expected_and_what_a_running_one_has_left(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "RUNNING", "PENDING")
    now = int(time.time())
    fake_slurm.set("102", "RUNNING", submitted=now - 900, started=now - 600, ends=now + 3000)
    fake_slurm.set("103", "PENDING", submitted=now - 900, started=now + 7200)
    shown = types("status").output
    assert "runs (for 10:" in shown and "until its time limit)" in shown
    assert "(waits for 15:" in shown and ", expected to start " in shown


def test_what_stands_between_colons_is_shown_as_it_is(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    """``:AB:`` is an emoji's name in the markup of rich."""
    paths = run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "RUNNING", "RUNNING")
    secret: dict[str, Any] = {"key_file": "/k", "certificate_file": "/c", "fingerprint": "4E:AB:65:4D"}
    Endpoint("2", "n1", "10.0.0.1", 1, 2, 3, ["ensemble"], 0.0, **secret).write(paths.endpoint)
    assert "SHA-256 4E:AB:65:4D" in types("status").output


def test_cancel_shows_the_final_state(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "RUNNING", "RUNNING")
    cancelled = types("cancel", "latest")
    assert cancelled.code == 0
    assert cancelled.output.startswith("demo-1: cancelled, stage serve was cancelled")
    again = types("cancel", "latest")
    assert again.code == 0
    assert again.output.startswith("demo-1: cancelled, stage serve was cancelled")
    run_with(fake_slurm, home / "runs" / "done-1", "COMPLETED", "COMPLETED", "COMPLETED")
    assert types("cancel", "done-1").output.startswith("done-1: completed, every stage has completed")
    written(home / "runs" / "new-1")
    rendered = types("cancel", "new-1")
    assert (rendered.code, rendered.output) == (
        0,
        "new-1 was never submitted: there is nothing to cancel\n",
    )


def test_cancel_without_a_name_takes_the_only_run_that_lives(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    nothing = types("cancel")
    assert nothing.code == ExitCode.RUN and "there is nothing to cancel" in nothing.errors
    run_with(fake_slurm, home / "runs" / "live-1", "COMPLETED", "RUNNING", "PENDING")
    run_with(fake_slurm, home / "runs" / "done-1", "COMPLETED", "COMPLETED", "COMPLETED")
    written(home / "runs" / "new-1")
    assert types("cancel").output.startswith("live-1: cancelled")
    assert types("cancel").code == ExitCode.RUN


def test_cancel_without_a_name_refuses_where_several_live(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    for number, state in ((1, "RUNNING"), (2, "PENDING")):
        run_with(fake_slurm, home / "runs" / f"demo-{number}", "COMPLETED", state, "PENDING")
    refused = types("cancel")
    assert (
        refused.code == ExitCode.RUN and "2 runs live: demo-2 (running), demo-1 (running)." in refused.errors
    )
    assert "trtllm-hpc cancel demo-2" in refused.errors and fake_slurm.calls("scancel") == []


def test_a_refused_submission_does_not_take_over_latest(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "RUNNING", "RUNNING")
    (home / "job.yaml").write_text("name: demo\n")
    (home / "here.yaml").write_text("name: here\npartition: gpuu\nnode_local_folders: []\n")
    ignoring = ("--ignore", "partition")
    assert types("submit", "job.yaml", "--cluster", "./here.yaml", *ignoring).code == ExitCode.SUBMISSION
    assert types("render", "job.yaml", "--cluster", "./here.yaml").code == 0
    assert len(list((home / "runs").iterdir())) == 3
    for words in (("status",), ("status", "latest"), ("status", "demo")):
        assert types(*words).output.startswith("run demo-1"), types(*words)
    assert types("cancel").output.startswith("demo-1: cancelled")
    assert Run.find().id == "demo-1"


def test_a_refused_submission_ends_with_its_own_exit_code(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    (home / "job.yaml").write_text("name: demo\n")
    (home / "here.yaml").write_text("name: here\npartition: gpuu\nnode_local_folders: []\n")
    before = types("submit", "job.yaml", "--cluster", "./here.yaml")
    assert before.code == ExitCode.CONFIG and "there is no partition 'gpuu'" in before.errors
    refused = types("submit", "job.yaml", "--cluster", "./here.yaml", "--ignore", "partition")
    assert refused.code == ExitCode.SUBMISSION
    assert "Invalid partition name specified" in refused.errors
    assert "set partition in the cluster profile" in refused.errors
    [run] = (home / "runs").iterdir()
    assert f"The rendered scripts are in {run}/scripts." in refused.errors
    status = types("status", run.name).output
    assert "cause: Sbatch refused" in status and "Invalid partition name specified" in status
    assert "next: sinfo, then set partition in the cluster profile" in status


def test_the_next_command_names_the_folder_where_the_id_would_not_do(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    (home / "job.yaml").write_text("name: demo\n")
    (home / "here.yaml").write_text("name: here\npartition: batch\nnode_local_folders: []\n")
    arguments = ("submit", "job.yaml", "--cluster", "./here.yaml", "--runs")
    assert "build: job " in (near := types(*arguments, "runs").output)
    [run] = (home / "runs").iterdir()
    assert f"next: trtllm-hpc status {run.name}, or trtllm-hpc logs {run.name} --follow" in near
    far = types(*arguments, "elsewhere").output
    [run] = (home / "elsewhere").iterdir()
    assert f"next: trtllm-hpc status '{run}', or trtllm-hpc logs '{run}' --follow" in far


def test_render_and_submit_name_the_run_as_status_does(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    (home / "job.yaml").write_text("name: demo\n")
    (home / "here.yaml").write_text("name: here\npartition: batch\nnode_local_folders: []\n")
    for name, made in (("render", "scripts"), ("submit", "jobs")):
        shown = types(name, "job.yaml", "--cluster", "./here.yaml", "--json")
        record = documented(name, shown.output)
        assert list(record) == ["run_id", "folder", made, "engine"]
        assert Path(record["folder"]).name == record["run_id"]


def test_all_problems_are_reported_at_once_and_nothing_is_written(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    (home / "job.yaml").write_text("name: demo\nengin: {}\nserve:\n  nodes: many\n")
    for name in ("render", "submit"):
        refused = types(name, "job.yaml", "--cluster", "local")
        assert refused.code == ExitCode.CONFIG
        assert "2 problems found.\n" in refused.errors
        assert "job.yaml:2" in refused.errors and "job.yaml:4" in refused.errors
        more = ("--set", "companion.request.prompt=a b", "--runs", "r s")
        again = types(name, "job.yaml", "--cluster", "local", *more)
        assert again.errors.endswith(
            f"  next: fix them and type: trtllm-hpc {name} job.yaml --cluster local "
            "--set 'companion.request.prompt=a b' --runs 'r s'\n"
        )
    assert [file.name for file in home.iterdir()] == ["job.yaml"]
    assert fake_slurm.calls() == []


def test_a_missing_file_is_reported_with_one_remedy(home: Path, types: Types) -> None:
    missing = types("render", "job.yaml", "--cluster", "local")
    assert missing.errors.endswith("there is no such job file\n    next: trtllm-hpc init job writes one\n")
    (home / "job.yaml").write_text("name: demo\n")
    (home / "site.yaml").write_text("name: site\n")
    bare = types("render", "job.yaml", "--cluster", "site")
    assert "no cluster profile is called 'site'; did you mean ./site.yaml?" in bare.errors
    assert "fix it" not in bare.errors


def test_a_wrong_setting_is_left_out_of_the_suggested_command(home: Path, types: Types) -> None:
    (home / "job.yaml").write_text("name: demo\n")
    settings = ("serve.nodes=many", "serve.nods=2", "nonsense", "model.seed=3", "cluster.gpus_per_node=few")
    words = [word for setting in settings for word in ("--set", setting)]
    refused = types("render", "job.yaml", "--cluster", "local", *words)
    assert refused.errors.endswith(
        "fix them and type: trtllm-hpc render job.yaml --cluster local --set serve.nodes=VALUE "
        "--set KEY=VALUE --set KEY=VALUE --set model.seed=3 --set cluster.gpus_per_node=VALUE\n"
    )


def test_the_remedy_for_a_shipped_job_does_not_edit_the_shipped_file(home: Path, types: Types) -> None:
    image = "cluster.container.image=tritonserver:25.10-trtllm-python-py3"
    refused = types("render", "ifb-gpt", "--cluster", "pyxis", "--set", image)
    assert refused.code == ExitCode.CONFIG
    assert "next: type --set engine.tensorrt_llm_version=null to go by the image, or name" in refused.errors
    assert "add --set KEY=VALUE for each key to change to: trtllm-hpc render ifb-gpt" in refused.errors
    assert "or edit a copy: cp " in refused.errors and "fix it and type" not in refused.errors


@pytest.mark.parametrize("name", ["doctor", "submit"])
def test_a_path_that_the_system_refuses_is_reported_with_its_key(home: Path, types: Types, name: str) -> None:
    (home / "job.yaml").write_text("name: demo\n")
    path = f"/{'x' * 300}"
    words = [name, "job.yaml", "--cluster", "local", "--set", f"cluster.runs_folder={path}"]
    refused = types(*words)
    said = refused.output + refused.errors
    assert refused.code == ExitCode.CONFIG
    assert "runs_folder" in said and "namei -l" in said and "Traceback" not in said


def test_files_the_wrong_way_round_are_one_finding(home: Path, types: Types) -> None:
    (home / "job.yaml").write_text("name: demo\nmodel: {seed: 1}\nserve: {nodes: 1}\n")
    (home / "my site.yaml").write_text("name: site\npartition: gpu\ngpus_per_node: 4\n")
    swapped = types("render", "my site.yaml", "--cluster", "job.yaml")
    assert swapped.code == ExitCode.CONFIG
    assert swapped.errors == (
        "error: 1 problem found.\n"
        "my site.yaml: this is a cluster profile, not a job file; job.yaml is the job file\n"
        "    next: trtllm-hpc render job.yaml --cluster 'my site.yaml'\n"
    )
    one = types("render", "my site.yaml", "--cluster", "local")
    assert "1 problem found.\nmy site.yaml: this is a cluster profile, not a job file\n" in one.errors
    other = types("render", "tiny-llama", "--cluster", "job.yaml")
    assert "1 problem found.\njob.yaml: this is a job file, not a cluster profile\n" in other.errors


def test_a_job_called_latest_is_refused(home: Path, types: Types) -> None:
    (home / "job.yaml").write_text("name: latest\n")
    refused = types("render", "job.yaml", "--cluster", "local")
    assert refused.code == ExitCode.CONFIG
    assert "job.yaml:1: name: 'latest' names the run that was submitted last" in refused.errors
    assert "fix it and type: trtllm-hpc render job.yaml --cluster local" in refused.errors


def test_render_prints_the_commands_to_submit_by_hand(home: Path, types: Types) -> None:
    (home / "job.yaml").write_text("name: demo\n")
    (home / "here.yaml").write_text("name: here\npartition: batch\nnode_local_folders: []\n")
    output = types("render", "job.yaml", "--cluster", "./here.yaml").output
    [run] = (home / "runs").iterdir()
    assert f"rendered {run}" in output and f"cd '{run}'" in output
    assert "companion=$(sbatch --parsable" in output
    assert "--dependency=after:$serve,afterok:$build" in output


def test_an_impossible_runs_folder_is_refused(home: Path, types: Types) -> None:
    (home / "job.yaml").write_text("name: demo\n")
    bad = types("render", "job.yaml", "--cluster", "local", "--runs", "100%")
    assert bad.code == ExitCode.RENDER and "choose another folder with --runs" in bad.errors
    (home / "file").write_text("")
    assert types("render", "job.yaml", "--cluster", "local", "--runs", "file").code == ExitCode.USAGE
    below = types("render", "job.yaml", "--cluster", "local", "--runs", "file/runs")
    assert below.code == ExitCode.RENDER and "cannot be written" in below.errors


def test_runs_may_be_kept_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        (("COMPLETED", "CANCELLED", "CANCELLED"), ExitCode.CANCELLED, "stage serve was cancelled"),
        (("COMPLETED", "NODE_FAIL", "CANCELLED"), ExitCode.START, "has no server: stage serve"),
        (
            ("COMPLETED", "COMPLETED", "COMPLETED"),
            ExitCode.START,
            "The server of run demo-1 has already ended.",
        ),
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


def test_a_prompt_without_quotes_is_advised_to_have_them(home: Path, types: Types) -> None:
    refused = types("client", "What", "is", "ML?")
    assert refused.code == ExitCode.RUN
    assert "next: trtllm-hpc client 'What is ML?', if all of it is the prompt: quote it" in refused.errors
