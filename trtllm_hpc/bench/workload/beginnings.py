"""Whether requests that share a prefix really begin with the same tokens."""

from __future__ import annotations

from collections.abc import Sequence


class Beginnings:
    """The tokens that all requests of each prefix have begun with so far."""

    def __init__(self) -> None:
        self._tokens: dict[int, Sequence[int]] = {}
        self._asked: dict[int, int] = {}

    def see(self, prefix: int, tokens: Sequence[int]) -> None:
        """One more request of a prefix, and the tokens that should be the prefix."""
        before = self._tokens.setdefault(prefix, tokens)
        self._asked[prefix] = max(self._asked.get(prefix, 0), len(tokens))
        if before != tokens:
            self._tokens[prefix] = before[: _common(before, tokens)]

    def notes(self) -> list[str]:
        """A sentence for each prefix that is not shared whole."""
        return [
            f"Requests of prefix {prefix} share {len(tokens)} tokens and not {self._asked[prefix]}: "
            "the tokenizer joins words."
            for prefix, tokens in self._tokens.items()
            if len(tokens) < self._asked[prefix]
        ]


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(first, second, strict=False)
    return next(
        (place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second))
    )
