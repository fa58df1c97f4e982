"""Arguments, options and output that several commands share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from trtllm_hpc.cli import QUIET
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.paths import RunPaths, default_runs_folder, write_text
from trtllm_hpc.runs.find import find_run, list_runs

if TYPE_CHECKING:
    from trtllm_hpc.report.tables import Cell
    from trtllm_hpc.runs.prune import Pruned

    ParameterType = click.ParamType[Any]
else:
    ParameterType = click.ParamType  # generic only in the newest releases of click

Command = TypeVar("Command", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
OUTPUT_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


_HELP_ALL = "trtllm_hpc.help_all"
"""Key of the context's ``meta`` that ``--help-all`` sets."""


class BriefCommand(click.Command):
    """A command with many options: ``--help`` shows those in ``first``, and ``--help-all`` shows all."""

    def __init__(self, *args: Any, first: Collection[str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._first = {*first, "--help", "--help-all"}
        option = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options and exit.",
        )
        self.params.append(option)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and how to see the others."""
        shows_all = ctx.meta.get(_HELP_ALL, False)
        shown = [
            param
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (shows_all or not self._first.isdisjoint(param.opts))
        ]
        with formatter.section("Options"):
            formatter.write_dl([record for param in shown if (record := param.get_help_record(ctx))])
        if not shows_all:
            formatter.write_paragraph()
            formatter.write_text(f"More options: {ctx.command_path} --help-all")


def _show_all(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
    """Callback of ``--help-all``."""
    if is_given and not ctx.resilient_parsing:
        ctx.meta[_HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class DefaultGroup(click.Group):
    """A group whose command ``run`` can be left out: ``bench latest`` is ``bench run latest``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of use, not of the alphabet."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``bench latest --rate 4`` as ``bench run latest --rate 4``."""
        if not args and ctx.resilient_parsing:
            return super().parse_args(ctx, args)  # shell completion offers the commands, too
        own = [word for option in self.get_params(ctx) for word in option.opts]  # -v and -q
        first = next((word for word in args if word not in own), "")
        if first not in self.commands and not any(word in ctx.help_option_names for word in args[:1]):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both forms."""
        argument = next(param for param in self.commands["run"].params if isinstance(param, click.Argument))
        formatter.write_usage(ctx.command_path, f"{argument.make_metavar(ctx)} [OPTIONS]")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...", prefix=" " * len("Usage: "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of ``run``, and then the commands."""
        run = self.commands["run"]
        run.format_options(click.Context(run, ctx, "run"), formatter)
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.short_help or "") for name, each in self.commands.items()])


def complete_with(names: Callable[[click.Context], Iterable[str]], *, files: bool = False) -> Complete:
    """Return a ``shell_complete`` that offers names, and with ``files`` also file names."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # The shell lists files itself. In bash, click drops the items before this item, so it comes first.
        listed = [CompletionItem(incomplete, type="file")] if files else []
        return [*listed, *(CompletionItem(name) for name in names(ctx) if name.startswith(incomplete))]

    return complete


def job_names(ctx: click.Context) -> list[str]:
    """Return the names of the shipped job files."""
    from trtllm_hpc.config.files import jobs

    return list(jobs())


def _profile_names(ctx: click.Context) -> list[str]:
    from trtllm_hpc.config.files import profiles

    return list(profiles())


def runs_folder(ctx: click.Context | None) -> Path:
    """Return the folder of ``--runs``, or the default folder."""
    # Not "is None": in click 8.3 and later a missing option is a sentinel.
    chosen = ctx.params.get("runs") if ctx is not None else None
    return chosen.absolute() if isinstance(chosen, Path) else default_runs_folder()


def found_run(ctx: click.Context, param: click.Parameter, value: str | None) -> RunPaths | None:
    """Callback: return the run of a folder, an ID, a job's name or ``latest``. Raises RunNotFound."""
    return None if value is None else find_run(value, runs_folder(ctx))


