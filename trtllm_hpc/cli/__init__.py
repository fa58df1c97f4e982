"""The command line: each command is imported only when it is called."""

from __future__ import annotations

import codecs
import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import StringIO, TextIOWrapper
from typing import Any, TextIO

import click

from trtllm_hpc import __version__
from trtllm_hpc.errors import ExitCode, TrtllmHpcError

# pydantic would look for plugins in the metadata of every installed package, at each start; none is used.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

COMMANDS: dict[str, str] = {
    "init": "Write a commented job file or cluster profile to start from.",
    "jobs": "List and show the shipped job files.",
    "models": "Fetch models from a hub, list and prune them.",
    "render": "Write a run folder with its scripts; submit nothing.",
    "doctor": "Check a job file, this machine and the cluster before submitting.",
    "submit": "Render a job file and submit its jobs.",
    "sweep": "Run the variants of a job file, and find the best settings.",
    "runs": "List all runs, filter them, remove old ones.",
    "status": "Show the state of a run's jobs and ranks.",
    "watch": "Follow a submitted run live, to its end.",
    "logs": "List or read the logs of a run, by rank.",
    "explain": "Say what went wrong, from any logs: the cause and what to do.",
    "client": "Send the served model a prompt.",
    "endpoint": "Show where a server answers: lines for curl, Python and ssh.",
    "bench": "Benchmark the served model and check that the figures are valid.",
    "evaluate": "Ask the served model tasks of lm-eval: does it answer well?",
    "metrics": "Show the server's own metrics: engine, queue and memory.",
    "report": "Write a measurement as one HTML file, and its charts as images.",
    "cancel": "Cancel every job of a run.",
    "resume": "Submit again the stages of a run that have not ended well.",
    "engines": "List, verify and prune the cache of built engines.",
    "versions": "List TensorRT-LLM releases and the options of their programs.",
    "schema": "Print the JSON Schemas of job files, profiles and --json output.",
    "sandbox": "Run a real Slurm cluster on this machine.",
    "demo": "Serve a small model on this machine, ask it, measure it.",
}
"""Every command and its line in ``--help``: help imports none of them."""


UNLISTED = ("gateway",)
"""Commands that jobs type, and people seldom: they are not in the help text."""
_SHARED = {
    **dict.fromkeys(("jobs", "schema"), "init"),
    **dict.fromkeys(("render", "resume", "watch"), "submit"),
    "cancel": "status",
    "report": "bench",
}
"""Commands that live in another command's module."""


_ASCII = str.maketrans({"─": "-", "…": "..."})
"""For encodings without these; other letters become escapes such as ``\\u2192``."""
_MEANT = {
    **dict.fromkeys(("serve", "start", "run", "launch"), "submit"),
    **dict.fromkeys(("validate", "check", "lint"), "doctor"),
    **dict.fromkeys(("list", "ls", "ps"), "runs"),
    **dict.fromkeys(("stop", "kill"), "cancel"),
    "chat": "client --chat",
    "--dry-run": "render",
}
"""Words of other programs, and what they are here."""


class MainGroup(click.Group):
    """The group of all commands, each the ``command`` of its own module; its help imports none.

    In a module with several commands one is called ``NAME_command``.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of use, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in COMMANDS and cmd_name not in UNLISTED:
            return None
        module = importlib.import_module(f"trtllm_hpc.cli.{_SHARED.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name}_command" if cmd_name in _SHARED else "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an option of other programs leads to the command that does it here."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if (meant := _MEANT.get(error.option_name)) is None:
                raise
            message = f"No such option {error.option_name!r}. Did you mean the command {meant!r}?"
            raise click.UsageError(message, error.ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for a wrong name suggest what it means elsewhere, or the nearest right one."""
        if args and args[0] not in (*COMMANDS, *UNLISTED) and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = _MEANT.get(args[0]) or next(iter(get_close_matches(args[0], COMMANDS, n=1)), None)
            guess = f" Did you mean {near!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{guess}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=MainGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="trtllm-hpc")
def command() -> None:
    """Serve a model with TensorRT-LLM on a Slurm cluster, and measure how fast it is.

    \b
    One job file, one command:
      trtllm-hpc init job chat.yaml --from qwen3-8b --model /scratch/models/Qwen3-8B
      trtllm-hpc submit chat.yaml --cluster mysite.yaml --wait
      trtllm-hpc logs latest --rank 1

    \b
    Without a GPU or a Slurm, to see how it works:
      trtllm-hpc demo

    A RUN is named by its folder, its id, its job name, or 'latest': the run submitted last.
    """


def main(args: Sequence[str] | None = None) -> Any:
    """Run the command line and exit with the code of what failed."""
    # Imports make thousands of objects and no garbage: looking for it after each 700 takes a twentieth of
    # a short command's time.
    gc.set_threshold(20_000)
    # Closed streams are replaced, and what an encoding lacks is printed in other letters instead of failing.
    codecs.register_error("trtllm-hpc", _in_ascii)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: the next file to be opened would get its number
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: PTH123, SIM115
        elif number and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="trtllm-hpc")
    if "_TRTLLM_HPC_COMPLETE" in os.environ:
        command.main(prog_name="trtllm-hpc")
    code = _run(sys.argv[1:] if args is None else list(args))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _drop_output(stream)  # or Python would flush it again, and exit with 120
    sys.exit(code)


def _run(args: list[str]) -> int:
    """Run the command, print its error, and return the exit code."""
    try:
        with command.make_context("trtllm-hpc", args) as context:
            code = command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt, EOFError) as error:
        # The terminal has written ^C into the line.
        click.echo(
            "Interrupted." if isinstance(error, click.exceptions.Abort) else "\nInterrupted.", err=True
        )
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        text = StringIO()
        error.show(text)
        _print_error(text.getvalue().rstrip("\n"))
        return error.exit_code
    except TrtllmHpcError as error:
        _print_error(f"error: {error}")
        return error.exit_code
    except BrokenPipeError:  # the reader has closed our output, as in "trtllm-hpc logs | head"
        return ExitCode.OK
    except OSError as error:
        # A full disk or a folder without permission is no fault of the program: a traceback would
        # only hide the one line that helps.
        _print_error(f"error: {_system_error(error)}")
        return ExitCode.INTERNAL
    return code if isinstance(code, int) else ExitCode.OK


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_ASCII)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


def _print_error(text: str) -> None:
    """Print an error; on a terminal it is wrapped at words."""
    from trtllm_hpc.logs.reading import escaped
    from trtllm_hpc.report.tables import terminal_width, wrap

    with suppress(BrokenPipeError):
        click.echo(wrap(escaped(text), terminal_width(sys.stderr)), err=True)


def _system_error(error: OSError) -> str:
    """Return one sentence about what the system refused."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {reason}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        # Errors about our own files name the file, so this is the terminal or its redirection.
        _drop_output(sys.stdout)
        return f"The output cannot be written: {reason}."
    return f"{reason}."


def _drop_output(stream: TextIO) -> None:
    """Discard what Python still flushes when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
