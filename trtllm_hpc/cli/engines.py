"""``trtllm-hpc engines``: list, show, verify and prune the cache of built engines."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, cast

import click

from trtllm_hpc.cli.completion import complete_with
from trtllm_hpc.cli.options import Command, Time, json_option, print_json, print_pruned
from trtllm_hpc.engine_cache import prune as pruning
from trtllm_hpc.engine_cache.listing import EngineDetails, EngineRow, details_of, list_entries
from trtllm_hpc.engine_cache.listing import verify as verify_entry
from trtllm_hpc.engine_cache.lookup import parts_of
from trtllm_hpc.engine_cache.prune import starts_with
from trtllm_hpc.errors import BuildFailed, ConfigError, Diagnostic, ExitCode, TrtllmHpcError
from trtllm_hpc.paths import default_runs_folder, engines_folder
from trtllm_hpc.report.engines import engines_table, state_of
from trtllm_hpc.report.formatting import format_bytes, format_duration, format_time
from trtllm_hpc.report.tables import print_table
from trtllm_hpc.runs.prune import is_active
from trtllm_hpc.runtime.engine_cache.cache import Cache

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@click.group()
def command() -> None:
    """The cache of built engines: list, show, verify and prune it.

    An engine is found again by a key: a hash of the model's files, of every
    build option, of the versions and of the GPU. `render` and `submit` look
    there first. The cache is the profile's engines_folder, else
    $TRTLLM_HPC_ENGINES, else `engines` beside the folder of runs.

    \b
    Examples:
      trtllm-hpc engines list
      trtllm-hpc engines verify
      trtllm-hpc engines prune --older-than 30d
    """


# The cache ---------------------------------------------------------------------------


def cache_options(command: Command) -> Command:
    """``--engines`` and ``--cluster``, passed on as ``cache: Cache``."""

    @wraps(command)
    def with_cache(*args: Any, folder: Path | None, cluster: str | None, **others: Any) -> Any:
        return command(*args, cache=open_cache(folder, cluster), **others)

    click.option(
        "--cluster",
        metavar="PROFILE",
        envvar="TRTLLM_HPC_CLUSTER",
        show_envvar=True,
        help="Cluster profile that names the cache: a file, or a name.",
    )(with_cache)
    click.option(
        "--engines",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the cache, instead of the profile's or $TRTLLM_HPC_ENGINES.",
    )(with_cache)
    return cast(Command, with_cache)


def open_cache(folder: Path | None, cluster: str | None) -> Cache:
    """Return the cache that the options name; it need not exist.

    Raises ConfigError if this user may not read it.
    """
    from trtllm_hpc.runs.hub import runs_folder
    from trtllm_hpc.validation.load import load_cluster

    if folder is not None:
        return Cache(_readable(folder.absolute(), "--engines"))
    named, runs = None, default_runs_folder()
    if cluster is not None:
        profile = load_cluster(cluster)
        named, runs = profile.engines_folder, runs_folder(profile)
    return Cache(_readable(engines_folder(named, runs), "engines_folder"))


def _readable(folder: Path, key: str) -> Path:
    try:
        list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        hint = f"check its permissions (namei -l {shlex.quote(str(folder))}), or name another with --engines"
        message = f"{folder}: {error.strerror}"
        diagnostic = Diagnostic("unreadable", message, "the cache of engines", key, hint=hint)
        raise ConfigError([diagnostic]) from None
    return folder


def _names(ctx: click.Context) -> list[str]:
    folder, cluster = ctx.params.get("folder"), ctx.params.get("cluster")
    # Not "is None": click 8.3 and later use a sentinel for an option that was not given.
    folder = Path(folder) if isinstance(folder, (str, Path)) else None
    try:
        return [it.name for it in open_cache(folder, cluster if isinstance(cluster, str) else None).entries()]
    except (OSError, TrtllmHpcError):
        return []  # a cache that cannot be read offers no names


complete_name = complete_with(_names)


def _no_engines(cache: Cache) -> str:
    return f"no engines in {cache.folder}" + ("" if cache.folder.is_dir() else ", which is not there")


def _find(cache: Cache, items: list[EngineRow], name: str) -> list[EngineRow]:
    """Return the entry with that name, or all whose name or key begins with it; BuildFailed if none does."""
    exact = [item for item in items if item.name == name]
    found = exact or [item for item in items if starts_with(item.name, name)]
    if not found:
        raise BuildFailed(f"No engine is called {name!r} in {cache.folder}.", hint="trtllm-hpc engines list")
    return found


def _find_one(cache: Cache, name: str) -> EngineRow:
    found = _find(cache, list_entries(cache), name)
    if len(found) > 1:
        message = f"{len(found)} engines are called {name!r} in {cache.folder}."
        raise BuildFailed(message, hint="trtllm-hpc engines list")
    return found[0]


# list, show ---------------------------------------------------------------------------


@command.command("list")
@cache_options
@json_option
def list_engines(cache: Cache, as_json: bool) -> None:
    """List every output in the cache, the last used first."""
    items = list_entries(cache)
    if as_json:
        print_json(items)
        return
    if not items:
        click.echo(_no_engines(cache))
        return
    print_table(engines_table(items))
    click.echo(f"{len(items)} in {cache.folder}, {format_bytes(sum(item.bytes for item in items))}")


@command.command()
@click.argument("name", shell_complete=complete_name)
@cache_options
@json_option
def show(name: str, cache: Cache, as_json: bool) -> None:
    """Show what the key of the engine NAME depends on, how it was built and who uses it.

    NAME is a name from `engines list`, or the beginning of one or of its key.
    """
    details = details_of(_find_one(cache, name))
    if as_json:
        print_json(details)
        return
    for line in _details(details):
        click.echo(line)


def _details(details: EngineDetails) -> list[str]:
    made = details.manifest
    lines = [f"{details.name}: {state_of(details)}", f"  folder: {details.folder}"]
    lines += [f"  {name}: {value}" for name, value in (details.key.get("about") or {}).items() if value]
    if made is not None:
        lines.append(
            f"  built: {format_time(made.built_at)} on {made.host} in {format_duration(made.seconds)}"
        )
        lines += [f"  {name} installed there: {version}" for name, version in made.versions.items()]
    lines.append("key:")
    chain = details.key.get("chain") or {details.step: details.key.get("document", {})}
    lines += [f"  {name}: {value}" for name, value in parts_of(chain)]
    if made is not None:
        lines.append(f"files: {format_bytes(made.size)}")
        lines += [f"  {format_bytes(size):>10}  {name}" for name, (size, _) in sorted(made.files.items())]
    if details.uses:
        lines += ["used by:", *(f"  {run}" for run in details.uses)]
    return lines


# verify -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with an engine."""

    entry: str
    """The engine's name."""
    sentence: str


