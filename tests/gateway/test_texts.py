"""Answers as text, piece by piece: letters stay whole, and end before the texts to stop at."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models

from trtllm_hpc.config.synthetic_models import VOCAB_SIZE
from trtllm_hpc.gateway.tokenizer import ModelTokenizer, TextStream
from trtllm_hpc.reference.synthetic import make_tokenizer

TEXTS = ["Où est passé l'été? 你好 🎉!", "two  spaces\nand lines\n\n", "e\u0301 is not é", ""]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    folder = tmp_path_factory.mktemp("model") / "byte-level"
    make_tokenizer(folder)
    return ModelTokenizer(folder)


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    """One like Llama 2's: words begin with a mark for their space, and other letters are bytes."""
    folder = tmp_path_factory.mktemp("byte-fallback")
    words = ["▁", "▁Où", "▁est", "▁pass", "▁two", "▁is", "e", "l", "t", "a", "!", "?", "'", "n", "d", "s"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    model = models.BPE(
        {each: at for at, each in enumerate(tokens)}, [], byte_fallback=True, unk_token="<unk>"
    )
    made = Tokenizer(model)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.save(str(folder / "tokenizer.json"))
    return ModelTokenizer(folder)


def pieces(tokenizer: ModelTokenizer, ids: list[int], *stops: str) -> list[str]:
    stream = TextStream(tokenizer, stops, skip_special_tokens=True)
    found = []
    for each in ids:
        found.append(stream.add([each]))
        if stream.is_stopped:
            return found
    return [*found, stream.end()]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_whole_letters_and_join_to_the_text(
    request: pytest.FixtureRequest, name: str, text: str
) -> None:
    tokenizer: ModelTokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = pieces(tokenizer, ids)
    assert "".join(found) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in found)
    assert sum(map(bool, found)) > len(ids) / 5 or not text


def test_bytes_that_are_no_letters_do_not_stop_the_text(
    byte_level: ModelTokenizer, byte_fallback: ModelTokenizer
) -> None:
    drawn = random.Random(7)
    for _ in range(50):
        ids = [drawn.randrange(3, VOCAB_SIZE) for _ in range(40)]
        assert "".join(pieces(byte_level, ids)) == byte_level.decode(ids)
    word = byte_fallback.encode("Où", add_special_tokens=False)
    assert "".join(pieces(byte_fallback, [3 + 0xE4, 3 + 0xBD, *word, 3 + 0xFF])).startswith("\ufffd\ufffd")
    assert "".join(pieces(byte_fallback, [3 + 0xE4, *word, *word, 3 + 0xE4])).endswith("\ufffd")


def test_the_text_ends_before_the_first_text_to_stop_at(byte_level: ModelTokenizer) -> None:
    text = "The quick brown fox jumps over the lazy dog."
    ids = byte_level.encode(text, add_special_tokens=False)
    for stops, end in (
        (("wn fo",), "The quick bro"),
        (("zzz", "jum"), "The quick brown fox "),
        (("fox jumps", "own"), "The quick br"),
        (("T",), ""),
        (("never",), text),
        (("dog..",), text),
        (("dog.",), "The quick brown fox jumps over the lazy "),
    ):
        assert "".join(pieces(byte_level, ids, *stops)) == end
        whole = TextStream(byte_level, stops, skip_special_tokens=True)
        assert whole.add(ids) + whole.end() == end


def test_text_that_cannot_become_one_to_stop_at_is_told_at_once(byte_level: ModelTokenizer) -> None:
    stream = TextStream(byte_level, ["ab"], skip_special_tokens=True)
    told = [stream.add(byte_level.encode(letter, add_special_tokens=False)) for letter in "aaac"]
    assert told == ["", "a", "a", "ac"]
