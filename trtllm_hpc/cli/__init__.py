"""The command line. A command's module is imported only when the command is called."""

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

# Without this, pydantic searches the metadata of every installed package for plugins at each start.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

GROUPS: dict[str, dict[str, str]] = {
    "Serve": {
        "init": "Write a commented job file or cluster profile.",
        "doctor": "Check a job file, this machine and the cluster.",
        "submit": "Submit the jobs of a job file.",
        "status": "Show the state of a run.",
        "watch": "Follow a run live, to its end.",
        "logs": "List or print the logs of a run.",
        "client": "Send prompts to the served model.",
        "cancel": "Cancel the jobs of a run.",
    },
    "Measure": {
        "bench": "Benchmark the served model, and validate the figures.",
        "sweep": "Run variants of a job file, and find the best one.",
        "evaluate": "Score the model's answers to tasks of lm-eval.",
        "report": "Write a measurement as one HTML page.",
    },
    "Explain": {
        "explain": "Find the cause of a failure in any logs.",
    },
    "Housekeeping": {
        "runs": "List runs, and remove old ones.",
        "models": "Fetch, list and remove models.",
        "engines": "List, verify and remove built engines.",
        "endpoint": "Show the server's address, and invite colleagues.",
        "resume": "Submit again what a run has not completed.",
        "metrics": "Show the server's own metrics.",
    },
    "For experts": {
        "render": "Write a run folder with its scripts; submit nothing.",
        "jobs": "List and print the shipped job files.",
        "versions": "List the releases of TensorRT-LLM and their options.",
        "schema": "Print the JSON Schemas of files and of --json output.",
        "sandbox": "Run a real Slurm cluster on this machine.",
        "demo": "Serve and measure a small model on this machine.",
        "completion": "Print the completion script for your shell.",
    },
}
"""The commands by the section of ``--help`` that lists them, each with its line there."""
COMMANDS: dict[str, str] = {name: line for group in GROUPS.values() for name, line in group.items()}
UNLISTED = ("gateway",)
"""Commands that jobs call and ``--help`` does not list."""
_SHARED = {
    **dict.fromkeys(("jobs", "schema"), "init"),
    **dict.fromkeys(("render", "resume", "watch"), "submit"),
    "cancel": "status",
    "report": "bench",
}
"""Commands that are defined in another command's module."""


_ASCII = str.maketrans({"─": "-", "…": "..."})
"""Replacements for encodings without these characters; others become escapes such as ``\\u2192``."""
_MEANT = {
    **dict.fromkeys(("serve", "start", "run", "launch"), "submit"),
    **dict.fromkeys(("validate", "check", "lint"), "doctor"),
    **dict.fromkeys(("list", "ls", "ps"), "runs"),
    **dict.fromkeys(("stop", "kill"), "cancel"),
    "chat": "client --chat",
    "--dry-run": "render",
}
"""Words that other programs use, and the command that does the same here."""
QUIET = "trtllm_hpc.quiet"
"""Key of the context's ``meta`` that ``-q`` sets."""


class MainGroup(click.Group):
    """The group of all commands. It imports a command's module only to run or describe the command.

    A module's command is called ``command``; further commands in it are called ``NAME_command``.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of ``--help``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in COMMANDS and cmd_name not in UNLISTED:
            return None
        module = importlib.import_module(f"trtllm_hpc.cli.{_SHARED.get(cmd_name, cmd_name)}")
        found: click.Command = getattr(module, f"{cmd_name}_command" if cmd_name in _SHARED else "command")
        _add_verbosity(found)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in their groups, without importing them."""
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, line in commands.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``help submit`` as ``submit --help``, and ``help`` as ``--help``."""
        place = next((place for place, word in enumerate(args) if not word.startswith("-")), 0)
        is_help = args[place : place + 1] == ["help"]
        return super().parse_args(ctx, [*args[:place], *args[place + 1 :], "--help"] if is_help else args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Suggest a command for an option that only other programs have."""
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
        """Find the command. For an unknown name suggest the command that does the same, or the nearest."""
        if args and args[0] not in (*COMMANDS, *UNLISTED) and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = _MEANT.get(args[0]) or next(
                iter(get_close_matches(args[0], (*COMMANDS, "help"), n=1)), None
            )
            guess = f" Did you mean {near!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{guess}")
        return super().resolve_command(ctx, args)


