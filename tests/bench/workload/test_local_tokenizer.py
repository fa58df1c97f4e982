"""The library ``tokenizers`` with the tiny model's tokenizer: byte-level BPE of 512 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.bench.workload.prompt_source import COMMON_WORDS, LocalTokenizer, find_tokenizer
from trtllm_hpc.bench.workload.request import Vocabulary
from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.config.synthetic_models import VOCAB_SIZE
from trtllm_hpc.errors import ConfigError, RequestFailed
from trtllm_hpc.reference.synthetic import SPECIAL_TOKENS, make_tokenizer

from .helpers import build, prompts_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = tmp_path_factory.mktemp("model") / "tokenizer"
    make_tokenizer(tokenizer)
    return tokenizer


@pytest.mark.parametrize("kind", ["normal", "shared-prefix"])
def test_texts_have_exactly_the_given_number_of_tokens(folder: Path, kind: str) -> None:
    tokenizer = LocalTokenizer(folder)
    own: dict[str, Any] = {"prefix_tokens": 30} if kind == "shared-prefix" else {}
    for tokens in (2, 3, 17, 150):
        built = build(4, tokenizer=tokenizer, kind=kind, input_tokens=tokens, **own)
        encoded = tokenizer.encode(prompts_of(built))
        assert {len(ids) for ids in encoded} == {tokens + own.get("prefix_tokens", 0)}
        assert built.notes == []
        if own:
            assert len({tuple(ids[:30]) for ids in encoded}) == 1


def across_words() -> Any:
    """Like Llama 2's: spaces are characters, and tokens may reach across words."""
    from tokenizers import Tokenizer, models, normalizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    corpus = ["of the", "to the and", *(f"{word} of the {word}" for word in COMMON_WORDS)]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>"]))
    return tokenizer


def test_texts_have_exact_lengths_where_tokens_may_reach_across_words(tmp_path: Path) -> None:
    across_words().save(str(tmp_path / "tokenizer.json"))
    tokenizer = LocalTokenizer(tmp_path)
    for tokens in (5, 40, 200):
        built = build(6, tokenizer=tokenizer, kind="normal", input_tokens=tokens)
        assert [len(ids) for ids in tokenizer.encode(prompts_of(built))] == [tokens] * 6
        assert len(set(prompts_of(built))) == 6
    built = build(6, tokenizer=tokenizer, kind="shared-prefix", prefix_tokens=40, input_tokens=20)
    encoded = tokenizer.encode(prompts_of(built))
    assert [len(ids) for ids in encoded] == [60] * 6
    assert len({tuple(ids[:35]) for ids in encoded}) == 1, "but for the last words: tokens may reach across"


def test_the_token_that_begins_a_text_is_added_as_by_the_server(folder: Path) -> None:
    begin = SPECIAL_TOKENS.index("<s>")
    assert LocalTokenizer(folder).encode(["", "a"])[0] == [begin]
    assert LocalTokenizer(folder, special=False).encode([""]) == [[]]


def test_the_vocabulary_has_no_special_tokens(folder: Path) -> None:
    vocabulary = LocalTokenizer(folder).vocabulary()
    assert list(vocabulary.ids) == list(range(len(SPECIAL_TOKENS), VOCAB_SIZE))
    assert vocabulary.size == VOCAB_SIZE
    assert max(LocalTokenizer(folder).vocabulary(400).ids) == 399, "the model has fewer"


def test_the_first_folder_with_a_tokenizer_is_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 500}')
    tokenizer, vocabulary = find_tokenizer(Workload(), [tmp_path / "none", tmp_path, folder.parent])
    assert tokenizer is not None and tokenizer.name == str(folder)
    assert vocabulary is not None and max(vocabulary.ids) == 499


def test_config_json_alone_gives_a_vocabulary_without_a_tokenizer(tmp_path: Path) -> None:
    assert find_tokenizer(Workload()) == find_tokenizer(Workload(), [tmp_path])
    (tmp_path / "config.json").write_text('{"pretrained_config": {"vocab_size": 500}}')
    assert find_tokenizer(Workload(), [tmp_path]) == (None, Vocabulary(range(500), 500))


def test_a_configured_tokenizer_must_be_readable(tmp_path: Path) -> None:
    workload = Workload(tokenizer=str(tmp_path))
    with pytest.raises(ConfigError, match=r"no tokenizer\.json in"):
        find_tokenizer(workload)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        find_tokenizer(workload)
    with pytest.raises(RequestFailed):
        LocalTokenizer(tmp_path)