@dataclass(frozen=True)
class VerifiedEngines:
    """Whether engines are what was built."""

    entries: int
    """How many engines were read."""
    faults: tuple[Fault, ...]
    """Empty: all are what was built."""


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_name)
@cache_options
@json_option
def verify(names: tuple[str, ...], cache: Cache, as_json: bool) -> int:
    """Read every file of every engine (or of NAMEs) and compare it with what was built.

    \b
    Exit code: 6 if anything is broken.
    """
    items = [_find_one(cache, name) for name in names] if names else list_entries(cache)
    faults = []
    for item in items:
        found = verify_entry(item.entry, partial(_show_reading, item.name))
        _show_reading(item.name, "")
        faults += [Fault(item.name, sentence) for sentence in found]
        if not as_json and not found:
            made = item.entry.manifest()
            whole = f"whole ({len(made.files)} files)" if made else state_of(item)
            click.echo(f"{item.name}: {whole}")
    code = ExitCode.BUILD if faults else ExitCode.OK
    if as_json:
        print_json(VerifiedEngines(len(items), tuple(faults)))
        return code
    if not items:
        click.echo(_no_engines(cache))
    for fault in faults:
        click.echo(f"error: {fault.entry}: {fault.sentence}", err=True)
    if faults:
        keys = " ".join(f"--key {name}" for name in dict.fromkeys(fault.entry for fault in faults))
        advice = "submit the job again, which builds it again, or remove it"
        click.echo(f"  next: {advice}: trtllm-hpc engines prune {keys} --yes", err=True)
    return code


def _show_reading(entry: str, file: str) -> None:
    """Show on a terminal what is being read, in place of what was; nothing, if that is empty."""
    text = f"{entry}/{file}" if file else ""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}\r")
        sys.stderr.flush()


# prune --------------------------------------------------------------------------------


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", value.strip(), re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size; write it like 500G or 1.5T.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


@dataclass(frozen=True)
class PrunedEngine:
    """One engine, or one model, that was chosen."""

    name: str
    bytes: int
    why: str
    """Why it was chosen, e.g. ``was last used 40 days ago``."""
    kept: str | None
    """Why it stays; ``None``: it goes."""


@dataclass(frozen=True)
class PrunedEngines:
    """The engines or models that were chosen, and which of them go."""

    removed: bool
    """Whether they were removed (``--yes``), or only listed."""
    entries: tuple[PrunedEngine, ...]


@command.command()
@click.option("--older-than", type=Time(), metavar="SPAN", help="Engines unused for so long: 30d, 12h.")
@click.option(
    "--keep-bytes",
    callback=_size,
    metavar="SIZE",
    help="The least recently used engines, until SIZE (500G, 1.5T) is left.",
)
@click.option(
    "--key",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_name,
    help="This engine.  [repeatable]",
)
@click.option("--half-built", is_flag=True, help="What killed builds have left, and broken engines.")
@click.option("--yes", is_flag=True, help="Remove them; without this they are only listed.")
@cache_options
@json_option
def prune(
    older_than: float | None,
    keep_bytes: int | None,
    names: tuple[str, ...],
    half_built: bool,
    yes: bool,
    cache: Cache,
    as_json: bool,
) -> None:
    """Remove engines from the cache; without --yes, only list them.

    An engine that is being built, or used by an active run, always stays.
    """
    selection = pruning.Selection(names, older_than, keep_bytes, half_built)
    if not selection:
        raise click.UsageError("Name what to remove: --older-than, --keep-bytes, --key or --half-built.")
    items = list_entries(cache)
    for name in names:
        _find(cache, items, name)
    decisions = pruning.decide(items, selection, is_active)
    if yes:
        decisions = [pruning.prune(cache, decision, is_active) for decision in decisions]
        pruning.forget_uses(cache, is_active)
        if half_built:
            cache.remove_leftovers()
    chosen = tuple(PrunedEngine(it.row.name, it.row.bytes, it.reason, it.kept) for it in decisions)
    if as_json:
        print_json(PrunedEngines(yes, chosen))
        return
    size = format_bytes(sum(it.bytes for it in chosen if it.kept is None))
    print_pruned([(it.name, it.why, it.kept) for it in chosen], yes, f", {size}")
