"""Shell completion of names that this project knows; imported when a command is, run when Tab is pressed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_BREAKS = (":", "=")
"""Characters at which bash splits a word (its COMP_WORDBREAKS) and that occur in our arguments."""
_ADD_REPLY = "COMPREPLY+=($value)"


@add_completion_class
class _BashComplete(BashComplete):
    """click's completion for bash, for words with ``:`` or ``=`` too (``latest:sweep``, ``serve.nodes=2``).

    bash passes such a word in pieces and replaces only the last piece.
    """

    # After 'serve.nodes=' or 'jobs/' the word goes on, so no space is added.
    source_template = BashComplete.source_template.replace(
        _ADD_REPLY, f"{_ADD_REPLY}\n            [[ $value == *[=/] ]] && compopt -o nospace"
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor and the word at it, joined again."""
        count = int(os.environ["COMP_CWORD"]) + 1
        words = [*split_arg_string(os.environ["COMP_WORDS"])[:count], ""][:count]
        joined: list[str] = []
        goes_on = False
        for word in words[1:]:
            if joined and (goes_on or word in _BREAKS):
                joined[-1] += word
            else:
                joined.append(word)
            goes_on = word in _BREAKS
        incomplete = joined.pop() if joined else ""
        self._kept = incomplete[: max(incomplete.rfind(mark) for mark in _BREAKS) + 1]
        if incomplete == words[-1]:  # COMP_WORDBREAKS is changed: bash replaces the whole word
            self._kept = ""
        return joined, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return the completion without the part that bash keeps."""
        return f"{item.type},{item.value.removeprefix(self._kept)}"


def complete_with(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    """Return a ``shell_complete`` that offers those of the names that begin with what is typed."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names(ctx) if name.startswith(incomplete)]

    return complete


def settings(ctx: click.Context) -> list[str]:
    """Return the keys that ``--set`` takes, each with its ``=``."""
    from trtllm_hpc.config.cluster import ClusterProfile
    from trtllm_hpc.config.job import JobFile
    from trtllm_hpc.config.validate import all_keys

    return [f"{key}=" for key in (*all_keys(JobFile), *all_keys(ClusterProfile, "cluster."))]


def job_names(ctx: click.Context) -> list[str]:
    """Return the names of the shipped job files."""
    from trtllm_hpc.config.files import jobs

    return list(jobs())


def job_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of the shipped job files, and YAML files."""
    return _names_and_files(job_names(ctx), incomplete)


def cluster_profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the names of the shipped cluster profiles, and YAML files."""
    from trtllm_hpc.config.files import profiles

    return _names_and_files(profiles(), incomplete)


def _names_and_files(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Return the names, folders and YAML files that begin with ``incomplete``."""
    folder, slash, begun = incomplete.rpartition("/")
    words = [name for name in names if name.startswith(incomplete)]
    try:
        entries = sorted(Path(f"{folder}{slash}" or ".").iterdir())
    except (OSError, ValueError):
        entries = []  # no such folder, or not ours to read
    for entry in entries:
        if entry.name.startswith(begun) and (begun or not entry.name.startswith(".")):
            if entry.suffix in (".yaml", ".yml") or entry.name == "lock.json":
                words.append(f"{folder}{slash}{entry.name}")
            elif entry.is_dir():
                words.append(f"{folder}{slash}{entry.name}/")
    return [CompletionItem(word) for word in words]
