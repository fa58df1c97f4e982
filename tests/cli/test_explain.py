"""``explain``: any log, with exit code and JSON."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.logs.runs import add_rank, make_run
from tests.plans import write_plan
from tests.runs.made import written
from tests.schemas.check import documented
from trtllm_hpc.cli import command
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.logs.causes.table import use_site_tables
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.scheduler.submission_record import SubmissionRecord

LOST = "RuntimeError: NCCL error: remote process exited or there was a network error\n"
OOM = "fine\n[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (a.h:1)\n"


@pytest.fixture(autouse=True)
def own_tables_end_with_the_test() -> Iterator[None]:
    yield
    use_tables_anew()


def use_tables_anew() -> None:
    """Have the tables read again, as the next command does."""
    use_site_tables(Path("/nowhere"))
    use_site_tables(None)


def explain(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(command, ["explain", *words], input=text)


def code(result: Result) -> int:
    """What ``main`` makes of the command's return value."""
    return int(result.return_value)


@pytest.fixture
def logs(tmp_path: Path) -> tuple[str, str]:
    for name, text in (("serve_0.out", LOST), ("serve_1.out", OOM)):
        (tmp_path / name).write_text(text)
    return str(tmp_path / "serve_0.out"), str(tmp_path / "serve_1.out")


def test_the_logs_are_read_together_and_the_root_cause_comes_first(logs: tuple[str, str]) -> None:
    result = CliRunner().invoke(command, ["explain", *logs], standalone_mode=False)
    lines = result.output.splitlines()
    assert lines[0].startswith("cause: The GPU's memory is full.")
    assert lines[1].startswith("next: Lower the KV cache's share")
    assert lines[2] == (
        f"  {logs[1]}:2, rank 1: CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (a.h:1)"
    )
    assert lines[3] == "then: NCCL lost another rank."
    assert code(result) == 1


@pytest.mark.parametrize("has_end", [True, False])
def test_that_a_job_has_ended_is_a_consequence_of_its_end(tmp_path: Path, has_end: bool) -> None:
    expired = "srun: error: Check SLURM_JOB_ID environment variable. Expired or invalid job 7\n"
    (tmp_path / "serve.out").write_text(expired)
    if has_end:  # without it, in a shell of one's own, it is the cause
        ended = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11 DUE TO TIME LIMIT ***\n"
        (tmp_path / "serve_0.out").write_text(ended)
    found = documented("explain", explain("--json", str(tmp_path)).output)["causes"]
    assert found[0]["id"] == ("slurm-time-limit" if has_end else "slurm-job-expired")
    kinds = {it["id"]: it["kind"] for it in found}
    assert kinds["slurm-job-expired"] == ("consequence" if has_end else "root")


def ended_run(folder: Path, last: str, code: int = 0) -> RunPaths:
    """A run of the local profile whose server has ended, and whose logs end with errors."""
    _, paths = written(folder, {"companion": {"enabled": False}}, scheduler="local")
    record = SubmissionRecord("local", complete=True)
    for stage in ("build", "serve"):
        record.add(paths, stage, "999999", 1)
        add_event(paths, stage, "stage_begin", job_id="local7", group=999999, group_started=1)
    add_event(paths, "build", "stage_end", job_id="local7", exit_code=0)
    add_event(paths, "serve", last, job_id="local7", exit_code=code)
    paths.batch_log("serve").write_text("srun: error: n1: task 0: Exited with exit code 1\n")
    paths.rank_log("serve", 0).write_text("RuntimeError: the loop is closed\n")
    return paths


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("stage_end", "completed: every stage has completed\n"),
        ("stage_cancelled", "cancelled: stage serve was cancelled\n"),
    ],
)
def test_a_run_that_has_not_failed_has_no_cause(tmp_path: Path, last: str, words: str) -> None:
    run = str(ended_run(tmp_path / "run", last).folder)
    result = CliRunner().invoke(command, ["explain", run], standalone_mode=False)
    assert (result.output, code(result)) == (words, 0)
    assert documented("explain", explain("--json", run).output) == {"causes": [], "suspicious": []}


def test_the_causes_of_a_run_are_those_of_its_status(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "run", "stage_end", 7)
    add_event(run, "serve", "failed", reason="no server could listen at port 8000")
    found = documented("explain", explain("--json", str(run.folder)).output)["causes"]
    assert (
        found
        == documented("status", CliRunner().invoke(command, ["status", str(run.folder), "--json"]).output)[
            "causes"
        ]
    )
    assert found[0]["sentence"] == "No server could listen at port 8000."


def test_a_failed_run_whose_cause_status_does_not_know_begins_with_what_it_knows(tmp_path: Path) -> None:
    """Its batch script was killed, and no log says why."""
    run = ended_run(tmp_path / "run", "stage_end", 137)
    run.batch_log("serve").write_text("")
    run.rank_log("serve", 0).write_text("fine\n")
    lines = explain(str(run.folder)).output.splitlines()
    assert lines[:2] == [
        "failed: stage serve has failed (exit code 137, as after SIGKILL)",
        "No cause was found.",
    ]


