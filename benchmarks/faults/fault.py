"""The type of a fault, and the table of all faults (``catalogue.toml``)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DIES = r"rank {0} on .*(died first|killed|no sign of life|recorded no end)|lost .*rank {0}"
_SURVIVES = {"says": "every stage has completed", "exits": [0], "requests": 120}


@dataclass(frozen=True)
class Fault:
    """A fault. The head of ``catalogue.toml`` explains each field."""

    name: str
    title: str
    inject: tuple[str, ...]
    says: str
    exits: tuple[int, ...] = (7,)
    prepare: tuple[str, ...] = ()
    when: str = "measures"
    bound_s: float = 15.0
    ranks: int = 1
    builds: bool = False
    requests: int = 600
    survives: bool = False
    from_slurm: bool = False
    undone_when_named: bool = False
    asks: str = "status"
    timed: bool = False
    living: bool = False


def _fault(name: str, row: Mapping[str, Any]) -> Fault:
    fields = {**(_SURVIVES if row.get("survives") else {}), **row}
    if "dies" in fields:
        fields["says"] = _DIES.format(fields.pop("dies"))
    for key in ("inject", "prepare", "exits"):
        value = fields.get(key)
        if value is not None:
            fields[key] = (value,) if isinstance(value, str) else tuple(value)
    return Fault(name, **fields)


_TOML = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
_TABLES = _TOML.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
NOT_INJECTED: Mapping[str, str] = _TABLES.pop("not_injected")
"""Faults of real clusters that cannot be injected on the sandbox, each with the reason."""
FAULTS = {
    name: _fault(name, {**table.get("defaults", {}), **row})
    for table in _TABLES.values()
    for name, row in table.items()
    if name != "defaults"
}
"""All faults by name, in the page's order."""
