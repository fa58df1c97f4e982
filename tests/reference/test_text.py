"""Text to tokens: what is too long is refused before it is tokenised."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference import synthetic
from trtllm_hpc.reference.text import TextTokenizer, embedding_bias, word_lists

TEXT = "The scheduler wrote a letter, and nobody answered it. "
MEGABYTES_10 = 10_000_000


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("text") / "tokenizer"
    synthetic.make_tokenizer(folder)
    return TextTokenizer(folder)


def bounded(tokenizer: TextTokenizer, text: str, most: int) -> list[int]:
    return tokenizer.encode_bounded(text, most, name="The prompt", limit="max_input_len is 7")


@pytest.mark.parametrize("most", [1, 30, 4000])
@pytest.mark.parametrize("repeats", [1, 20])
def test_text_that_fits_has_the_tokens_that_it_always_had(
    tokenizer: TextTokenizer, most: int, repeats: int
) -> None:
    text = TEXT * repeats
    whole = tokenizer.encode(text)
    try:
        assert bounded(tokenizer, text, most) == whole
    except RequestFailed:
        assert len(whole) > most


def test_longest_token_is_what_the_bound_counts_with(tokenizer: TextTokenizer) -> None:
    """The text that needs the fewest tokens for its length is let through."""
    vocabulary = tokenizer._library.get_vocab()
    longest = max(vocabulary, key=len)
    text = tokenizer.decode([vocabulary[longest]], skip_special_tokens=False) * 50
    tokens = tokenizer.encode(text)
    assert bounded(tokenizer, text, len(tokens)) == tokens


@pytest.mark.parametrize("most", [7, 100_000])
def test_ten_megabytes_are_refused_without_being_tokenised(tokenizer: TextTokenizer, most: int) -> None:
    """Whatever the engine's limit: all of it takes seconds, and more than a gigabyte."""
    text = "word " * (MEGABYTES_10 // 5)
    started = time.process_time()
    with pytest.raises(RequestFailed, match="max_input_len is 7"):
        bounded(tokenizer, text, most)
    assert time.process_time() - started < 3


def test_long_text_is_judged_by_its_start_where_tokens_can_be_long(tokenizer_with_long_token: Path) -> None:
    tokenizer = TextTokenizer(tokenizer_with_long_token)
    assert tokenizer.longest_token == len(LONG_TOKEN)
    with pytest.raises(RequestFailed, match=r"the first 8064 already make .* tokens; max_input_len is 7"):
        bounded(tokenizer, "word " * 10_000, 1_000)
    assert len(bounded(tokenizer, LONG_TOKEN * 900, 1_000)) <= 1_000


LONG_TOKEN = "=" * 64


@pytest.fixture
def tokenizer_with_long_token(tmp_path: Path) -> Path:
    synthetic.make_tokenizer(tmp_path / "long")
    file = tmp_path / "long" / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    number = 1 + max(content["model"]["vocab"].values())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    content["added_tokens"].append({"id": number, "content": LONG_TOKEN, **flags})
    file.write_text(json.dumps(content), encoding="utf-8")
    return file.parent


def words(*given: str) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    return np.array([[word.encode() for word in given]], dtype=np.object_)


def test_words_are_bounded_too(tokenizer: TextTokenizer) -> None:
    assert word_lists(tokenizer, "stop_words", words("fox", ""), 1).shape[:2] == (1, 2)
    for given, sentence in (
        (words("x" * MEGABYTES_10), "A word of stop_words has 10000000 letters"),
        (words(*["x"] * 2049), "stop_words holds 2049 words; it may hold 2048 at most"),
    ):
        with pytest.raises(RequestFailed, match=sentence):
            word_lists(tokenizer, "stop_words", given, 1)
    with pytest.raises(RequestFailed, match="embedding_bias_words holds 5000 words"):
        embedding_bias(tokenizer, words(*["x"] * 5000), np.ones((1, 5000), dtype=np.float32), 1)
    with pytest.raises(RequestFailed, match="64 tokens at most"):
        embedding_bias(tokenizer, words("x" * MEGABYTES_10), np.ones((1, 1), dtype=np.float32), 1)
