"""``trtllm-hpc engines``: list, verify and prune the cache of built engines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import click

from trtllm_hpc.cli.shared import cluster_option, json_option, print_json, print_listing, pruning
from trtllm_hpc.engine_cache import EngineRow, list_entries
from trtllm_hpc.engine_cache import verify as verify_entry
from trtllm_hpc.errors import BuildFailed, ConfigError, Diagnostic, ExitCode
from trtllm_hpc.paths import engines_folder
from trtllm_hpc.report.formatting import NONE, format_bytes, format_time
from trtllm_hpc.runs.prune import Pruned, prune_engines
from trtllm_hpc.runtime.engine_cache.cache import Cache


@click.group()
def command() -> None:
    """The cache of built engines: list, verify and prune it.

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


def _cache(cluster: str) -> Cache:
    """Return the profile's cache; it need not exist. Raises ConfigError if this user may not read it."""
    from trtllm_hpc.runs.hub import runs_folder
    from trtllm_hpc.validation.load import load_cluster

    profile = load_cluster(cluster)
    folder = engines_folder(profile.engines_folder, runs_folder(profile))
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            list(folder.iterdir())
    except OSError as error:
        hint = f"check its permissions (namei -l {shlex.quote(str(folder))})"
        message, where = f"{folder}: {error.strerror}", ("the cache of engines", "engines_folder")
        raise ConfigError([Diagnostic("unreadable", message, *where, hint=hint)]) from None
    return Cache(folder)


def _no_engines(cache: Cache) -> str:
    return f"no engines in {cache.folder}" + ("" if cache.folder.is_dir() else ", which is not there")


def _find(cache: Cache, name: str, *, alone: bool = False) -> list[EngineRow]:
    """Return the entry with that name, or all whose name or key begins with it.

    Raises BuildFailed if there is none; with ``alone`` also if there are several.
    """
    rows = list_entries(cache)
    found = [row for row in rows if row.name == name] or [
        row for row in rows if name and any(it.startswith(name) for it in (row.name, row.name.split("-")[-1]))
    ]
    if not found or (alone and len(found) > 1):
        message = "No engine is" if not found else f"{len(found)} engines are"
        hint = "trtllm-hpc engines list"
        raise BuildFailed(f"{message} called {name!r} in {cache.folder}.", hint=hint)
    return found


_STYLES = {"whole": "green", "building": "cyan", "half-built": "yellow", "broken": "red"}


def _state(row: EngineRow) -> str:
    """Return the state with its builder or its fault."""
    return " ".join(filter(None, (f"{row.state}:" if row.state == "broken" else row.state, row.note)))


@command.command("list")
@cluster_option
@json_option
def list_engines(cluster: str, as_json: bool) -> None:
    """List every output in the cache, the last used first."""
    cache = _cache(cluster)
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
@click.argument("names", nargs=-1, metavar="[NAME]...")
@cluster_option
@json_option
def verify(names: tuple[str, ...], cluster: str, as_json: bool) -> int:
    """Read every file of every engine (or of NAMEs) and compare it with what was built.

    \b
    Exit code: 6 if anything is broken.
    """
    cache = _cache(cluster)
    items = [_find(cache, name, alone=True)[0] for name in names] if names else list_entries(cache)
    faults = []
    for item in items:
        found = verify_entry(item.entry)
        faults += [Fault(item.name, sentence) for sentence in found]
        if not as_json and not found:
            made = item.entry.manifest()
            click.echo(f"{item.name}: {f'whole ({len(made.files)} files)' if made else _state(item)}")
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


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@pruning("used")
@cluster_option
def prune(
    names: tuple[str, ...], cluster: str, older_than_s: float | None, remove_them: bool
) -> Sequence[Pruned]:
    """Remove engines from the cache; without --yes, only list them.

    With NAMEs these go. Else what killed builds have left and broken engines go, and
    with --older-than unused engines. An engine that is being built, or used by an
    active run, always stays.

    \b
    Examples:
      trtllm-hpc engines prune --older-than 30d --yes
      trtllm-hpc engines prune build-7a8d --yes
    """
    cache = _cache(cluster)
    found = [row.name for name in names for row in _find(cache, name)]
    return prune_engines(cache, found, older_than_s, remove_them=remove_them)
