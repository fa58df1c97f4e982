"""The tokenizer of the synthetic model: what random weights generate can be counted from its text."""

from __future__ import annotations

import random
from typing import Any

import pytest

from trtllm_hpc.config.synthetic_models import VOCAB_SIZE
from trtllm_hpc.reference.synthetic import SPECIAL_TOKENS, make_tokenizer

ORDINARY = range(len(SPECIAL_TOKENS), VOCAB_SIZE)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tokenizers import Tokenizer

    folder = tmp_path_factory.mktemp("model") / "tokenizer"
    make_tokenizer(folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_the_tokens_of_random_answers_can_be_counted_from_their_text(tokenizer: Any) -> None:
    """A byte that is not a letter by itself is shown as U+FFFD, which stands for one token."""
    assert all(tokenizer.decode([token]) for token in ORDINARY)
    drawn = random.Random(0)
    counts = []
    for _ in range(100):
        text = tokenizer.decode(drawn.choices(ORDINARY, k=128))
        letters = tokenizer.encode(text.replace("\ufffd", ""), add_special_tokens=False)
        counts.append(len(letters.ids) + text.count("\ufffd"))
    assert sum(counts) == pytest.approx(100 * 128, rel=0.03)


@pytest.mark.parametrize("text", ["What is the weather like today?", "Naïve café, 12!", "日本"])
def test_texts_come_back_as_they_were(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
