"""``trtllm-hpc engines``: the cache of built engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtllm_hpc.cli.engine_cache import cache_of, cache_options, complete_name
from trtllm_hpc.cli.engines_prune import command as prune
from trtllm_hpc.cli.options import json_option
from trtllm_hpc.errors import BuildFailed, ExitCode

if TYPE_CHECKING:
    from trtllm_hpc.runtime.engine_cache.cache import Cache
    from trtllm_hpc.runtime.engine_cache.survey import Item


@click.group()
def command() -> None:
    """The cache of built engines: what is in it, whether it is whole, what may go.

    An engine is found again by a key: a hash of the model's files, of every
    build option, of the versions and of the GPU. `render` and `submit` look
    there first. The cache is the profile's engines_folder, else
    $TRTLLM_HPC_ENGINES, else `engines` beside the folder of runs.

    \b
    Examples:
      trtllm-hpc engines list
      trtllm-hpc engines verify
      trtllm-hpc engines prune --unused-days 30
    """


command.add_command(prune)


def _no_engines(cache: Cache) -> str:
    return f"no engines in {cache.folder}" + ("" if cache.folder.is_dir() else ", which is not there")


# list, show ---------------------------------------------------------------------------


@command.command("list")
@cache_options
@json_option
def list_engines(folder: Path | None, cluster: str | None, as_json: bool) -> None:
    """List every output in the cache, that used last coming first."""
    from trtllm_hpc.report.engines import OPTIONAL_COLUMNS, engines_table, in_bytes
    from trtllm_hpc.report.tables import print_table
    from trtllm_hpc.runtime.engine_cache.survey import survey

    cache = cache_of(folder, cluster)
    items = survey(cache)
    if as_json:
        click.echo(json.dumps([_item_json(item) for item in items], indent=2, ensure_ascii=False))
        return
    if not items:
        click.echo(_no_engines(cache))
        return
    print_table(engines_table(items), OPTIONAL_COLUMNS)
    click.echo(f"{len(items)} in {cache.folder}, {in_bytes(sum(item.size for item in items))}")


def _item_json(item: Item) -> dict[str, Any]:
    made = item.manifest
    return {
        "name": item.entry.name,
        "step": item.step,
        "state": item.state,
        "note": item.note,
        **{name: item.about.get(name) for name in ("model", "backend", "version", "layout")},
        "bytes": item.size,
        "built_at": made.built_at if made else None,
        "build_seconds": made.seconds if made else None,
        "last_used": item.last_used,
        "folder": str(item.entry.output),
    }


@command.command()
@click.argument("name", shell_complete=complete_name)
@cache_options
@json_option
def show(name: str, folder: Path | None, cluster: str | None, as_json: bool) -> None:
    """Show what the engine NAME is made of, how it was built and who uses it.

    NAME is a name of `engines list`, or the beginning of one or of its key.
    """
    from trtllm_hpc.runtime.engine_cache.survey import look
    from trtllm_hpc.runtime.engine_cache.uses import uses_of

    item = look(_chosen(cache_of(folder, cluster), name).entry)
    uses = [use.run for use in uses_of(item.entry)]
    record = item.entry.key() or {}
    made = item.manifest
    if as_json:
        whole = {**_item_json(item), "key": record, "uses": uses}
        whole["manifest"] = None if made is None else vars(made)
        click.echo(json.dumps(whole, indent=2, ensure_ascii=False))
        return
    for line in _described(item, record, uses):
        click.echo(line)


def _described(item: Item, record: dict[str, Any], uses: list[str]) -> list[str]:
    from trtllm_hpc.report.engines import in_bytes, moment, span, state_of
    from trtllm_hpc.runtime.engine_cache.differences import parts_of

    made = item.manifest
    lines = [f"{item.entry.name}: {state_of(item)}", f"  folder: {item.entry.output}"]
    lines += [f"  {name}: {value}" for name, value in item.about.items() if value]
    if made is not None:
        lines.append(f"  built: {moment(made.built_at)} on {made.host} in {span(made.seconds)}")
        lines += [f"  {name} installed there: {version}" for name, version in made.versions.items()]
    lines.append("key:")
    chain = record.get("chain") or {item.step: record.get("document", {})}
    lines += [f"  {name}: {value}" for name, value in parts_of(chain)]
    if made is not None:
        lines.append(f"files: {in_bytes(made.size)}")
        lines += [f"  {in_bytes(size):>10}  {name}" for name, (size, _) in sorted(made.files.items())]
    if uses:
        lines += ["used by:", *(f"  {run}" for run in uses)]
    return lines


def _chosen(cache: Cache, name: str) -> Item:
    from trtllm_hpc.runtime.engine_cache.prune import starts
    from trtllm_hpc.runtime.engine_cache.survey import survey

    items = survey(cache)
    exact = [item for item in items if item.entry.name == name]
    found = exact or [item for item in items if starts(item.entry.name, name)]
    if len(found) == 1:
        return found[0]
    what = "No engine is" if not found else f"{len(found)} engines are"
    raise BuildFailed(f"{what} called {name!r} in {cache.folder}.", hint="trtllm-hpc engines list")


# verify -------------------------------------------------------------------------------


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_name)
@cache_options
@json_option
def verify(names: tuple[str, ...], folder: Path | None, cluster: str | None, as_json: bool) -> int:
    """Read every file of every engine (or of NAMEs) and compare it with what was built.

    \b
    Exit code: 6 if anything is broken.
    """
    from trtllm_hpc.report.engines import state_of
    from trtllm_hpc.runtime.engine_cache.survey import survey
    from trtllm_hpc.runtime.engine_cache.survey import verify as verify_entry

    cache = cache_of(folder, cluster)
    items = [_chosen(cache, name) for name in names] if names else survey(cache)
    faults = []
    for item in items:
        found = verify_entry(item.entry, _reading(item))
        _clear_line()
        faults += found
        if not as_json and item.manifest is not None and not found:
            click.echo(f"{item.entry.name}: whole ({len(item.manifest.files)} files)")
        elif not as_json and not found:
            click.echo(f"{item.entry.name}: {state_of(item)}")
    if not items and not as_json:
        click.echo(_no_engines(cache))
    if as_json:
        click.echo(json.dumps({"entries": len(items), "faults": [vars(fault) for fault in faults]}, indent=2))
        return ExitCode.BUILD if faults else ExitCode.OK
    for fault in faults:
        click.echo(f"error: {fault.entry}: {fault.sentence}", err=True)
    if faults:
        keys = " ".join(f"--key {name}" for name in dict.fromkeys(fault.entry for fault in faults))
        words = "submit the job again, which builds it anew, or remove it"
        click.echo(f"  next: {words}: trtllm-hpc engines prune {keys} --yes", err=True)
    return ExitCode.BUILD if faults else ExitCode.OK


def _clear_line() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def _reading(item: Item) -> Callable[[str], None]:
    """Progress on a terminal: the name of the file that is being read."""

    def say(name: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{item.entry.name}/{name}\r")
            sys.stderr.flush()

    return say