class Span(ParameterType):
    """A time such as ``90s``, ``2h`` or ``4:00:00``, or a number of units of ``unit_s`` seconds."""

    name = "time"

    def __init__(self, unit_s: float = 0, least: float = 0) -> None:
        self._unit_s, self._least = unit_s, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the time in units of ``unit_s``, or in seconds."""
        from trtllm_hpc.config.types import seconds_in

        if isinstance(value, float):  # the default
            return value
        try:
            units = seconds_in(value, self._unit_s) / (self._unit_s or 1)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        if units < self._least:
            self.fail(f"{value!r} is less than {self._least:g}.", param, ctx)
        return units


complete_run = complete_with(lambda ctx: ["latest", *(run.run_id for run in list_runs(runs_folder(ctx)))])
_run = partial(click.argument, "run", metavar="[RUN]", callback=found_run, shell_complete=complete_run)
optional_run = _run(required=False)
"""Passed on as ``run: RunPaths | None``."""
runs_option = click.option(
    "--runs",
    type=click.Path(file_okay=False, path_type=Path),
    is_eager=True,
    metavar="FOLDER",
    help="Folder of runs.  [default: $TRTLLM_HPC_RUNS or ./runs]",
)
"""Passed on as ``runs: Path | None``."""


def run_argument(command: Command) -> Command:
    """Add ``RUN`` and ``--runs``, passed on as ``run: RunPaths`` and ``runs``."""
    return runs_option(_run(default="latest")(command))


ignore_option = click.option(
    "--ignore",
    multiple=True,
    metavar="CHECK-ID",
    help="Continue if this check of 'doctor' fails.  [repeatable]",
)
"""Passed on as ``ignore: tuple[str, ...]``."""
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON. 'trtllm-hpc schema output' describes it."
)
wait_option = click.option(
    "--wait-seconds",
    type=Span(1),
    default=0.0,
    metavar="S",
    help="Wait at most S seconds for the server.  [default: 0]",
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="A.B=C",
    help="Override a key, e.g. serve.nodes=2 or cluster.partition=gpu.  [repeatable]",
)
"""Passed on as ``settings: tuple[str, ...]``."""


def section_option(section: str, example: str) -> Callable[[Command], Command]:
    """``--set`` for one section of the job file; passed on as ``settings: tuple[str, ...]``."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help=f"Override a key of {section}, e.g. {example}.  [repeatable]",
    )