def _be_verbose(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
    """Callback of ``-v``: until the context ends, print each command before it runs."""
    if not is_given:
        return
    import logging

    from trtllm_hpc.logs.reading import escaped

    class Printer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            click.echo(escaped(f"+ {record.getMessage()}"), err=True)

    logger, printer = logging.getLogger("trtllm_hpc.commands"), Printer()
    if not logger.handlers:
        logger.addHandler(printer)
        logger.setLevel(logging.DEBUG)
        ctx.call_on_close(lambda: logger.removeHandler(printer))


def _be_quiet(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
    """Callback of ``-q``."""
    if is_given:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    ctx.meta[QUIET] = ctx.meta.get(QUIET, False) or is_given


def _verbosity_options(*, hidden: bool) -> list[click.Option]:
    common: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "hidden": hidden}
    verbose = "Show each Slurm command before it runs."
    quiet = "Show only results, warnings and errors."
    return [
        click.Option(["-v", "--verbose"], callback=_be_verbose, help=verbose, **common),
        click.Option(["-q", "--quiet"], callback=_be_quiet, help=quiet, **common),
    ]


def _add_verbosity(found: click.Command) -> None:
    """Let a command and its subcommands accept ``-v`` and ``-q``, too; its help does not list them."""
    if not any(option.name == "quiet" for option in found.params):
        found.params += _verbosity_options(hidden=True)
        for subcommand in found.commands.values() if isinstance(found, click.Group) else ():
            _add_verbosity(subcommand)


@click.group(
    cls=MainGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, "-V", "--version", prog_name="trtllm-hpc")
def command() -> None:
    """Serve a model with TensorRT-LLM on a Slurm cluster, and measure how fast it is.

    \b
    Examples:
      trtllm-hpc demo                             try it on this machine, without a GPU
      trtllm-hpc init job chat.yaml --from qwen3-8b --model ~/models/Qwen3-8B
      trtllm-hpc submit chat.yaml --cluster mysite.yaml --wait
      trtllm-hpc client "What is machine learning?"

    A RUN is a run's folder, its ID, its job's name, or 'latest': the run that was
    submitted last. Runs are in the folder of --runs, $TRTLLM_HPC_RUNS, runs_folder
    in ~/.config/trtllm-hpc/config.toml, or ./runs.

    'trtllm-hpc help COMMAND' explains a command. -v and -q can also follow COMMAND.
    """


command.params += _verbosity_options(hidden=False)


def main(args: Sequence[str] | None = None) -> Any:
    """Run the command line, and exit with its exit code."""
    # Imports make thousands of objects and no garbage: a collection after each 700 objects takes 5 % of the
    # time of a short command.
    gc.set_threshold(20_000)
    # Replace closed streams, and characters that an encoding lacks, so that printing never fails.
    codecs.register_error("trtllm-hpc", _in_ascii)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: the next opened file would get its number
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
            _drop_output(stream)  # otherwise Python flushes it again, and exits with 120
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
        # The terminal has written ^C, so begin a new line.
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
    except BrokenPipeError:  # the reader has closed the pipe, as in "trtllm-hpc logs | head"
        return ExitCode.OK
    except OSError as error:
        # For a full disk or a missing permission, a traceback would only hide the line that helps.
        _print_error(f"error: {_system_error(error)}")
        return ExitCode.INTERNAL
    return code if isinstance(code, int) else ExitCode.OK


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_ASCII)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


def _print_error(text: str) -> None:
    """Print an error, on a terminal wrapped at words."""
    from trtllm_hpc.logs.reading import escaped
    from trtllm_hpc.report.tables import terminal_width, wrap

    with suppress(BrokenPipeError):
        click.echo(wrap(escaped(text), terminal_width(sys.stderr)), err=True)


def _system_error(error: OSError) -> str:
    """Return a sentence about an error of the operating system."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {reason}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        # An error of a file names the file, so this is an error of standard output.
        _drop_output(sys.stdout)
        return f"The output cannot be written: {reason}."
    return f"{reason}."


def _drop_output(stream: TextIO) -> None:
    """Discard what Python flushes when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
