"""What a shell offers for words that this project knows; asked only when Tab is pressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def complete_with(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    """For ``shell_complete``: those of the names that begin with what is typed so far."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in names(ctx) if name.startswith(incomplete)]

    return complete


def releases(ctx: click.Context) -> list[str]:
    """Versions of TensorRT-LLM, and Triton's tags."""
    from trtllm_hpc.tensorrt_llm.releases import releases as known

    return [name for release in known() for name in (release.version, *release.tags)]


def programs(ctx: click.Context) -> list[str]:
    """Upstream's programs."""
    from trtllm_hpc.tensorrt_llm.releases import COMMANDS

    return list(COMMANDS)


def families(ctx: click.Context) -> list[str]:
    """Families of models that any program is for."""
    from trtllm_hpc.tensorrt_llm.releases.load import read_data

    return sorted(read_data("examples")["family"])


def checks(ctx: click.Context) -> list[str]:
    """Ids of the checks of ``doctor``."""
    from trtllm_hpc.validation.run_checks import CHECKS

    return [check.id for check in CHECKS]


def templates(ctx: click.Context) -> list[str]:
    """Models of upstream's templates."""
    from trtllm_hpc.tensorrt_llm.releases.placeholders import templates as known

    return sorted({model for _, model in known()})


def engines(cache_of: Callable[[Path | None, str | None], Iterable[str]]) -> Complete:
    """Names in the cache that ``--engines`` and ``--cluster`` tell; none where it cannot be read."""

    def names(ctx: click.Context) -> Iterable[str]:
        from trtllm_hpc.errors import TrtllmHpcError

        folder, cluster = ctx.params.get("folder"), ctx.params.get("cluster")
        # Not "is None": click 8.3 and later keep a sentinel of their own for an option not given.
        try:
            return cache_of(
                Path(folder) if isinstance(folder, (str, Path)) else None,
                cluster if isinstance(cluster, str) else None,
            )
        except (OSError, TrtllmHpcError):
            return ()

    return complete_with(names)


def job_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of the shipped job files, and files."""
    from trtllm_hpc.config.files import jobs

    return _names_and_files(jobs(), incomplete)


def cluster_profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of the cluster profiles, and files."""
    from trtllm_hpc.config.files import profiles

    return _names_and_files(profiles(), incomplete)


def _names_and_files(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return the names, and the folders and YAML files, that begin with ``incomplete``."""
    from click.shell_completion import CompletionItem

    begun = incomplete.rpartition("/")[2]
    prefix = incomplete[: len(incomplete) - len(begun)]
    found = [name for name in names if name.startswith(incomplete)]
    try:
        entries = sorted(Path(prefix or ".").iterdir())
    except (OSError, ValueError):
        entries = []  # no such folder, or not ours to read: no files to offer
    for entry in entries:
        if entry.name.startswith(begun) and (begun or not entry.name.startswith(".")):
            if entry.suffix in (".yaml", ".yml"):
                found.append(prefix + entry.name)
            elif entry.is_dir():
                found.append(f"{prefix}{entry.name}/")
    return [CompletionItem(word) for word in found]
