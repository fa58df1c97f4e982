"""``trtllm-hpc engines``: the cache of built engines."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trtllm_hpc.cli.completion import engines as complete_engines
from trtllm_hpc.cli.options import json_option
from trtllm_hpc.errors import BuildFailed, ExitCode

if TYPE_CHECKING:
    from trtllm_hpc.runtime.engines.cache import Cache
    from trtllm_hpc.runtime.engines.prune import Verdict
    from trtllm_hpc.runtime.engines.survey import Item

Command = TypeVar("Command", bound=Callable[..., Any])

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


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


def _cache_options(command: Command) -> Command:
    """``--engines`` and ``--cluster``; the command gets ``cache``."""
    command = click.option(
        "--engines",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the cache, instead of the profile's or $TRTLLM_HPC_ENGINES.",
    )(command)
    return click.option(
        "--cluster",
        metavar="PROFILE",
        envvar="TRTLLM_HPC_CLUSTER",
        show_envvar=True,
        help="Cluster profile whose cache is meant: a file, or a name.",
    )(command)


def _cache(folder: Path | None, cluster: str | None) -> Cache:
    from trtllm_hpc.config.load import load_cluster
    from trtllm_hpc.runs import default_runs_folder, engines_folder
    from trtllm_hpc.runtime.engines.cache import Cache

    if folder is not None:
        return Cache(_open(folder.absolute(), "--engines"))
    named, runs = None, default_runs_folder()
    if cluster is not None:
        profile = load_cluster(cluster)
        named, runs = profile.engines_folder, Path(profile.runs_folder or runs)
    return Cache(_open(engines_folder(named, runs), "engines_folder"))


def _open(folder: Path, key: str) -> Path:
    """The folder, which need not be there; ConfigError where it is closed to this person."""
    from trtllm_hpc.errors import ConfigError, Finding

    try:
        list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        hint = f"see what is in the way (namei -l {shlex.quote(str(folder))}), or name another with --engines"
        message = f"{folder}: {error.strerror}"
        raise ConfigError([Finding("unreadable", message, "the cache of engines", key, hint=hint)]) from None
    return folder


def _names(folder: Path | None, cluster: str | None) -> list[str]:
    return [entry.name for entry in _cache(folder, cluster).entries()]


_complete_name = complete_engines(_names)


def _no_engines(cache: Cache) -> str:
    return f"no engines in {cache.folder}" + ("" if cache.folder.is_dir() else ", which is not there")


# list, show ---------------------------------------------------------------------------


@command.command("list")
@_cache_options
@json_option
def list_engines(folder: Path | None, cluster: str | None, as_json: bool) -> None:
    """List every output in the cache, that used last coming first."""
    from trtllm_hpc.report.engines import engines_table, in_bytes
    from trtllm_hpc.report.tables import print_table
    from trtllm_hpc.runtime.engines.survey import survey

    cache = _cache(folder, cluster)
    items = survey(cache)
    if as_json:
        click.echo(json.dumps([_item_json(item) for item in items], indent=2, ensure_ascii=False))
        return
    if not items:
        click.echo(_no_engines(cache))
        return
    print_table(engines_table(items))
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
@click.argument("name", shell_complete=_complete_name)
@_cache_options
@json_option
def show(name: str, folder: Path | None, cluster: str | None, as_json: bool) -> None:
    """Show what the engine NAME is made of, how it was built and who uses it.

    NAME is a name of `engines list`, or the beginning of one or of its key.
    """
    from trtllm_hpc.runtime.engines.survey import look
    from trtllm_hpc.runtime.engines.uses import uses_of

    item = look(_chosen(_cache(folder, cluster), name).entry)
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
    from trtllm_hpc.runtime.engines.differences import parts_of

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
    from trtllm_hpc.runtime.engines.prune import starts
    from trtllm_hpc.runtime.engines.survey import survey

    items = survey(cache)
    exact = [item for item in items if item.entry.name == name]
    found = exact or [item for item in items if starts(item.entry.name, name)]
    if len(found) == 1:
        return found[0]
    what = "No engine is" if not found else f"{len(found)} engines are"
    raise BuildFailed(f"{what} called {name!r} in {cache.folder}.", hint="trtllm-hpc engines list")


# verify -------------------------------------------------------------------------------


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=_complete_name)
@_cache_options
@json_option
def verify(names: tuple[str, ...], folder: Path | None, cluster: str | None, as_json: bool) -> int:
    """Read every file of every engine (or of NAMEs) and compare it with what was built.

    \b
    Exit code: 6 if anything is broken.
    """
    from trtllm_hpc.report.engines import state_of
    from trtllm_hpc.runtime.engines.survey import survey
    from trtllm_hpc.runtime.engines.survey import verify as verify_entry

    cache = _cache(folder, cluster)
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


# prune --------------------------------------------------------------------------------


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", value.strip(), re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"{value!r} is no size; write it like 500G or 1.5T.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


@command.command()
@click.option("--unused-days", type=click.FloatRange(min=0), metavar="N", help="What no run used for N days.")
@click.option(
    "--keep-bytes", callback=_size, metavar="SIZE", help="What is above SIZE (500G, 1.5T), least used first."
)
@click.option(
    "--key",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=_complete_name,
    help="This one.  [repeatable]",
)
@click.option("--half-built", is_flag=True, help="What was left by killed builds, and what is broken.")
@click.option("--yes", is_flag=True, help="Remove it; without this it is only said what would go.")
@_cache_options
@json_option
def prune(
    unused_days: float | None,
    keep_bytes: int | None,
    names: tuple[str, ...],
    half_built: bool,
    yes: bool,
    folder: Path | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Remove engines that nobody needs; tell which, without --yes.

    What is being built, or used by a run that is not over, stays in any case.
    """
    from trtllm_hpc.lifecycle.uses import is_active
    from trtllm_hpc.runtime.engines import prune as pruning
    from trtllm_hpc.runtime.engines.survey import survey

    wish = pruning.Wish(names, unused_days, keep_bytes, half_built)
    if not wish:
        raise click.UsageError("Say what may go: --unused-days, --keep-bytes, --key or --half-built.")
    cache = _cache(folder, cluster)
    items = survey(cache)
    _refuse_unknown(cache, items, names)
    watches: pruning.Watches = {}
    if half_built:
        items, watches = pruning.watch_builders(items, lambda text: click.echo(text, err=True))
    verdicts = pruning.judge(items, wish, is_active)
    if yes:
        verdicts = [pruning.prune(cache, verdict, is_active, watches) for verdict in verdicts]
        pruning.forget(cache, is_active)
        if half_built:
            pruning.tidy(cache)
    _tell_verdicts(verdicts, yes, as_json)


