"""The section ``sweep`` of a job file: which variants of the job to run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field

from trtllm_hpc.config.diagnostics import shown
from trtllm_hpc.config.layers import merge
from trtllm_hpc.config.tree import Node, Source, parse
from trtllm_hpc.config.types import Count, JobName, Minutes, OneLine, Section
from trtllm_hpc.errors import Diagnostic

Values = Annotated[list[Any], Field(min_length=1)]

_LONGEST_NAME = 48
_SHORT = {
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "context_parallel": "cp",
    "moe_expert_parallel": "ep",
    "max_batch_size": "bs",
    "max_num_tokens": "tokens",
    "max_seq_len": "len",
    "free_gpu_memory_fraction": "kv",
    "kv_cache_config.dtype": "kv",
    "instances": "x",
    "servers": "x",
}
"""How the names of variants shorten keys, or the last two parts of a key."""

_CONDITION = re.compile(r"(<=|>=|<|>|!=)\s*(.+)")


class Sweep(Section):
    """Variants of the job. Those of ``grid``, ``zip`` and ``variants`` are combined with each other."""

    grid: dict[OneLine, Values] = Field(default={})
    """Every combination of these values, by dotted key:
    ``{engine.tensor_parallel: [2, 4], engine.max_batch_size: [64, 256]}`` is four variants."""
    zip: dict[OneLine, Values] = Field(default={})
    """The first value of each key together, then the second of each, and so on; all lists have one length."""
    variants: dict[JobName, dict[OneLine, Any]] = Field(default={})
    """Variants by name: what each changes in the job file, as a file that ``extends`` it would."""
    exclude: list[dict[OneLine, Any]] = Field(default=[])
    """Variants to leave out: in each item, every dotted key has the value, or one of the list of values, or
    keeps a condition such as ``'>= 256'``. A key that nobody has written has the value ``null``."""
    allocation: Literal["each", "one"] = "each"
    """``each``: every variant has Slurm jobs of its own. ``one``: a single job holds the nodes, serves and
    measures one variant after another."""
    max_running: Count | None = None
    """How many variants may run at once; ``None``: as many as Slurm starts."""
    time_limit_minutes: Minutes | None = None
    """With ``allocation: one``, the time limit of that job; ``None``: the sum of the variants' limits."""


@dataclass(frozen=True)
class Override:
    """A variant before it is checked."""

    name: str
    values: Mapping[str, Any]
    """The value of each key that the variant sets."""
    tree: Node
    """What it changes in the job file."""


def read_sweep_options(options: Sequence[str]) -> tuple[Node | None, list[Diagnostic]]:
    """Read ``--sweep KEY=A,B,C`` options, values in YAML, as a section ``sweep`` with a grid."""
    here, grid, wrong = Source("--sweep", from_shell=True), dict[str, Node](), list[Diagnostic]()
    for option in options:
        key, equals, text = option.partition("=")
        values, found = parse(f"[{text}]", here) if equals and key.strip() == key != "" else (None, [])
        wrong += [replace(it, line=None, field=key) for it in found]
        if values is None or not values.value:
            hint = "write it like --sweep engine.tensor_parallel=2,4"
            problem = Diagnostic("bad-setting", f"{shown(option)} is not KEY=A,B", "--sweep", hint=hint)
            wrong += [] if found else [problem]
            continue
        grid[key] = values.mapped(lambda it: replace(it, line=None))
    return Node({"grid": Node(grid, here)}, here) if grid else None, wrong


def expand(sweep: Sweep, tree: Node, job: Node) -> tuple[list[Override], list[Diagnostic]]:
    """Return the variants of a sweep in order, without those that are excluded; or what is wrong.

    Args:
        tree: the section that the sweep was made of, in which every value has its place.
        job: the job file, whose values the conditions of ``exclude`` see where a variant sets none.
    """
    wrong = list(_problems(sweep, tree))
    if wrong:
        return [], wrong
    labels = _Labels([*sweep.grid, *sweep.zip])
    overrides = [_combined(options, labels) for options in product(*_axes(sweep, tree))]
    kept = [it for it in overrides if not _excluded(sweep, it, job)]
    if not kept:
        return [], [tree.diagnostic("no-variants", ("exclude",), "leaves no variant", hint="remove an item")]
    return _with_unique_names(kept), []