@pytest.mark.parametrize(
    ("line", "label", "exit_code"),
    [
        ("20 requests, 0 errors", "", 0),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "cause", 1),
        ("PermissionError: [Errno 13] Permission denied: '/.cache'", "likely cause", 3),
        ("slurmstepd: error: the moon is in the wrong house", "first error", 4),
    ],
)
def test_the_answer_says_how_much_is_known(tmp_path: Path, line: str, label: str, exit_code: int) -> None:
    (tmp_path / "a.out").write_text(f"fine\n{line}\n")
    result = CliRunner().invoke(command, ["explain", str(tmp_path / "a.out")], standalone_mode=False)
    record = documented("explain", explain("--json", str(tmp_path / "a.out")).output)
    assert code(result) == exit_code
    if not label:
        assert result.output.startswith("No cause was found.\n") and record == {
            "causes": [],
            "suspicious": [],
        }
        return
    assert result.output.startswith(f"{label}: ") and f"a.out:2: {line}" in result.output
    assert [it["degree"] for it in record["causes"]] == ["known cause" if label == "cause" else label]
    assert [(it["line"], it["text"]) for it in record["suspicious"]] == [(2, line)]


@pytest.mark.parametrize("pack", ["gzip", "zstd", "utf-16", "damaged gzip"])
def test_logs_are_read_as_people_keep_them(tmp_path: Path, pack: str) -> None:
    log = tmp_path / "a.log"
    if pack == "utf-16":
        log.write_bytes(OOM.encode("utf-16"))
    elif pack == "zstd":
        log.write_bytes(
            subprocess.run(["zstd", "-c"], input=OOM.encode(), capture_output=True, check=True).stdout
        )
    else:
        packed: bytes = importlib.import_module(pack.split()[-1]).compress(OOM.encode())
        log.write_bytes(packed[:-8] if "damaged" in pack else packed)
    assert explain(str(log)).output.startswith("cause: The GPU's memory is full.")


def test_what_cannot_be_read_is_said_and_the_rest_explained(tmp_path: Path, logs: tuple[str, str]) -> None:
    (tmp_path / "empty.out").touch()
    result = explain(logs[1], str(tmp_path / "none.out"), str(tmp_path / "empty.out"))
    assert (
        "error: There is no file or folder" in result.output
        and "cause: The GPU's memory is full." in result.output
    )
    assert "empty.out is empty." in explain(str(tmp_path / "empty.out")).output
    gone = CliRunner().invoke(command, ["explain", str(tmp_path / "none")], standalone_mode=False)
    assert code(gone) == ExitCode.USAGE
    assert gone.output.startswith("error: There is no file or folder")
    assert "No cause was found" not in gone.output
    (tmp_path / "odd.out").write_text("fine\nthere is no such model\nthe end\n")
    assert "  | there is no such model" in explain(str(tmp_path / "odd.out")).output


TABLE = """[site-lustre]
kind = "root"
patterns = ["LustreError: (?P<what>.+)"]
sentence = "Our scratch is ill: {what}."
next = "Write to support."

[cuda-out-of-memory]
off = true
"""


def test_the_text_of_a_site_s_cause_need_not_be_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    table = tmp_path / "trtllm-hpc" / "causes" / "site.toml"
    table.parent.mkdir(parents=True)
    table.write_text(TABLE.partition("[cuda")[0].replace("LustreError: (?P<what>.+)", "#(?P<what>!)#"))
    use_tables_anew()
    (tmp_path / "a.out").write_text("now 12 #!# of 13\n")
    assert explain(str(tmp_path / "a.out")).output.startswith("cause: Our scratch is ill: !.")


def test_a_site_teaches_causes_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    table = tmp_path / "trtllm-hpc" / "causes" / "site.toml"
    table.parent.mkdir(parents=True)
    table.write_text(TABLE)
    use_tables_anew()
    log = tmp_path / "a.out"
    log.write_text(f"LustreError: 11-0: evicted\n{OOM}")
    assert explain(str(log)).output.startswith("cause: Our scratch is ill: 11-0: evicted.")
    table.write_text(TABLE.replace("[site-lustre]", "[site-lustre]\noff = false"))
    use_tables_anew()
    assert explain(str(log)).output.startswith("cause: Our scratch is ill: 11-0: evicted.")
    log.write_text(OOM)
    assert "The GPU's memory is full" not in explain(str(log)).output
    table.write_text(TABLE.replace("(?P<what>.+)", "(.+").replace("next =", "nxt ="))
    use_tables_anew()
    said = explain(str(log)).output
    assert f"error: 3 problems found.\n{table}: site-lustre" in said
    for problem in ("has no key next", "has a key nxt", "is no regular expression"):
        assert problem in said


