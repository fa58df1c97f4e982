"""The library ``tokenizers`` with the tiny model's tokenizer: byte-level BPE of 512 tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.bench.workload.find_tokenizer import find_tokenizer
from trtllm_hpc.bench.workload.local_tokenizer import LocalTokenizer, UnusableTokenizer
from trtllm_hpc.bench.workload.vocabulary import of_config, of_words
from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.reference.synthetic import SPECIAL_TOKENS, VOCAB_SIZE, make_tokenizer

from .making import build, prompts_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model") / "tokenizer"
    make_tokenizer(made)
    return made


@pytest.mark.parametrize("kind", ["normal", "shared-prefix"])
def test_texts_have_exactly_the_tokens_asked_for(folder: Path, kind: str) -> None:
    tokenizer = LocalTokenizer(folder)
    own: dict[str, Any] = {"prefix_tokens": 30} if kind == "shared-prefix" else {}
    for tokens in (2, 3, 17, 150):
        built = build(4, tokenizer=tokenizer, kind=kind, input_tokens=tokens, **own)
        encoded = tokenizer.encode(prompts_of(built))
        assert {len(ids) for ids in encoded} == {tokens + own.get("prefix_tokens", 0)}
        assert built.notes == []
        if own:
            assert len({tuple(ids[:30]) for ids in encoded}) == 1


def test_a_text_is_cut_as_the_server_cuts_it_with_the_token_that_begins_it(folder: Path) -> None:
    begin = SPECIAL_TOKENS.index("<s>")
    assert LocalTokenizer(folder).encode(["", "a"])[0] == [begin]
    assert LocalTokenizer(folder, special=False).encode([""]) == [[]]


def test_lengths_that_the_file_sets_for_batches_are_passed_over(folder: Path, tmp_path: Path) -> None:
    plain = json.loads((folder / "tokenizer.json").read_text())
    plain["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    text = ["The scheduler holds a queue of jobs", "x"]
    assert LocalTokenizer(tmp_path).encode(text) == LocalTokenizer(folder).encode(text)


def test_ordinary_ids_are_all_but_the_special_ones(folder: Path) -> None:
    vocabulary = LocalTokenizer(folder).vocabulary()
    assert list(vocabulary.ids) == list(range(len(SPECIAL_TOKENS), VOCAB_SIZE))
    assert vocabulary.size == VOCAB_SIZE
    assert max(LocalTokenizer(folder).vocabulary(400).ids) == 399, "the model knows fewer"


def test_a_tokenizer_that_only_encodes_tells_the_tokens_of_common_words(folder: Path) -> None:
    ids = set(of_words(LocalTokenizer(folder)).ids)
    assert len(ids) > 40 and ids <= set(range(len(SPECIAL_TOKENS), VOCAB_SIZE))


@pytest.mark.parametrize("wrapped", [False, True])
def test_config_json_tells_the_vocabulary_of_models_and_of_engines(wrapped: bool) -> None:
    plain = {"vocab_size": 8, "bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": None}
    vocabulary = of_config({"pretrained_config": plain} if wrapped else plain, "here")
    assert vocabulary is not None
    assert (list(vocabulary.ids), vocabulary.size) == ([0, 3, 4, 5, 6], 8)
    assert of_config({"vocab_size": None}, "here") is None


def test_the_first_folder_with_a_tokenizer_is_taken(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 500}')
    found = find_tokenizer(Workload(), [tmp_path / "none", tmp_path, folder.parent])
    assert found.tokenizer is not None and found.tokenizer.name == str(folder)
    assert found.vocabulary is not None and max(found.vocabulary.ids) == 499
    assert found.note is None


def test_without_any_folder_there_is_no_tokenizer_but_perhaps_a_vocabulary(tmp_path: Path) -> None:
    assert find_tokenizer(Workload()) == find_tokenizer(Workload(), [tmp_path])
    (tmp_path / "config.json").write_text('{"vocab_size": 500, "eos_token_id": 2}')
    found = find_tokenizer(Workload(), [tmp_path])
    assert found.tokenizer is None
    assert found.vocabulary is not None and len(found.vocabulary.ids) == 499


def test_a_tokenizer_that_is_named_must_be_there_and_readable(tmp_path: Path) -> None:
    asked = Workload(tokenizer=str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is no tokenizer\.json in"):
        find_tokenizer(asked)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        find_tokenizer(asked)
    with pytest.raises(UnusableTokenizer):
        LocalTokenizer(tmp_path)
