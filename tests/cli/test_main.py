"""The command line as a whole: help, mistyped commands, exit codes, streams."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.cli.test_run_commands import HERE
from tests.cli.test_run_commands import files as files
from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.runs.made import run_with, written
from tests.runs.test_find import make
from tests.scheduler.fake_slurm import FakeSlurm
from trtllm_hpc import __version__
from trtllm_hpc.cli import COMMANDS, command, main
from trtllm_hpc.errors import ExitCode, SubmissionError


def run(*arguments: str) -> tuple[int, str, str]:
    """The whole program in a process of its own."""
    answer = subprocess.run(
        [sys.executable, "-m", "trtllm_hpc", *arguments], capture_output=True, text=True, timeout=60
    )
    return answer.returncode, answer.stdout, answer.stderr


def test_help_lists_every_command_and_imports_none() -> None:
    script = (
        "import sys, json\n"
        "from trtllm_hpc.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "print(json.dumps(sorted(name for name in sys.modules if name.startswith('trtllm_hpc'))))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    *text, modules = answer.stdout.splitlines()
    for name, line in COMMANDS.items():
        assert f"  {name} " in "\n".join(text) and line in "\n".join(text)
    assert json.loads(modules) == ["trtllm_hpc", "trtllm_hpc.cli", "trtllm_hpc.errors"]


def test_help_lists_the_commands_in_five_groups() -> None:
    text = CliRunner().invoke(command, ["--help"], prog_name="trtllm-hpc").output
    titles = [line for line in text.splitlines() if re.fullmatch(r"[A-Z][\w ]+:", line)]
    assert titles == ["Options:", "Serve:", "Measure:", "Explain:", "Housekeeping:", "For experts:"]
    serve = text.partition("Serve:\n")[2].partition("\n\n")[0]
    names = ["init", "doctor", "submit", "status", "watch", "logs", "client", "cancel"]
    assert [line.split()[0] for line in serve.splitlines()] == names


def test_help_is_a_command_too(types: Types) -> None:
    assert types("help") == types("--help")
    assert types("help", "submit") == types("-q", "help", "submit") == types("submit", "--help")
    assert types("help", "bench", "compare") == types("bench", "compare", "--help")
    assert "No such command 'submti'. Did you mean 'submit'?" in types("help", "submti").errors


def test_the_version(types: Types) -> None:
    assert types("-V") == types("--version") == (0, f"trtllm-hpc, version {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "first", "other"),
    [(("client",), "--max-tokens", "--beam-width"), (("bench", "run"), "--rate", "--arrival")],
)
def test_a_command_with_many_options_shows_the_first_ones(
    types: Types, words: tuple[str, ...], first: str, other: str
) -> None:
    brief, whole = types(*words, "--help").output, types(*words, "--help-all").output
    assert brief.endswith(f"\nMore options: trtllm-hpc {' '.join(words)} --help-all\n")
    assert "--help " in brief and first in brief and other not in brief
    assert first in whole and other in whole and "More options" not in whole
    assert len(brief.splitlines()) < 55


def test_bench_shows_the_first_options_of_run(types: Types) -> None:
    brief = types("bench", "--help").output
    assert "--rate" in brief and "--arrival" not in brief
    assert "More options: trtllm-hpc bench run --help-all" in brief
    assert "--arrival" in types("bench", "--help-all").output


@pytest.mark.parametrize("words", [("-v", "status"), ("status", "-v"), ("--verbose", "status", "demo-1")])
def test_verbose_shows_the_commands_before_or_after_the_command(
    fake_slurm: FakeSlurm, home: Path, types: Types, words: tuple[str, ...]
) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "RUNNING", "PENDING")
    plain, verbose = types("status"), types(*words)
    assert verbose.output == plain.output and plain.errors == ""
    shown = [line.split()[:2] for line in verbose.errors.splitlines()]
    assert ["+", "squeue"] in shown and ["+", "sacct"] in shown
    assert types("status").errors == "", "it ends with the command"


@pytest.mark.parametrize("words", [("-q", "submit"), ("submit", "-q")])
def test_quiet_leaves_out_notes_and_advice(
    fake_slurm: FakeSlurm, files: Path, types: Types, words: tuple[str, ...]
) -> None:
    assert "next: trtllm-hpc status" in types("submit", *HERE).output
    quiet = types(*words, *HERE)
    assert quiet.code == 0 and quiet.errors == "" and "serve: job " in quiet.output
    assert "next:" not in quiet.output


def test_options_before_a_subcommand_leave_it_the_subcommand(home: Path, types: Types) -> None:
    make(home / "runs" / "llama-1", "llama", 10)
    assert types("bench", "-q", "list") == types("bench", "list", "-q") == types("bench", "list")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    shown = CliRunner().invoke(command, [name, "--help"], prog_name="trtllm-hpc")
    assert shown.exit_code == 0
    usage, *rest = shown.output.splitlines()
    assert usage.startswith(f"Usage: trtllm-hpc {name}")
    examples = [line for line in rest if line.strip().startswith(f"trtllm-hpc {name}")]
    assert examples, f"{name} --help has no example"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        *(
            ("submti", "submit"),
            ("stat", "status"),
            ("serve", "submit"),
            ("start", "submit"),
            ("run", "submit"),
        ),
        *(
            ("chat", "client --chat"),
            ("validate", "doctor"),
            ("list", "runs"),
            ("ps", "runs"),
            ("stop", "cancel"),
        ),
    ],
)
def test_a_wrong_command_gets_the_one_that_it_means_elsewhere_or_the_nearest(
    wrong: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([wrong])
    assert end.value.code == ExitCode.USAGE
    assert f"No such command {wrong!r}. Did you mean {right!r}?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("sweep", "job.yaml"), ("bench", "run")])
def test_a_dry_run_leads_to_render(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--dry-run"])
    assert "No such option '--dry-run'. Did you mean the command 'render'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (SubmissionError("No.", hint="sinfo"), ExitCode.SUBMISSION, "error: No.\n  next: sinfo\n"),
        (click.UsageError("No."), ExitCode.USAGE, "Error: No.\n"),
        (
            PermissionError(13, "Permission denied", "/x/y"),
            ExitCode.INTERNAL,
            "error: /x/y: Permission denied.\n",
        ),
        (TimeoutError("timed out"), ExitCode.INTERNAL, "error: timed out.\n"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "Interrupted.\n"),
    ],
)
def test_exit_codes(
    error: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(command, "invoke", fail)
    with pytest.raises(SystemExit) as end:
        main(["status"])
    assert end.value.code == code
    assert capsys.readouterr().err.endswith(words)


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    _, paths = written(tmp_path / "run", scheduler="local")
    paths.batch_log("serve").write_text("a line of a log\n" * 50_000)
    script = (
        f'"{sys.executable}" -m trtllm_hpc logs "$1" --stage serve | head -n 1; exit "${{PIPESTATUS[0]}}"'
    )
    answer = subprocess.run(
        ["bash", "-c", script, "head", str(paths.folder)], capture_output=True, text=True, timeout=60
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "a line of a log" in answer.stdout


@pytest.mark.parametrize("encoding", ["latin1", "ascii"])
def test_a_terminal_without_unicode_shows_other_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    _, paths = written(tmp_path / "run", scheduler="local")
    code, output, errors = run("status", str(paths.folder))
    assert (code, errors) == (0, "") and "-----" in output


@pytest.mark.parametrize("closed", [">&- 2>&-", "<&- >&-", "| true", "2>&1 >/dev/null | true"])
def test_closed_streams_are_no_error(tmp_path: Path, closed: str) -> None:
    _, paths = written(tmp_path / "run", scheduler="local")
    words = f"\"{sys.executable}\" -m trtllm_hpc status --json '{paths.folder}'"
    typed = f'{{ {words}; }} {closed}; exit "${{PIPESTATUS[0]}}"'
    answer = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, timeout=60)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_a_full_disk_under_the_output_is_one_sentence(tmp_path: Path) -> None:
    _, paths = written(tmp_path / "run", scheduler="local")
    command_line = f'"{sys.executable}" -m trtllm_hpc status "$1" > /dev/full'
    answer = subprocess.run(
        ["bash", "-c", command_line, "full", str(paths.folder)], capture_output=True, text=True, timeout=60
    )
    assert answer.stderr == "error: The output cannot be written: No space left on device.\n"
    assert answer.returncode == ExitCode.INTERNAL


def test_every_option_in_seconds_or_minutes_takes_a_time() -> None:
    def options(found: click.Command) -> Iterator[click.Option]:
        yield from (
            option for option in found.params if isinstance(option, click.Option) and not option.hidden
        )
        if isinstance(found, click.Group):
            with click.Context(found) as context:
                for name in found.list_commands(context):
                    yield from options(found.get_command(context, name) or click.Command(""))

    times = [
        it for it in options(command) if re.search(r"seconds|minutes|SPAN", f"{it.opts} {it.metavar}", re.I)
    ]
    assert {it.opts[0] for it in times} >= {"--wait-seconds", "--duration", "--older-than", "--expires"}
    assert [it.opts[0] for it in times if it.type.convert("2h", it, None) < 2] == []
