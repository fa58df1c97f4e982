"""``explain``: any log, with exit code and JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.logs.runs import make_run
from tests.schemas.check import documented
from trtllm_hpc.cli import command
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.records import add_event

LOST = "RuntimeError: NCCL error: remote process exited or there was a network error\n"
OOM = "fine\n[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (a.h:1)\n"


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


def test_json_is_a_list_as_the_schema_says(logs: tuple[str, str]) -> None:
    found = documented("explain", explain("--json", *logs).output)
    assert [(it["id"], it["kind"], it["file"], it["line"], it["rank"]) for it in found] == [
        ("cuda-out-of-memory", "root", logs[1], 2, 1),
        ("nccl-remote", "consequence", logs[0], 1, 0),
    ]


def test_a_clean_log_has_no_cause(tmp_path: Path) -> None:
    clean = tmp_path / "clean.out"
    clean.write_text('I0721 10:02:03.123456 99 a.cc:1] "error: none"\n20 requests, 0 errors\nready\n')
    assert documented("explain", explain("--json", str(clean)).output) == []
    result = CliRunner().invoke(command, ["explain", str(clean)], standalone_mode=False)
    assert (result.output, code(result)) == ("No cause that is known here.\n", 0)


def test_an_unknown_error_is_shown_and_is_no_cause(tmp_path: Path) -> None:
    log = tmp_path / "a.out"
    log.write_text("srun: error: the moon is in the wrong house\n")
    result = explain(str(log))
    assert f"looks like an error: {log}: srun: error: the moon is in the wrong house" in result.output


@pytest.mark.parametrize("words", [(), ("-",)])
def test_the_standard_input_is_read(words: tuple[str, ...]) -> None:
    result = explain(*words, "--json", text=OOM)
    found = documented("explain", result.output)
    assert [(it["id"], it["file"], it["rank"]) for it in found] == [("cuda-out-of-memory", "-", None)]


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    assert explain(str(tmp_path / "none")).exit_code == ExitCode.USAGE


def test_a_run_folder_or_another_folder_stands_for_its_logs(tmp_path: Path, logs: tuple[str, str]) -> None:
    assert explain(str(tmp_path)).output == explain(*logs).output
    run = make_run(tmp_path / "run")
    run.rank_log("serve", 1).write_text(OOM)
    assert explain(str(run.folder)).output.startswith("cause: The GPU's memory is full.")
    (tmp_path / "empty").mkdir()
    assert "has no file in it" in explain(str(tmp_path / "empty")).output


def test_a_run_is_found_by_its_name_and_a_folder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "runs" / "chat-1")
    run.rank_log("serve", 1).write_text(OOM)
    add_event(run, "serve", "stage_begin")
    for name in ("latest", "chat-1", "chat"):
        assert explain(name).output.startswith("cause: The GPU's memory is full."), name
    Path("chat-1").mkdir()
    Path("chat-1", "a.out").write_text(LOST)
    assert explain("chat-1").output.startswith("cause: NCCL lost another rank.")
    unknown = explain("chat-2")
    assert unknown.exit_code == ExitCode.USAGE
    assert "There is no file or folder 'chat-2'. No run is called 'chat-2'" in unknown.output
