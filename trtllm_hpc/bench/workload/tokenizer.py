"""Who cuts texts into tokens on the client's side: the model's own tokenizer, or the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Cuts texts exactly as the server does before it generates, with the tokens that it adds."""

    @property
    def name(self) -> str:
        """Where it comes from, for people."""

    @property
    def counted_by(self) -> str:
        """What stands in records as who counted: ``tokenizer`` or ``preprocessing``."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
