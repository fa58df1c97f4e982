"""Token ids that prompts of ids may be made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Vocabulary:
    """Ordinary tokens: ids that the model knows and that begin, end or pad nothing."""

    ids: Sequence[int]
    """In ascending order."""
    name: str
    """Where they were found, for people."""
    size: int | None = None
    """Ids from here on are no tokens of the model; ``None`` if that is not known."""
