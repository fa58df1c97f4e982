"""What is asked: the user's prompts, or a few built-in ones of different length."""

from __future__ import annotations

import random
from collections.abc import Sequence

BUILT_IN = (
    "What is machine learning?",
    "Name three rivers of Europe.",
    "Translate to French: good morning.",
    "Explain in one paragraph why the sky is blue.",
    "Write a short poem about a ship that comes home after a long winter.",
    "List the steps to make tea, and say which of them matters most for the taste.",
    "A train leaves at noon at 80 kilometres an hour. How far has it come at half past two?",
    "Summarise in two sentences what an operating system does for the programs that it runs.",
)


def choose_prompts(count: int, given: Sequence[str], seed: int) -> list[str]:
    """``count`` prompts: all those on offer once before any of them again, in a seeded order."""
    offer = list(given or BUILT_IN)
    source = random.Random(seed)
    chosen: list[str] = []
    while len(chosen) < count:
        chosen += source.sample(offer, len(offer))
    return chosen[:count]
