"""Job files that build on others: ``extends`` names the bases, whose values lie below those of the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import takewhile
from operator import methodcaller
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from trtllm_hpc.config import diagnostics
from trtllm_hpc.config.diagnostics import nearest, shown
from trtllm_hpc.config.dump import plain_yaml
from trtllm_hpc.config.files import jobs, read_tree, swapped
from trtllm_hpc.config.job import JobDocument, JobFile
from trtllm_hpc.config.layers import merge_jobs, with_absolute_paths
from trtllm_hpc.config.tree import Node
from trtllm_hpc.config.validate import section_at, validate
from trtllm_hpc.errors import ConfigError, Diagnostic

_KEY = "extends"
_MOST_FILES = 32
"""Files that one job file may be made of, itself included."""


def read_job_tree(path: Path) -> tuple[Node | None, list[Diagnostic]]:
    """Read a job file with its bases below it, as ``files.read_tree``; ``extends`` itself is taken out.

    There is no tree if a base cannot be used, so that nothing is reported that only the base would have.
    """
    return _Reading().whole(path, {})


def read_job(path: Path) -> JobFile:
    """Read a job file with its bases, without a profile; raises ConfigError with everything that is wrong."""
    tree, wrong = read_job_tree(path)
    job = None
    if tree is not None:
        job, more = validate(JobFile, with_absolute_paths(tree.without("sweep")))
        wrong += more
    if job is None or wrong:
        raise ConfigError(wrong)
    return job


def whole_text(path: Path) -> str:
    """Return the text of a valid job file; if it extends files, merged with them, under its first comment."""
    text = path.read_text(encoding="utf-8-sig")
    tree, _ = read_tree(path, "job file")
    whole, _ = read_job_tree(path)
    if tree is None or tree.child(_KEY) is None or whole is None:
        return text
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    return "".join(comment) + plain_yaml(with_absolute_paths(whole).plain())


def override(base: Node, over: Node) -> Node:
    """Put ``over``, a job file or a part of one, over ``base``.

    A ``null`` over a value of the base removes this value, unless the key has a meaning for ``null``.
    """
    merged = merge_jobs(base, over)
    for *section, key in _removed(base, over, ()):
        merged = merged.changed(tuple(section), methodcaller("without", key))
    return merged


def _removed(base: Node, over: Node, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the places of values in ``base`` that a ``null`` of ``over`` removes."""
    if not isinstance(over.value, dict):
        return
    for key, node in over.value.items():
        below, place = base.child(key), (*path, key)
        if below is None:
            continue
        if node.value is None and not _has_null(place):
            yield place
        yield from _removed(below, node, place)


def _has_null(path: diagnostics.Path) -> bool:
    """Whether ``null`` is a value of the key; nothing is known of keys in free mappings."""
    section = section_at(JobDocument, path[:-1])
    field = section.model_fields.get(str(path[-1])) if section is not None else None
    return field is not None and NoneType in get_args(field.annotation)


class _Reading:
    """Reads a job file and everything below it."""

    def __init__(self) -> None:
        self._files = 0

    def whole(self, path: Path, chain: dict[str, str]) -> tuple[Node | None, list[Diagnostic]]:
        """Read a file; ``chain`` has the files that lead to it: names in messages by real paths."""
        self._files += 1
        tree, wrong = read_tree(path, "job file")
        if tree is None:
            return None, wrong
        chain = {**chain, os.path.realpath(path): str(path)}
        below: Node | None = None
        names, found = _names(tree)
        wrong += found
        is_usable = not found
        for name in names:
            base, found = self._base(name, chain)
            wrong += found
            is_usable = is_usable and base is not None
            below = base if below is None or base is None else override(below, base)
        tree = tree.without(_KEY)
        if not is_usable:
            return None, wrong
        return (tree if below is None else override(below, tree)), wrong

    def _base(self, name: Node, chain: dict[str, str]) -> tuple[Node | None, list[Diagnostic]]:
        path = _located(name)
        real = os.path.realpath(path)
        if real in chain:
            files = [*chain.values()]
            circle = " -> ".join([*files[[*chain].index(real) :], str(path)])
            return None, [_wrong(name, "circle", f"the job files extend each other: {circle}")]
        if self._files >= _MOST_FILES:
            message = f"a job may be made of at most {_MOST_FILES} files"
            return None, [_wrong(name, "too-large", message, "let it extend fewer files")]
        tree, wrong = self.whole(path, chain)
        if any(it.code == "not-found" and it.file == str(path) for it in wrong):
            return None, [_missing(name, path)]
        if swapped(tree, None):
            message = f"{path} is a cluster profile; a job file extends job files only"
            return None, [_wrong(name, "swapped", message, "name the profile with --cluster instead")]
        return tree, wrong


def _names(tree: Node) -> tuple[list[Node], list[Diagnostic]]:
    """Return what ``extends`` names, each with its place."""
    named = tree.child(_KEY)
    if named is None:
        return [], []
    names = named.value if isinstance(named.value, list) else [named]
    bad = next(
        (it for it in names if not isinstance(it.value, str) or not it.value or "\0" in it.value), None
    )
    if bad is None:
        return names, []
    message = f"must name a job file, or a list of job files, not {shown(bad.plain())}"
    return [], [_wrong(bad, "wrong-type", message, "write extends: qwen3-8b, or extends: ./base.yaml")]


def _is_shipped_name(text: str) -> bool:
    return "/" not in text and not text.endswith((".yaml", ".yml"))


def _located(name: Node) -> Path:
    text = str(name.value)
    if _is_shipped_name(text):
        return jobs().get(text, Path(text))
    # As the file that names it is shown: relative for a relative one.
    return Path(name.source.file).parent / Path(text).expanduser()


def _missing(name: Node, path: Path) -> Diagnostic:
    text = str(name.value)
    if _is_shipped_name(text):
        message = f"no shipped job file is called {text!r}"
        files = (f"./{text}{end}" for end in (".yaml", ".yml", ""))
        guess = next((it for it in files if Path(name.source.folder, it).is_file()), nearest(text, jobs()))
    else:
        message = f"there is no job file {path}"
        near = nearest(path.name, [it.name for it in path.parent.glob("*.y*ml")])
        guess = str(Path(text).with_name(near)) if near else None
    hint = f"did you mean {guess}?" if guess else "'trtllm-hpc jobs list' names the shipped job files"
    return _wrong(name, "not-found", message, hint)


def _wrong(node: Node, code: str, message: str, hint: str | None = None) -> Diagnostic:
    place: dict[str, Any] = {"file": node.source.file, "field": node.source.prefix + _KEY, "line": node.line}
    return Diagnostic(code, message, **place, value=node.plain(), hint=hint)
