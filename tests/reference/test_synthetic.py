"""The tokenizer of the synthetic models: what random weights generate can be counted from its text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.config.synthetic_models import SHAPES, VOCAB_SIZE
from trtllm_hpc.reference.synthetic import SPECIAL_TOKENS, make_tokenizer

SIZES = sorted({shape["vocab_size"] for shape in SHAPES.values()})


@pytest.fixture(scope="module", params=SIZES)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tokenizers import Tokenizer

    folder = tmp_path_factory.mktemp("model") / "tokenizer"
    make_tokenizer(folder, request.param)
    found = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert found.get_vocab_size() == request.param
    return found


def ordinary(tokenizer: Any) -> range:
    return range(len(SPECIAL_TOKENS), tokenizer.get_vocab_size())


def test_every_token_has_a_text(tokenizer: Any) -> None:
    assert all(tokenizer.decode([token]) for token in ordinary(tokenizer))


def test_the_tokens_of_random_answers_can_be_counted_from_their_text(tokenizer: Any) -> None:
    """A byte that is no letter by itself is shown as U+FFFD, which stands for one token."""
    drawn = random.Random(0)
    answers = [drawn.choices(ordinary(tokenizer), k=128) for _ in range(100)]
    counts = []
    for answer in answers:
        text = tokenizer.decode(answer)
        letters = tokenizer.encode(text.replace("\ufffd", ""), add_special_tokens=False)
        counts.append(len(letters.ids) + text.count("\ufffd"))
    assert sum(counts) == pytest.approx(100 * 128, rel=0.03)
    if tokenizer.get_vocab_size() > VOCAB_SIZE:
        assert sum(count == 128 for count in counts) >= 95


@pytest.mark.parametrize(
    "text", ["What is the weather like today?", "Naïve café, 12!", " bidob,  bidobs", "日本"]
)
def test_texts_come_back_as_they_were(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_larger_models_encode_ordinary_texts_alike(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    found = []
    for size in SIZES:
        make_tokenizer(tmp_path / str(size), size)
        tokenizer = Tokenizer.from_file(str(tmp_path / str(size) / "tokenizer.json"))
        found.append(tokenizer.encode("The scheduler has a queue; what is the weather like today?").ids)
    assert found[0] == found[-1] and len(SIZES) == 2