def test_the_profile_names_a_folder_of_causes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_plan(run, causes_folder=str(tmp_path / "causes"))
    run.rank_log("serve", 1).write_text("LustreError: 11-0: evicted\n")
    (tmp_path / "causes").mkdir()
    (tmp_path / "causes" / "site.toml").write_text(TABLE)
    assert explain(str(run.folder)).output.startswith("cause: Our scratch is ill: 11-0: evicted.")


@pytest.mark.parametrize("words", [(), ("-",)])
def test_the_standard_input_is_read(words: tuple[str, ...]) -> None:
    program = [sys.executable, "-m", "trtllm_hpc", "explain", *words, "--json"]
    output = subprocess.run(program, input=OOM, capture_output=True, text=True).stdout
    found = documented("explain", output)["causes"]
    assert [(it["id"], it["file"], it["rank"]) for it in found] == [("cuda-out-of-memory", "-", None)]


def test_a_run_folder_or_another_folder_stands_for_its_logs(tmp_path: Path, logs: tuple[str, str]) -> None:
    assert explain(str(tmp_path)).output == explain(*logs).output
    run = make_run(tmp_path / "run")
    run.rank_log("serve", 1).write_text(OOM)
    assert explain(str(run.folder)).output.startswith("cause: The GPU's memory is full.")
    (tmp_path / "empty").mkdir()
    empty = str(tmp_path / "empty")
    assert f"There are no logs in {empty}: name a log or another run." in explain(empty).output


def test_a_run_is_found_by_its_name_and_a_folder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "runs" / "chat-1")
    run.rank_log("serve", 1).write_text(OOM)
    add_event(run, "serve", "stage_begin")
    for words in (("latest",), ("chat-1",), ("chat",), ()):
        assert explain(*words).output.startswith("cause: The GPU's memory is full."), words
    program = [sys.executable, "-m", "trtllm_hpc", "explain"]
    in_a_job = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert in_a_job.stdout.startswith("cause: The GPU's memory is full.")
    Path("chat-1").mkdir()
    Path("chat-1", "a.out").write_text(LOST)
    assert explain("chat-1").output.startswith("first error: NCCL lost another rank.")
    unknown = explain("chat-2")
    assert "There is no file or folder 'chat-2'. No run is called 'chat-2'" in unknown.output


def test_a_run_is_explained_by_what_status_knows_then_by_its_lines(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "run", "stage_end", 7)
    add_rank(run, 0, log="2026-11-28 10:00:00 RuntimeError: the loop is closed\n", ended_at=3.0, exit_code=1)
    lines = explain(str(run.folder)).output.splitlines()
    status = documented("status", CliRunner().invoke(command, ["status", str(run.folder), "--json"]).output)
    assert lines[0] == f"failed: {status['sentence']}"
    assert lines[-2].startswith("most suspicious lines:") or "most suspicious lines:" in lines
    shown = (
        f"{run.rank_log('serve', 0)}:1, rank 0, on n0, 2026-11-28 10:00:00: RuntimeError: the loop is closed"
    )
    assert f"  {shown}" in lines
    record = documented("explain", explain("--json", str(run.folder)).output)["suspicious"][-1]
    said = (record["line"], record["rank"], record["node"], record["time"], record["text"])
    assert said == (1, 0, "n0", "2026-11-28 10:00:00", "RuntimeError: the loop is closed")


def test_a_bundle_has_what_helps_and_nothing_private(tmp_path: Path) -> None:
    run = ended_run(tmp_path / "run", "stage_end", 7)
    add_event(run, "serve", "failed", reason="no server could listen at port 8000")
    private = """\
Received request cmpl-1: prompt: 'the secret of the moon', params: 1
{"messages": [{"role": "user", "content": "the secret of the sun"}], "text_input": "the secret of Mars"}
Authorization: Bearer abcdefghijkl hf_abcdefghijklmnop /home/alice/models user=alice
"""
    log = (
        "TensorRT-LLM version: 1.2.0\n" + private + "fine\n" * 9 + "RuntimeError: no moon in /home/alice/a\n"
    )
    add_rank(run, 0, log=log + private, ended_at=3.0, exit_code=1)
    for rank in range(1, 300):
        run.rank_log("serve", rank).write_text(f"rank {rank} is well\n" * 50)
    bundle = tmp_path / "bundle.md"
    output = explain(str(run.folder), "--bundle", str(bundle)).output
    text = bundle.read_text()
    assert len(bundle.read_bytes()) <= 64 << 10 and output.splitlines()[0] in text
    for title in ("Answer", "Most suspicious lines", "Versions", "Plan", "Timeline", "Last lines"):
        assert f"## {title}\n" in text
    assert (
        "tensorrt_llm 1.2.0" in text
        and "serve stage_end" in text
        and "RuntimeError: no moon in /home/USER" in text
    )
    assert not any(word in text for word in ("secret of", "abcdefgh", "alice"))
    log_alone = tmp_path / "a.out"
    log_alone.write_text(OOM)
    explain(str(log_alone), "--bundle", str(bundle))
    assert "The GPU's memory is full" in bundle.read_text() and "## Plan" not in bundle.read_text()
