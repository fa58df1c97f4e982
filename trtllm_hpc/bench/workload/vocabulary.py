"""Token ids that prompts of ids may be made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.bench.workload.tokenizer import Tokenizer
from trtllm_hpc.bench.workload.words import COMMON


@dataclass(frozen=True)
class Vocabulary:
    """Ordinary tokens: ids that the model knows and that begin, end or pad nothing."""

    ids: Sequence[int]
    """In ascending order."""
    name: str
    """Where they were found, for people."""
    size: int | None = None
    """Ids from here on are no tokens of the model; ``None`` if that is not known."""


def of_config(config: Mapping[str, Any], name: str) -> Vocabulary | None:
    """The vocabulary of a model's or an engine's ``config.json``; ``None`` if it tells no size.

    Its size may be padded beyond what the tokenizer knows: a tokenizer's own
    vocabulary is to be preferred.
    """
    told = config.get("pretrained_config", config)
    size = told.get("vocab_size") if isinstance(told, Mapping) else None
    if not isinstance(size, int) or size < 1:
        return None
    special: set[int] = set()
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = told.get(key)
        special.update(value if isinstance(value, list) else [value])
    return Vocabulary(_without(range(size), special), name, size)


def of_words(tokenizer: Tokenizer) -> Vocabulary:
    """The tokens of common words: all that can be known of a tokenizer that only encodes."""
    encoded = tokenizer.encode([f"a {word}" for word in COMMON])
    framing = set(encoded[0]).intersection(*encoded)
    found = {token for ids in encoded for token in ids}
    return Vocabulary(_without(sorted(found), framing), f"{tokenizer.name}, common words")


def _without(ids: Collection[int], special: Collection[Any]) -> list[int]:
    return [token for token in ids if token not in special]
