"""Texts to tokens, in the process of the models that take them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.reference import synthetic
from trtllm_hpc.reference.text import stop_words


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder: Path = tmp_path_factory.mktemp("text") / "tokenizer"
    synthetic.make_tokenizer(folder)
    return ModelTokenizer(folder)


def test_words_become_their_tokens_and_where_each_ends(tokenizer: ModelTokenizer) -> None:
    fox, what = (tokenizer.encode(word, add_special_tokens=False) for word in ("fox", "What"))
    [[tokens, ends]] = stop_words(tokenizer, ["fox", "", "What"]).tolist()
    assert tokens == [*fox, *what]
    assert ends == [len(fox), len(fox + what), *[-1] * (len(fox + what) - 2)]
    assert stop_words(tokenizer, [""]).shape == (1, 2, 0)
