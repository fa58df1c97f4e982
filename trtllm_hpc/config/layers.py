"""Layers: built-in defaults < ``job_defaults`` of the profile < job file < ``--set``.

Mappings are merged key by key; anything else, lists included, is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trtllm_hpc.config.benchmark import excluded
from trtllm_hpc.config.diagnostics import Path, shown
from trtllm_hpc.config.tree import Place, Tree, parse
from trtllm_hpc.errors import Diagnostic

CLUSTER_PREFIX = "cluster"
"""First part of ``--set`` keys that change the profile; all other keys change the job file."""

RELATIVE_PATHS = (
    ("model", "path"),
    ("model", "token_file"),
    ("engine", "directory"),
    ("companion", "benchmark", "workload", "path"),
    ("companion", "benchmark", "workload", "tokenizer"),
)
"""Keys of the job file whose values may be relative to the file's folder."""

_KINDS = {"path", "hub", "synthetic"}
"""Keys of ``model`` that exclude each other, except that a downloaded ``hub`` model has a ``path`` as
well."""


def merged(values: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings section by section; values of ``further`` override those of ``values``."""
    both = dict(values)
    for key, value in further.items():
        before = both.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            value = merged(before, value)
        both[key] = value
    return both


def merge(lower: Tree, upper: Tree) -> Tree:
    """Merge ``upper`` over ``lower``; every value keeps its place.

    A merged section has its place in ``upper``, or in ``lower`` if ``upper`` is a ``--set``, without lines.
    """
    places = {**lower.places, **upper.places}

    def merged(below: Any, above: Any, path: Path) -> Any:
        if not isinstance(below, dict) or not isinstance(above, dict):
            for inner in lower.places:  # values inside the replaced value
                if inner[: len(path)] == path and inner not in upper.places:
                    del places[inner]
            return above
        if upper.places[path].line is None:
            places[path] = lower.places[path]
        both = {key: merged(below[key], above[key], (*path, key)) for key in above if key in below}
        return {**below, **above, **both}

    return Tree(merged(lower.data, upper.data, ()), places)


def merge_jobs(lower: Tree, upper: Tree) -> Tree:
    """Merge two jobs; keys of ``upper`` also remove the keys of ``lower`` that they exclude.

    Without this, a profile with ``model.synthetic`` would conflict with every job file that has
    ``model.path``.
    """
    dropped = set[Path]()
    kinds = {kind for kind in _KINDS if upper.at("model", kind) is not None}
    if kinds and kinds != {"path", "synthetic"}:  # both: a conflict, which a rule reports
        dropped |= {("model", kind) for kind in _KINDS - kinds}
        if lower.at("model", "hub") is not None:
            dropped.add(("model", "revision"))
    benchmark = upper.at("companion", "benchmark")
    if isinstance(benchmark, dict):
        dropped |= {("companion", "benchmark", key) for key in excluded(benchmark)}
    return merge(lower.without(*dropped), upper)


def with_absolute_paths(tree: Tree) -> Tree:
    """Make paths absolute: ``~`` is the home folder, and relative paths start at the folder of their file."""
    for path in RELATIVE_PATHS:
        if path not in tree.places:
            continue
        place = tree.places[path]
        value = place.typed or tree.at(*path)
        if isinstance(value, str) and value and "\0" not in value:  # a rule refuses other values
            # os.path and not pathlib, because normpath() removes ".." without reading the file system.
            whole = os.path.join(place.folder, os.path.expanduser(value))  # noqa: PTH111, PTH118
            tree = tree.changed(path, os.path.normpath(whole))
    return tree


def job_defaults(profile: Tree) -> Tree | None:
    """Return the profile's ``job_defaults`` as a job tree; ``None`` if they are missing or not a mapping."""
    if not isinstance(profile.at("job_defaults"), dict):
        return None
    tree = profile.section("job_defaults")
    prefixed = {
        path: place._replace(prefix=f"{place.prefix}job_defaults.") for path, place in tree.places.items()
    }
    return Tree(tree.data, prefixed)


def read_settings(settings: Sequence[str]) -> tuple[Tree, Tree, list[Diagnostic]]:
    """Read ``--set a.b=c`` options with YAML values; later ones override earlier ones.

    A shell removes quotes, so ``a.b=0.16`` may be meant as text: the tree keeps the typed text, and
    ``config.validate`` uses it if the key takes text.

    Returns:
        The tree for the job file, the tree for the profile, and the errors.
    """
    here = Place("--set", folder=os.getcwd())  # noqa: PTH109
    in_profile = here._replace(prefix=f"{CLUSTER_PREFIX}.")
    job, cluster = Tree.of({}, here), Tree.of({}, in_profile)
    wrong: list[Diagnostic] = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        keys = name.split(".")
        if not equals or not all(key.strip() == key and key for key in keys):
            hint = "write, for example, --set engine.tensor_parallel=2 or --set cluster.partition=gpu"
            message = f"{shown(setting)} is not KEY=VALUE"
            wrong.append(Diagnostic("bad-setting", message, "--set", "", value=setting, hint=hint))
        elif keys[0] == CLUSTER_PREFIX and len(keys) > 1:
            tree, found = parse(text, in_profile, option=keys[1:])
            wrong += [replace(problem, value=text) for problem in found]
            cluster = merge(cluster, tree) if tree is not None else cluster
        else:
            tree, found = parse(text, here, option=keys)
            wrong += [replace(problem, value=text) for problem in found]
            job = merge_jobs(job, tree) if tree is not None else job
    return job, cluster, wrong