def _refuse_unknown(cache: Cache, items: list[Item], names: tuple[str, ...]) -> None:
    from trtllm_hpc.runtime.engines.prune import starts

    for name in names:
        if not any(starts(item.entry.name, name) for item in items):
            raise BuildFailed(
                f"No engine is called {name!r} in {cache.folder}.", hint="trtllm-hpc engines list"
            )


def _tell_verdicts(verdicts: list[Verdict], done: bool, as_json: bool) -> None:
    from trtllm_hpc.report.engines import in_bytes

    if as_json:
        rows = [
            {"name": verdict.item.entry.name, "bytes": verdict.item.size, "why": verdict.why}
            | {"kept": verdict.kept}
            for verdict in verdicts
        ]
        click.echo(json.dumps({"removed": done, "entries": rows}, indent=2, ensure_ascii=False))
        return
    for verdict in verdicts:
        name = verdict.item.entry.name
        if verdict.kept is not None:
            click.echo(f"{name}: stays, it {verdict.kept}")
        else:
            click.echo(f"{name}: {'removed' if done else 'would go'}, it {verdict.why}")
    gone = [verdict for verdict in verdicts if verdict.kept is None]
    size = in_bytes(sum(verdict.item.size for verdict in gone))
    click.echo(f"{len(gone)} {'removed' if done else 'would be removed'}, {size}")
    if gone and not done:
        click.echo("  next: the same command with --yes")
