"""Job files that build on others: ``extends`` names the base, whose values lie below those of the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from trtllm_hpc.config import diagnostics
from trtllm_hpc.config.diagnostics import nearest, shown
from trtllm_hpc.config.files import jobs, read_tree, swapped
from trtllm_hpc.config.job import JobDocument, JobFile
from trtllm_hpc.config.layers import merge_jobs, with_absolute_paths
from trtllm_hpc.config.tree import Place, Tree
from trtllm_hpc.config.validate import section_at, validate
from trtllm_hpc.errors import ConfigError, Diagnostic


def read_job(path: Path) -> JobFile:
    """Read a job file with its base, without a profile; raises ConfigError with everything that is wrong."""
    tree, wrong = read_job_tree(path)
    job = None
    if tree is not None:
        job, more = validate(JobFile, with_absolute_paths(tree.without(("sweep",))))
        wrong += more
    if job is None or wrong:
        raise ConfigError(wrong)
    return job


def override(base: Tree, over: Tree) -> Tree:
    """Put ``over``, a job file or a part of one, over ``base``.

    A ``null`` over a value of the base removes this value, unless the key has a meaning for ``null``.
    """
    removed = [*_removed(base.data, over.data, ())]
    return merge_jobs(base, over).without(*removed)


def _removed(base: Any, over: Any, path: diagnostics.Path) -> Iterator[diagnostics.Path]:
    """Yield the places of values in ``base`` that a ``null`` of ``over`` removes."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return
    for key in over.keys() & base.keys():
        section = section_at(JobDocument, path)
        field = section.model_fields.get(key) if section is not None else None
        has_null = field is not None and NoneType in get_args(field.annotation)
        if over[key] is None and not has_null:
            yield (*path, key)
        yield from _removed(base[key], over[key], (*path, key))


def read_job_tree(path: Path, chain: tuple[Path, ...] = ()) -> tuple[Tree | None, list[Diagnostic]]:
    """Read a job file with its base below it, as ``files.read_tree``; ``extends`` itself is taken out.

    There is no tree if the base cannot be used, so that nothing is reported that only the base would have.
    ``chain`` has the files that lead to this one.
    """
    tree, wrong = read_tree(path, "job file")
    if tree is None or "extends" not in tree.data:
        return tree, wrong
    base, found = _base(tree.at("extends"), tree.places[("extends",)], (*chain, path))
    wrong += found
    return None if base is None else override(base, tree.without(("extends",))), wrong


def _base(name: Any, place: Place, chain: tuple[Path, ...]) -> tuple[Tree | None, list[Diagnostic]]:
    """Read the job file that the last one of ``chain`` extends."""

    def refused(code: str, message: str, hint: str | None = None) -> tuple[None, list[Diagnostic]]:
        found = Diagnostic(code, message, place.file, "extends", place.line, value=name, hint=hint)
        return None, [found]

    if not isinstance(name, str) or not name or "\0" in name:
        message = f"must name a job file, not {shown(name)}"
        return refused("wrong-type", message, "write extends: qwen3-8b, or extends: ./base.yaml")
    is_shipped = "/" not in name and not name.endswith((".yaml", ".yml"))
    # As the file that names it is shown: relative for a relative one. pathlib fails for an unknown ~user.
    own = chain[-1].parent / os.path.expanduser(name)  # noqa: PTH111
    path = jobs().get(name, Path(name)) if is_shipped else own
    files = [os.path.realpath(file) for file in chain]
    if os.path.realpath(path) in files:
        circle = (*chain[files.index(os.path.realpath(path)) :], path)
        return refused("circle", f"the job files extend each other: {' -> '.join(map(str, circle))}")
    tree, wrong = read_job_tree(path, chain)
    if swapped(tree, None):
        message = f"{path} is a cluster profile; a job file extends job files only"
        return refused("swapped", message, "name the profile with --cluster instead")
    if not any(found.code == "not-found" and found.file == str(path) for found in wrong):
        return tree, wrong
    if is_shipped:
        message = f"no shipped job file is called {name!r}"
        files = [f"./{name}{end}" for end in (".yaml", ".yml", "")]
        guess = next((file for file in files if Path(place.folder, file).is_file()), nearest(name, jobs()))
    else:
        message = f"there is no job file {path}"
        near = nearest(path.name, [file.name for file in path.parent.glob("*.y*ml")])
        guess = str(Path(name).with_name(near)) if near else None
    hint = f"did you mean {guess}?" if guess else "'trtllm-hpc jobs list' names the shipped job files"
    return refused("not-found", message, hint)
