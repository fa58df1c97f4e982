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
"""``--set cluster.partition=gpu`` goes to the profile, everything else to the job file."""

RELATIVE_PATHS = (
    ("model", "path"),
    ("model", "token_file"),
    ("engine", "directory"),
    ("companion", "benchmark", "workload", "path"),
    ("companion", "benchmark", "workload", "tokenizer"),
)
"""Keys of the job file whose relative paths start at the file's own folder."""

_KINDS = {"path", "hub", "synthetic"}
"""The keys of ``model`` of which a job has one; once the model is found, ``hub`` has a ``path`` as well."""


def merged(values: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, section by section; where both have a value it is the second one's."""
    both = dict(values)
    for key, value in further.items():
        before = both.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            value = merged(before, value)
        both[key] = value
    return both


def merge(lower: Tree, upper: Tree) -> Tree:
    """Put ``upper`` over ``lower``; every value keeps its place.

    The place of a section is the upper file's; but a ``--set`` has no line, so there it is the lower file's.
    """
    places = {**lower.places, **upper.places}

    def merged(below: Any, above: Any, path: Path) -> Any:
        if not isinstance(below, dict) or not isinstance(above, dict):
            for inner in lower.places:  # what was below the value that is replaced
                if inner[: len(path)] == path and inner not in upper.places:
                    del places[inner]
            return above
        if upper.places[path].line is None:
            places[path] = lower.places[path]
        both = {key: merged(below[key], above[key], (*path, key)) for key in above if key in below}
        return {**below, **above, **both}

    return Tree(merged(lower.data, upper.data, ()), places)


def merge_jobs(lower: Tree, upper: Tree) -> Tree:
    """Merge as above, but a model of one kind in ``upper`` drops the other kinds from ``lower``, and a
    benchmark's key those that it excludes.

    Without this, a profile with ``model.synthetic`` could not be used with a job file that has
    ``model.path``, nor the other way round.
    """
    dropped = set[Path]()
    given = {kind for kind in _KINDS if upper.at("model", kind) is not None}
    if given and given != {"path", "synthetic"}:
        dropped |= {("model", kind) for kind in _KINDS - given}
        if lower.at("model", "hub") is not None:
            dropped.add(("model", "revision"))
    benchmark = upper.at("companion", "benchmark")
    if isinstance(benchmark, dict):
        dropped |= {("companion", "benchmark", key) for key in excluded(benchmark)}
    return merge(lower.without(*dropped), upper)


def with_absolute_paths(tree: Tree) -> Tree:
    """Make relative paths absolute: they start at the folder of their file; ``~`` is the home folder."""
    for path in RELATIVE_PATHS:
        if path not in tree.places:
            continue
        place = tree.places[path]
        value = place.typed or tree.at(*path)
        if isinstance(value, str) and value and "\0" not in value:  # else the rules refuse it
            # os.path and not pathlib: this removes ".." without a look at the file system.
            whole = os.path.join(place.folder, os.path.expanduser(value))  # noqa: PTH111, PTH118
            tree = tree.changed(path, os.path.normpath(whole))
    return tree


def job_defaults(profile: Tree) -> Tree | None:
    """Return the profile's ``job_defaults`` as a job tree; ``None`` if there are none (or no mapping)."""
    if not isinstance(profile.at("job_defaults"), dict):
        return None
    tree = profile.section("job_defaults")
    prefixed = {
        path: place._replace(prefix=f"{place.prefix}job_defaults.") for path, place in tree.places.items()
    }
    return Tree(tree.data, prefixed)


def read_settings(settings: Sequence[str]) -> tuple[Tree, Tree, list[Diagnostic]]:
    """Read ``a.b=c`` settings, values in YAML; later ones win.

    A shell removes quotes, so ``a.b=0.16`` may be meant as text: the typed text is kept, and used if the key
    takes text (``config.validate``).

    Returns:
        The tree for the job file, the tree for the profile, and what is wrong.
    """
    here = Place("--set", folder=os.getcwd())  # noqa: PTH109
    in_profile = here._replace(prefix=f"{CLUSTER_PREFIX}.")
    job, cluster = Tree.of({}, here), Tree.of({}, in_profile)
    wrong: list[Diagnostic] = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        keys = name.split(".")
        if not equals or not all(key.strip() == key and key for key in keys):
            hint = "write it like --set engine.tensor_parallel=2 or --set cluster.partition=gpu"
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
