"""The section ``sweep`` of a job file: which variants of the job to run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field

from trtllm_hpc.config.diagnostics import shown
from trtllm_hpc.config.layers import merge
from trtllm_hpc.config.tree import Place, Tree, parse
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
"""Short forms, in names of variants, of a key or of its last two parts."""


class SweepSection(Section):
    """Variants of the job: each of ``variants`` combined with each of ``grid``."""

    grid: dict[OneLine, Values] = Field(default={})
    """Values by dotted key; every combination is a variant:
    ``{engine.tensor_parallel: [2, 4], engine.max_batch_size: [64, 256]}`` gives four."""
    variants: dict[JobName, dict[OneLine, Any]] = Field(default={})
    """Changes to the job file by variant name, as in a file that ``extends`` it."""
    exclude: list[dict[OneLine, Any]] = Field(default=[])
    """Variants to leave out: those in which all dotted keys of an item have the item's values (``null``: not
    set in any file)."""
    allocation: Literal["each", "one"] = "each"
    """``each``: separate Slurm jobs for every variant. ``one``: a single job serves and measures the variants
    in turn."""
    max_running: Count | None = None
    """Most variants that run at once; ``None``: as many as Slurm starts."""
    time_limit_minutes: Minutes | None = None
    """With ``allocation: one``: time limit of the job; ``None``: the sum of the variants' limits."""


@dataclass(frozen=True)
class Override:
    """A variant before validation, or its part along one axis of the sweep."""

    name: str
    values: Mapping[str, Any]
    """Values that the variant sets, by dotted key."""
    tree: Tree
    """The variant's changes to the job file."""


def read_sweep_options(options: Sequence[str]) -> tuple[Tree | None, list[Diagnostic]]:
    """Read ``--sweep KEY=A,B,C`` options, values in YAML, as a section ``sweep`` with a grid."""
    here = Place("--sweep")
    section, wrong = Tree.of({}, here), list[Diagnostic]()
    for option in options:
        key, equals, text = option.partition("=")
        is_key = equals and key.strip() == key != ""
        values, found = parse(f"[{text}]", here, ("grid", key)) if is_key else (None, [])
        wrong += [replace(problem, field=key) for problem in found]
        if values is not None and values.at("grid", key):
            section = merge(section, values)
        elif not found:
            hint = "write, for example, --sweep engine.tensor_parallel=2,4"
            wrong.append(Diagnostic("bad-setting", f"{shown(option)} is not KEY=A,B", "--sweep", hint=hint))
    return section if section.data else None, wrong


def expand(sweep: SweepSection, tree: Tree, job: Tree) -> tuple[list[Override], list[Diagnostic]]:
    """Return the variants of a sweep in order, without those that are excluded; or what is wrong.

    Args:
        tree: the ``sweep`` section with the place of every value.
        job: the job file: ``exclude`` compares its values where a variant sets none.
    """
    wrong = [
        tree.diagnostic("bad-value", ("grid", key), "is not a dotted key of the job file")
        for key in sweep.grid
        if not all(key.split("."))
    ]
    if not (sweep.grid or sweep.variants):
        hint = "name keys and their values: grid: {engine.max_batch_size: [64, 256]}"
        wrong.append(tree.diagnostic("no-variants", (), "has no grid or variants", hint=hint))
    if wrong:
        return [], wrong
    overrides = [
        Override(
            "-".join(part.name for part in parts),
            {key: value for part in parts for key, value in part.values.items()},
            reduce(merge, (part.tree for part in parts)),
        )
        for parts in product(*_axes(sweep, tree))
    ]
    kept = []
    for variant in overrides:
        whole = merge(job, variant.tree)
        excluded = any(
            all(whole.at(*key.split(".")) == value for key, value in item.items()) for item in sweep.exclude
        )
        kept += [] if excluded else [variant]
    if not kept:
        message = "excludes every variant"
        return [], [tree.diagnostic("no-variants", ("exclude",), message, hint="remove an item")]
    used = Counter(variant.name for variant in kept)
    for place, variant in enumerate(kept):
        name = variant.name
        if used[name] > 1 or len(name) > _LONGEST_NAME or not re.match("[A-Za-z0-9]", name):
            kept[place] = replace(variant, name=f"variant-{place + 1}")
    return kept, []


def _axes(sweep: SweepSection, tree: Tree) -> Iterator[list[Override]]:
    """Yield the choices along each axis: the variants with names, then the values of each key."""
    if sweep.variants:
        yield [
            Override(name, dict(_leaves(whole.data)), whole)
            for name in sweep.variants
            for variant in [tree.section("variants", name)]
            for whole in [_undotted({key: variant.section(key) for key in variant.data})]
        ]
    words = {}
    for key in sweep.grid:
        parts = key.split(".")
        short = _SHORT.get(".".join(parts[-2:])) or _SHORT.get(parts[-1])
        words[key] = short or parts[-1].replace("_", "-")
    used = Counter(words.values())
    for key, word in words.items():
        if used[word] > 1:  # the same key of two sections
            words[key] = f"{key.split('.')[-2:][0].replace('_', '-')}-{word}"
    for key, values in sweep.grid.items():
        yield [
            Override(_label(words[key], value, place), {key: value}, _undotted({key: part}))
            for place, value in enumerate(values)
            for part in [tree.section("grid", key, place)]
        ]


def _undotted(parts: Mapping[str, Tree]) -> Tree:
    """Return a tree in which dotted keys are nested sections."""
    return reduce(merge, (part.under(*key.split(".")) for key, part in parts.items()), Tree.of({}, Place("")))


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _label(word: str, value: Any, place: int) -> str:
    """Return ``tp4`` for a number, ``fp8kv`` or ``dtype-bfloat16`` for text, ``no-proxy`` for nothing."""
    if value is None or isinstance(value, bool):
        return word if value else f"no-{word}"
    if isinstance(value, str):
        text = f"{value}{word}" if word in _SHORT.values() else f"{word}-{value}"
    elif isinstance(value, list) and value and not any(isinstance(item, (dict, list)) for item in value):
        text = f"{word}{'_'.join(map(str, value))}"
    else:
        text = f"{word}{place + 1 if isinstance(value, (dict, list)) else value}"
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)
