"""Layers: built-in defaults < ``job_defaults`` of the profile < job file < ``--set``.

Mappings are merged key by key; anything else, lists included, is replaced.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from trtllm_hpc.config.benchmark import excluded
from trtllm_hpc.config.diagnostics import dotted, shown
from trtllm_hpc.config.tree import Node, Source, parse
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


def merge(lower: Node, upper: Node) -> Node:
    """Put ``upper`` over ``lower``; every value keeps its place.

    The place of a section is the upper file's; but a ``--set`` has no line, so there it is the lower file's.
    """
    if not isinstance(lower.value, dict) or not isinstance(upper.value, dict):
        return upper
    merged = dict(lower.value)
    for key, node in upper.value.items():
        merged[key] = merge(merged[key], node) if key in merged else node
    place = lower if upper.line is None else upper
    return replace(place, value=merged)


def merge_jobs(lower: Node, upper: Node) -> Node:
    """Merge as above, but a model of one kind in ``upper`` drops the other kinds from ``lower``, and a
    benchmark's key those that it excludes.

    Without this, a profile with ``model.synthetic`` could not be used with a job file that has
    ``model.path``, nor the other way round.
    """
    given = {kind for kind in _KINDS if _given(upper, kind)}
    if given and given != {"path", "synthetic"}:
        dropped = _KINDS - given | ({"revision"} if _given(lower, "hub") else set())
        lower = lower.changed(("model",), lambda section: section.without(*dropped))
    plain = upper.plain()
    companion = plain.get("companion") if isinstance(plain, dict) else None
    if isinstance(companion, dict) and isinstance(benchmark := companion.get("benchmark"), dict):
        keys = excluded(benchmark)
        lower = lower.changed(("companion", "benchmark"), lambda section: section.without(*keys))
    return merge(lower, upper)


def _given(tree: Node, key: str) -> bool:
    model = tree.child("model")
    node = model.child(key) if model is not None else None
    return node is not None and node.value is not None


def with_absolute_paths(tree: Node) -> Node:
    """Make relative paths absolute: they start at the folder of their file; ``~`` is the home folder."""
    for path in RELATIVE_PATHS:
        tree = tree.changed(path, _absolute)
    return tree


def _absolute(node: Node) -> Node:
    node = node.as_typed()
    if not isinstance(node.value, str) or not node.value or "\0" in node.value:
        return node  # the rules refuse it
    # os.path and not pathlib: this removes ".." without a look at the file system.
    path = os.path.join(node.source.folder, os.path.expanduser(node.value))  # noqa: PTH111, PTH118
    return replace(node, value=os.path.normpath(path))


def job_defaults(profile: Node) -> Node | None:
    """Return the profile's ``job_defaults`` as a job tree; ``None`` if there are none (or no mapping)."""
    node = profile.child("job_defaults")
    if node is None or not isinstance(node.value, dict):
        return None
    return node.mapped(
        lambda it: Node(it.value, replace(it.source, prefix=f"{it.source.prefix}job_defaults."), it.line)
    )


def read_settings(settings: Sequence[str]) -> tuple[Node, Node, list[Diagnostic]]:
    """Read ``a.b=c`` settings, values in YAML; later ones win.

    A shell removes quotes, so ``a.b=0.16`` may be meant as text: the typed text is kept, and used if the key
    takes text (``config.validate``).

    Returns:
        The tree for the job file, the tree for the profile, and what is wrong.
    """
    here = Source("--set", folder=os.getcwd(), from_shell=True)  # noqa: PTH109
    job, cluster = Node({}, here), Node({}, replace(here, prefix=f"{CLUSTER_PREFIX}."))
    wrong: list[Diagnostic] = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        parts = name.split(".")
        if not equals or not all(part.strip() == part and part for part in parts):
            wrong.append(
                Diagnostic("bad-setting", f"{shown(setting)} is not KEY=VALUE", "--set", "", value=setting,
                        hint="write it like --set engine.tensor_parallel=2 or --set cluster.partition=gpu")
            )  # fmt: skip
            continue
        for_cluster = parts[0] == CLUSTER_PREFIX and len(parts) > 1
        source = cluster.source if for_cluster else here
        value, found = parse(text, replace(source, prefix=f"{dotted(tuple(parts))}."))
        wrong += [replace(it, line=None, value=text) for it in found]
        if value is None:
            continue
        tree = _at_set(parts[for_cluster:], value, source)
        if for_cluster:
            cluster = merge(cluster, tree)
        else:
            job = merge_jobs(job, tree)
    return job, cluster, wrong


def _at_set(keys: Sequence[str], value: Node, source: Source) -> Node:
    """Return the tree of one setting, with ``--set`` as the place of every value."""
    node = value.mapped(lambda it: Node(it.value, source, typed=it.typed))
    for key in reversed(keys):
        node = Node({key: node}, source)
    return node