def _problems(sweep: Sweep, tree: Node) -> Iterator[Diagnostic]:
    if not (sweep.grid or sweep.zip or sweep.variants):
        hint = "name keys and their values: grid: {engine.max_batch_size: [64, 256]}"
        yield tree.diagnostic("no-variants", (), "has no grid, zip or variants", hint=hint)
    for kind in ("grid", "zip"):
        for key in getattr(sweep, kind):
            if not all(key.split(".")):
                yield tree.diagnostic("bad-value", (kind, key), "is not a dotted key of the job file")
    for key in sweep.grid.keys() & sweep.zip.keys():
        yield tree.diagnostic("duplicate-key", ("zip", key), "is in grid too", hint="keep one of the two")
    lengths = {key: len(values) for key, values in sweep.zip.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        hint = "give all lists the same length, or write grid for every combination"
        yield tree.diagnostic("bad-value", ("zip",), f"needs lists of one length: {counts}", hint=hint)


class _Option:
    """One choice along one axis: a value for some keys, or a named variant."""

    def __init__(
        self, tree: Node, values: Mapping[str, Any], name: str | None = None, place: int = 0
    ) -> None:
        self.tree, self.values, self.name, self.place = tree, values, name, place


def _axes(sweep: Sweep, tree: Node) -> Iterator[list[_Option]]:
    if sweep.variants:
        named = tree.value["variants"]  # type: ignore[index, call-overload]
        assert isinstance(named, Node)
        yield [
            _Option(_undotted(node), dict(_leaves(_undotted(node))), name)
            for name in sweep.variants
            if (node := named.child(name)) is not None
        ]
    if sweep.zip:
        rows = range(len(next(iter(sweep.zip.values()))))
        yield [_set({key: _value(tree, "zip", key, row) for key in sweep.zip}, row) for row in rows]
    for key, values in sweep.grid.items():
        yield [_set({key: _value(tree, "grid", key, place)}, place) for place in range(len(values))]


def _value(tree: Node, kind: str, key: str, place: int) -> Node:
    node: Node | None = tree
    for part in (kind, key, place):
        node = node.child(part) if node is not None else None
    assert node is not None, "the sweep was made of this tree"
    return node


def _set(nodes: Mapping[str, Node], place: int) -> _Option:
    tree = _undotted(Node(dict(nodes), next(iter(nodes.values())).source))
    return _Option(tree, {key: node.plain() for key, node in nodes.items()}, place=place)


def _undotted(section: Node) -> Node:
    """Return a section with every dotted key as a section of sections."""
    made = replace(section, value={})
    for key, node in section.value.items() if isinstance(section.value, dict) else ():
        for part in reversed(key.split(".")):
            node = Node({part: node}, node.source, node.line)
        made = merge(made, node)
    return made


def _leaves(node: Node, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, child in node.value.items() if isinstance(node.value, dict) else ():
        if isinstance(child.value, dict) and child.value:
            yield from _leaves(child, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", child.plain()


def _combined(options: Sequence[_Option], labels: _Labels) -> Override:
    tree, values, words = options[0].tree, dict(options[0].values), list[str]()
    for option in options[1:]:
        tree, values = merge(tree, option.tree), {**values, **option.values}
    for option in options:
        words += (
            [option.name] if option.name else [labels.of(*it, option.place) for it in option.values.items()]
        )
    name = "-".join(words)
    return Override(name, values, tree)


class _Labels:
    """Words for the names of variants."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._words = {key: _short(key) for key in keys}
        used = Counter(self._words.values())
        for key, word in self._words.items():
            if used[word] > 1:  # the same key of two sections
                self._words[key] = f"{key.split('.')[-2:][0].replace('_', '-')}-{word}"

    def of(self, key: str, value: Any, place: int) -> str:
        """Return ``tp4`` for a number, ``fp8kv`` or ``dtype-bfloat16`` for text, ``no-door`` for nothing."""
        word = self._words[key]
        if value is None or isinstance(value, bool):
            return word if value else f"no-{word}"
        if isinstance(value, list) and value and not any(isinstance(it, (dict, list)) for it in value):
            value = "_".join(map(str, value))
        elif isinstance(value, (dict, list)):
            value = place + 1
        elif isinstance(value, str):
            return _safe(f"{value}{word}" if word in _SHORT.values() else f"{word}-{value}")
        return _safe(f"{word}{value}")


def _short(key: str) -> str:
    parts = key.split(".")
    found = _SHORT.get(".".join(parts[-2:])) or _SHORT.get(parts[-1])
    return found or parts[-1].replace("_", "-")


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)


def _with_unique_names(overrides: list[Override]) -> list[Override]:
    """Number the variants whose names are too long, or the same."""
    used = Counter(it.name for it in overrides)
    return [
        replace(it, name=f"variant-{number}")
        if used[it.name] > 1 or len(it.name) > _LONGEST_NAME or not re.match("[A-Za-z0-9]", it.name)
        else it
        for number, it in enumerate(overrides, 1)
    ]


def _excluded(sweep: Sweep, override: Override, job: Node) -> bool:
    whole = merge(job, override.tree)
    return any(
        all(_holds(condition, _plain_at(whole, key)) for key, condition in item.items())
        for item in sweep.exclude
    )


def _plain_at(tree: Node, key: str) -> Any:
    node: Node | None = tree
    for part in key.split("."):
        node = node.child(part) if node is not None else None
    return None if node is None else node.plain()


def _holds(condition: Any, value: Any) -> bool:
    if isinstance(condition, list):
        return any(_holds(it, value) for it in condition)
    comparison = _CONDITION.fullmatch(condition) if isinstance(condition, str) else None
    if comparison is None:
        return bool(condition == value)
    sign, bound = comparison[1], parse(comparison[2], Source(""))[0]
    limit = None if bound is None else bound.value
    if sign == "!=":
        return bool(limit != value)
    if not isinstance(limit, (int, float)) or not isinstance(value, (int, float)):
        return False
    return {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[sign]