def section_settings(settings: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of :func:`section_option` by dotted key. Raises ConfigError."""
    from trtllm_hpc.config.layers import read_settings

    tree, _, wrong = read_settings(settings)
    if wrong:
        raise ConfigError(wrong)
    given: dict[str, Any] = {}
    for key, value in tree.data.items():
        is_workload = key == "workload" and isinstance(value, dict)
        nested = {f"workload.{name}": part for name, part in value.items()} if is_workload else {}
        given |= nested if is_workload else {key: value}
    return given


def _default_profile() -> str:
    from trtllm_hpc.config.files import default_profile

    return default_profile()


cluster_option = click.option(
    "--cluster",
    default=_default_profile,
    metavar="PROFILE",
    shell_complete=complete_with(_profile_names, files=True),
    envvar="TRTLLM_HPC_CLUSTER",
    help="Cluster profile: a file or a name.  [default: $TRTLLM_HPC_CLUSTER, the profile 'default' if it"
    " exists, or sandbox]",
)


def url_options(help: str) -> Callable[[Command], Command]:
    """Add ``--url``, ``--key-file`` and ``--certificate``, passed on as ``address: Address | None``."""

    def add(command: Command) -> Command:
        @wraps(command)
        def with_address(
            *args: Any, url: str | None, key_file: Path | None, certificate: Path | None, **others: Any
        ) -> Any:
            from trtllm_hpc.client.connect import Address

            if url is None and (key_file or certificate):
                raise click.UsageError("--key-file and --certificate need --url: a run has its own files.")
            address = None if url is None else Address(url, key_file, certificate)
            return command(*args, address=address, **others)

        options = (
            click.option("--url", help=help),
            click.option("--key-file", type=EXISTING_FILE, help="File with the API key for --url."),
            click.option(
                "--certificate",
                type=EXISTING_FILE,
                help="Certificate (PEM) to trust for --url.  [default: the system's]",
            ),
        )
        for option in reversed(options):
            option(with_address)
        return cast(Command, with_address)

    return add


def valid_text(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Callback: refuse text that is not valid UTF-8."""
    from trtllm_hpc.config.diagnostics import shown

    for text in (value,) if isinstance(value, str) else value or ():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            place = f"character {error.start + 1} of {len(text)}"
            raise click.BadParameter(f"{shown(text)} is not valid UTF-8, at {place}.") from None
    return value


def save_new(file: Path, text: str) -> None:
    """Write a new file that everybody may read. Raises ConfigError if it exists."""
    refuse_existing(file)
    try:
        write_text(file, text, mode=0o644)
    except OSError as error:
        message = f"cannot be written: {error.strerror}"
        raise ConfigError([Diagnostic("unwritable", message, str(file))]) from None


def refuse_existing(file: Path) -> None:
    """Raise ConfigError if a file exists."""
    if os.path.lexists(file):
        hint = f"name another file, or remove {file}"
        raise ConfigError([Diagnostic("exists", "already exists; it was not changed", str(file), hint=hint)])


@contextmanager
def terminating_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM, which Slurm sends before it kills a job, like Ctrl-C."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a background process of a shell
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def detaching(sentence: str, *following: str) -> Iterator[None]:
    """On Ctrl-C print a sentence and the commands that can follow."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\n{sentence}\n  next: {', or '.join(following)}", err=True)
        raise click.Abort from None


def print_json(record: Any, *, indent: int | None = 2) -> None:
    """Print a record, or a list of records, as JSON; with ``indent=None`` on one line.

    A dataclass becomes an object with its fields and the properties named in its ``PRINTED``, as in the JSON
    Schema of the command's output (``docs/reference/json.md``).
    """
    import json

    utf8 = (sys.stdout.encoding or "").replace("-", "").lower() == "utf8"
    click.echo(json.dumps(record, indent=indent, ensure_ascii=not utf8, default=_plain))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
        return {name: getattr(value, name) for name in (*names, *getattr(value, "PRINTED", ()))}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} cannot be written as JSON")


def is_quiet() -> bool:
    """Return whether ``-q`` was given: only results, warnings and errors are printed."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def print_note(text: str, *, err: bool = True) -> None:
    """Print progress or advice, on standard error or with the output; nothing with ``-q``."""
    if not is_quiet():
        click.echo(text, err=err)


def print_warning(text: str) -> None:
    """Print a warning, or a ``note:``, on standard error; a terminal wraps it at words."""
    from trtllm_hpc.report.tables import terminal_width, wrap

    if not (text.startswith("note:") and is_quiet()):
        click.echo(wrap(text, terminal_width(sys.stderr)), err=True)


def print_step(step: str) -> None:
    """Print on standard error which step, which can take a while, begins now."""
    print_note(f"  {step} ...")


def job_options(command: Command, *, required: bool = True) -> Command:
    """Add ``JOB``, ``--cluster``, ``--set`` and ``--runs``. A lock as JOB excludes ``--cluster``."""

    @wraps(command)
    def checked(*arguments: Any, job_file: Path | None, **options: Any) -> Any:
        from trtllm_hpc.validation.load import read_lock

        source = click.get_current_context().get_parameter_source("cluster")
        if source is click.core.ParameterSource.COMMANDLINE and job_file and read_lock(job_file):
            raise click.UsageError(
                f"{job_file} contains its profile: leave --cluster out, or use --set cluster.KEY=VALUE."
            )
        return command(*arguments, job_file=job_file, **options)

    return click.argument(
        "job_file",
        type=click.Path(path_type=Path),
        metavar="JOB" if required else "[JOB]",
        required=required,
        shell_complete=complete_with(job_names, files=True),
    )(cluster_option(set_option(runs_option(cast(Command, checked)))))


Row = TypeVar("Row")


def print_listing(
    rows: Sequence[Row],
    columns: Mapping[str, Callable[[Row], Cell]],
    *,
    as_json: bool = False,
    empty: str = "",
    below: str = "",
    right: Collection[str] = (),
    one_line: Collection[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print rows as a table, or as JSON.

    Args:
        columns: the function that makes the cell of a row, by header.
        empty: printed if there are no rows; ``below``: printed below the table.
        right, one_line, optional: as for :class:`trtllm_hpc.report.tables.Table`.
    """
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo(empty)
        return
    from trtllm_hpc.report.tables import Table, print_table

    cells = [[cell(row) for cell in columns.values()] for row in rows]
    print_table(Table(*columns, right=right, one_line=one_line, optional=optional, rows=cells))
    if below:
        click.echo(below)


def pruning(last: str, *, with_sizes: bool = True) -> Callable[[Callable[..., Sequence[Pruned]]], Any]:
    """Make a command ``prune`` from a function that selects, and with ``remove_them`` removes, items.

    The function gets ``older_than_s: float | None`` and ``remove_them: bool``. ``last`` says in the help
    what happened long ago, e.g. ``ended``.
    """

    def make(choose: Callable[..., Sequence[Pruned]]) -> Callable[..., None]:
        @wraps(choose)
        def prune(*, older_than: float | None, yes: bool, **others: Any) -> None:
            from trtllm_hpc.report.formatting import format_bytes

            if others.get("names") and older_than is not None:
                raise click.UsageError("Give names or --older-than, not both.")
            chosen = choose(older_than_s=older_than, remove_them=yes, **others)
            done = "removed" if yes else "would be removed"
            for pruned in chosen:
                fate = f"{done}, it {pruned.why}" if pruned.kept is None else f"stays, it {pruned.kept}"
                click.echo(f"{pruned.name}: {fate}")
            removed = [pruned for pruned in chosen if pruned.kept is None]
            size = f", {format_bytes(sum(pruned.bytes or 0 for pruned in removed))}" if with_sizes else ""
            click.echo(f"{len(removed)} {done}{size}")
            if removed and not yes:
                print_note("  next: the same command with --yes", err=False)

        click.option("--yes", is_flag=True, help="Remove what is selected.")(prune)
        ago = f"Select what {last} longer ago, e.g. 12h, 30d or 8w."
        click.option("--older-than", type=Span(), metavar="SPAN", help=ago)(prune)
        return prune

    return make
