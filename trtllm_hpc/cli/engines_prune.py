"""``trtllm-hpc engines prune``: what may go from the cache of engines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtllm_hpc.cli.engine_cache import cache_of, cache_options, complete_name
from trtllm_hpc.cli.options import json_option
from trtllm_hpc.errors import BuildFailed

if TYPE_CHECKING:
    from trtllm_hpc.runtime.engine_cache.cache import Cache
    from trtllm_hpc.runtime.engine_cache.prune import Verdict
    from trtllm_hpc.runtime.engine_cache.survey import Item

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", value.strip(), re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"{value!r} is no size; write it like 500G or 1.5T.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


@click.command("prune")
@click.option("--unused-days", type=click.FloatRange(min=0), metavar="N", help="What no run used for N days.")
@click.option(
    "--keep-bytes", callback=_size, metavar="SIZE", help="What is above SIZE (500G, 1.5T), least used first."
)
@click.option(
    "--key",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_name,
    help="This one.  [repeatable]",
)
@click.option("--half-built", is_flag=True, help="What was left by killed builds, and what is broken.")
@click.option("--yes", is_flag=True, help="Remove it; without this it is only said what would go.")
@cache_options
@json_option
def command(
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
    from trtllm_hpc.runs.engine_uses import is_active
    from trtllm_hpc.runtime.engine_cache import prune as pruning
    from trtllm_hpc.runtime.engine_cache.survey import survey

    wish = pruning.Wish(names, unused_days, keep_bytes, half_built)
    if not wish:
        raise click.UsageError("Say what may go: --unused-days, --keep-bytes, --key or --half-built.")
    cache = cache_of(folder, cluster)
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
    from trtllm_hpc.runtime.engine_cache.prune import starts

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
