"""The tokenizer of the synthetic model: what random weights generate can be counted from its text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.config.synthetic_models import VOCAB_SIZE
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.reference.synthetic import SPECIAL_TOKENS, make_tokenizer
from trtllm_hpc.reference.text import stop_words

ORDINARY = range(len(SPECIAL_TOKENS), VOCAB_SIZE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tokenizer"
    make_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

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


def test_words_become_their_tokens_and_where_each_ends(folder: Path) -> None:
    tokenizer = ModelTokenizer(folder)
    fox, what = (tokenizer.encode(word, add_special_tokens=False) for word in ("fox", "What"))
    [[tokens, ends]] = stop_words(tokenizer, ["fox", "", "What"]).tolist()
    assert tokens == [*fox, *what]
    assert ends == [len(fox), len(fox + what), *[-1] * (len(fox + what) - 2)]
    assert stop_words(tokenizer, [""]).shape == (1, 2, 0)
