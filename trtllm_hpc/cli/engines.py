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
    """List, verify and prune the cache of built engines.

    'submit' reuses an engine if model, build options, versions and GPU are the same.
    Folder of the cache: engines_folder of the profile, $TRTLLM_HPC_ENGINES, or
    'engines' beside the folder of runs.

    \b
    Examples:
      trtllm-hpc engines list
      trtllm-hpc engines verify
      trtllm-hpc engines prune --older-than 30d
    """


def _cache(cluster: str) -> Cache:
    """Return the profile's cache, which may not exist. Raises ConfigError if it cannot be read."""
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
    return f"no engines in {cache.folder}" + ("" if cache.folder.is_dir() else ", which does not exist")


def _find(cache: Cache, name: str, *, alone: bool = False) -> list[EngineRow]:
    """Return the entry with a name, or all entries whose name or key begins with it.

    Raises BuildFailed without such an entry; with ``alone`` also for several entries.
    """
    rows = list_entries(cache)
    found = [row for row in rows if row.name == name] or [
        row
        for row in rows
        if name and (row.name.startswith(name) or row.name.split("-")[-1].startswith(name))
    ]
    if not found or (alone and len(found) > 1):
        message = "No engine is" if not found else f"{len(found)} engines are"
        hint = "trtllm-hpc engines list"
        raise BuildFailed(f"{message} called {name!r} in {cache.folder}.", hint=hint)
    return found


_STYLES = {"whole": "green", "building": "cyan", "half-built": "yellow", "broken": "red"}


def _state(row: EngineRow) -> str:
    """Return the state, with the builder or the fault."""
    return " ".join(filter(None, (f"{row.state}:" if row.state == "broken" else row.state, row.note)))


@command.command("list")
@cluster_option
@json_option
def list_engines(cluster: str, as_json: bool) -> None:
    """List the engines in the cache, the last used first."""
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
    """A fault of an engine."""

    entry: str
    """Name of the engine."""
    sentence: str


@dataclass(frozen=True)
class VerifiedEngines:
    """Result of the comparison of engines with the records of their builds."""

    entries: int
    """Number of engines that were read."""
    faults: tuple[Fault, ...]
    """Faults; empty if all engines are intact."""


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@cluster_option
@json_option
def verify(names: tuple[str, ...], cluster: str, as_json: bool) -> int:
    """Compare every file of the engines with the record of the build.

    The exit code is 6 if an engine is broken.
    """
    cache = _cache(cluster)
    rows = [_find(cache, name, alone=True)[0] for name in names] if names else list_entries(cache)
    faults = []
    for row in rows:
        found = verify_entry(row.entry)
        faults += [Fault(row.name, sentence) for sentence in found]
        if not as_json and not found:
            manifest = row.entry.manifest()
            click.echo(f"{row.name}: {f'whole ({len(manifest.files)} files)' if manifest else _state(row)}")
    code = ExitCode.BUILD if faults else ExitCode.OK
    if as_json:
        print_json(VerifiedEngines(len(rows), tuple(faults)))
        return code
    if not rows:
        click.echo(_no_engines(cache))
    for fault in faults:
        click.echo(f"error: {fault.entry}: {fault.sentence}", err=True)
    if faults:
        broken = " ".join(dict.fromkeys(fault.entry for fault in faults))
        advice = "submit the job again to build it again, or remove it"
        click.echo(f"  next: {advice}: trtllm-hpc engines prune {broken} --yes", err=True)
    return code


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@pruning("was last used")
@cluster_option
def prune(
    names: tuple[str, ...], cluster: str, older_than_s: float | None, remove_them: bool
) -> Sequence[Pruned]:
    """Remove engines from the cache; without --yes, only list them.

    Selects NAMEs, or else broken engines, remains of killed builds and, with
    --older-than, unused engines. An engine stays while it is being built, or while
    an active run uses it.

    \b
    Examples:
      trtllm-hpc engines prune --older-than 30d --yes
      trtllm-hpc engines prune build-7a8d --yes
    """
    cache = _cache(cluster)
    found = [row.name for name in names for row in _find(cache, name)]
    return prune_engines(cache, found, older_than_s, remove_them=remove_them)
