"""``trtllm-hpc engines``: list, show, verify and prune the cache of built engines."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, cast

import click

from trtllm_hpc.cli.listing import print_listing, pruning
from trtllm_hpc.cli.options import Command, complete_with, json_option, print_json
from trtllm_hpc.engine_cache.contents import EngineDetails, EngineRow, details_of, list_entries
from trtllm_hpc.engine_cache.contents import verify as verify_entry
from trtllm_hpc.engine_cache.lookup import chain_of, parts_of
from trtllm_hpc.errors import BuildFailed, ConfigError, Diagnostic, ExitCode, TrtllmHpcError
from trtllm_hpc.paths import default_runs_folder, engines_folder
from trtllm_hpc.report.formatting import NONE, format_bytes, format_duration, format_time
from trtllm_hpc.runs.prune import Pruned, Selection, prune_engines
from trtllm_hpc.runtime.engine_cache.cache import Cache


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


def cache_options(command: Command) -> Command:
    """``--engines`` and ``--cluster``, passed on as ``cache: Cache``."""

    @wraps(command)
    def with_cache(*args: Any, folder: Path | None, cluster: str | None, **others: Any) -> Any:
        return command(*args, cache=_cache(folder, cluster), **others)

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


def _cache(folder: Path | None, cluster: str | None) -> Cache:
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
    with suppress(OSError, TrtllmHpcError):  # a cache that cannot be read offers no names
        # Not "is None": click 8.3 and later use a sentinel for an option that was not given.
        cache = _cache(
            Path(folder) if isinstance(folder, str | Path) else None,
            cluster if isinstance(cluster, str) else None,
        )
        return [entry.name for entry in cache.entries()]
    return []


complete_name = complete_with(_names)


def _no_engines(cache: Cache) -> str:
    return f"no engines in {cache.folder}" + ("" if cache.folder.is_dir() else ", which is not there")


def _find(cache: Cache, name: str) -> list[EngineRow]:
    """Return the entry with that name, or all whose name or key begins with it; BuildFailed if none does."""
    rows = list_entries(cache)
    found = [row for row in rows if row.name == name] or [
        row
        for row in rows
        if name and (row.name.startswith(name) or row.name.rpartition("-")[2].startswith(name))
    ]
    if not found:
        raise BuildFailed(f"No engine is called {name!r} in {cache.folder}.", hint="trtllm-hpc engines list")
    return found


def _find_one(cache: Cache, name: str) -> EngineRow:
    found = _find(cache, name)
    if len(found) > 1:
        message = f"{len(found)} engines are called {name!r} in {cache.folder}."
        raise BuildFailed(message, hint="trtllm-hpc engines list")
    return found[0]


def _state(row: EngineRow) -> str:
    """Return the state with its builder or its fault."""
    return " ".join(filter(None, (f"{row.state}:" if row.state == "broken" else row.state, row.note)))


_STYLES = {"whole": "green", "building": "cyan", "half-built": "yellow", "broken": "red"}


@command.command("list")
@cache_options
@json_option
def list_engines(cache: Cache, as_json: bool) -> None:
    """List every output in the cache, the last used first."""
    rows = list_entries(cache)
    print_listing(
        rows,
        {
            "name": lambda row: row.name,
            "model": lambda row: row.model or NONE,
            "backend": lambda row: row.backend or NONE,
            "version": lambda row: row.version or NONE,
            "layout": lambda row: row.layout or NONE,
            "size": lambda row: NONE if row.built_at is None else format_bytes(row.bytes),
            "built": lambda row: format_time(row.built_at),
            "last used": lambda row: format_time(row.last_used),
            "state": lambda row: (_state(row), _STYLES.get(row.state, "")),
        },
        as_json=as_json,
        empty=_no_engines(cache),
        below=f"{len(rows)} in {cache.folder}, {format_bytes(sum(row.bytes for row in rows))}",
        right=("size",),
        one_line=("name", "size", "built", "last used"),
        optional=("model", "last used", "layout", "version", "built", "backend"),
    )


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
    lines = [f"{details.name}: {_state(details)}", f"  folder: {details.folder}"]
    lines += [f"  {name}: {value}" for name, value in (details.key.get("about") or {}).items() if value]
    if made is not None:
        lines.append(
            f"  built: {format_time(made.built_at)} on {made.host} in {format_duration(made.seconds)}"
        )
        lines += [f"  {name} installed there: {version}" for name, version in made.versions.items()]
    if details.key:
        lines += ["key:", *(f"  {name}: {value}" for name, value in parts_of(chain_of(details.key)).items())]
    if made is not None:
        lines.append(f"files: {format_bytes(made.size)}")
        lines += [f"  {format_bytes(size):>10}  {name}" for name, (size, _) in sorted(made.files.items())]
    if details.uses:
        lines += ["used by:", *(f"  {run}" for run in details.uses)]
    return lines


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
            whole = f"whole ({len(made.files)} files)" if made else _state(item)
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
        broken = " ".join(dict.fromkeys(fault.entry for fault in faults))
        advice = "submit the job again, which builds it again, or remove it"
        click.echo(f"  next: {advice}: trtllm-hpc engines prune {broken} --yes", err=True)
    return code


def _show_reading(entry: str, file: str) -> None:
    """Show on a terminal what is being read, in place of what was; nothing, if that is empty."""
    text = f"{entry}/{file}" if file else ""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}\r")
        sys.stderr.flush()


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_name)
@pruning("used")
@cache_options
def prune(cache: Cache, selection: Selection, remove_them: bool) -> Sequence[Pruned]:
    """Remove engines from the cache; without --yes, only list them.

    With NAMEs these go. Else what killed builds have left and broken engines go, and
    with --older-than unused engines. An engine that is being built, or used by an
    active run, always stays.

    \b
    Examples:
      trtllm-hpc engines prune --older-than 30d --yes
      trtllm-hpc engines prune build-7a8d --yes
    """
    names = tuple(row.name for name in selection.names for row in _find(cache, name))
    return prune_engines(cache, replace(selection, names=names), remove_them=remove_them)
