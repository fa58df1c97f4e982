from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtllm_hpc.bench.workload.build import make_workload
from trtllm_hpc.bench.workload.prompt_source import TextWriter
from trtllm_hpc.bench.workload.request import WorkloadSpec
from trtllm_hpc.config.benchmark import Benchmark, Workload
from trtllm_hpc.errors import ConfigError

from .helpers import VOCABULARY, LetterTokenizer, WordTokenizer, build, lengths_of

KINDS = ("normal", "shared-prefix")


@pytest.mark.parametrize("token_ids", [False, True])
def test_lengths_without_deviation_are_exact(token_ids: bool) -> None:
    built = build(20, kind="normal", input_tokens=17, output_tokens=5, token_ids=token_ids)
    assert lengths_of(built.requests) == [(17, 5)] * 20
    for request in built.requests:
        held = request.token_ids if token_ids else WordTokenizer().encode([request.prompt or ""])[0]
        assert held is not None and len(held) == 17
    assert built.notes == []


@settings(max_examples=50)
@given(
    kind=st.sampled_from(KINDS),
    token_ids=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
    tokens=st.integers(1, 60),
    stdev=st.floats(0, 50),
    prefixes=st.integers(1, 4),
)
def test_workloads_are_reproducible_within_the_vocabulary_and_longer_ones_begin_alike(
    kind: Any, token_ids: bool, seed: int, tokens: int, stdev: float, prefixes: int
) -> None:
    own: dict[str, Any] = {"prefixes": prefixes, "prefix_tokens": 20} if kind == "shared-prefix" else {}
    benchmark = Benchmark(
        seed=seed, workload=Workload(kind=kind, input_tokens=tokens, input_tokens_stdev=stdev, **own)
    )
    both = [
        make_workload(WorkloadSpec(benchmark, count, token_ids, WordTokenizer(), VOCABULARY)).requests
        for count in (4, 4, 9)
    ]
    assert both[0] == both[1] == both[2][:4]
    for request in both[2]:
        held = request.token_ids or WordTokenizer().encode([request.prompt or ""])[0]
        assert len(held) == request.input_tokens
        if token_ids:
            assert set(held) <= set(VOCABULARY.ids)


@pytest.mark.parametrize("ends", [False, True])
def test_requests_of_a_prefix_share_exactly_its_tokens(ends: bool) -> None:
    tokenizer = WordTokenizer(ends=ends)
    built = build(30, tokenizer=tokenizer, kind="shared-prefix", prefixes=3, prefix_tokens=12, input_tokens=6)
    encoded = tokenizer.encode([request.prompt or "" for request in built.requests])
    shared = 12 - ends
    assert {len(ids) for ids in encoded} == {18}
    assert [request.source for request in built.requests[:4]] == [
        "prefix 1",
        "prefix 2",
        "prefix 3",
        "prefix 1",
    ]
    groups = [{tuple(ids[:shared]) for ids in encoded[first::3]} for first in range(3)]
    assert [len(group) for group in groups] == [1, 1, 1]
    assert len(set.union(*groups)) == 3
    assert all(one[shared : shared + 3] != other[shared : shared + 3] for one, other in pairwise(encoded))
    assert built.notes == []


def test_prompts_are_cut_to_the_engines_limit_with_a_note() -> None:
    built = build(100, kind="normal", input_tokens=50, input_tokens_stdev=10.0, max_input_len=50)
    lengths = [request.input_tokens or 0 for request in built.requests]
    assert max(lengths) == 50
    cut = int(built.notes[0].rpartition(" ")[2].rstrip("."))
    assert built.notes == [f"Prompts shortened to 50 tokens: {cut}."]
    assert 0 < cut <= lengths.count(50)


def test_a_prefix_must_leave_room() -> None:
    with pytest.raises(ConfigError, match="a prefix of 50 tokens leaves no room"):
        build(1, kind="shared-prefix", prefix_tokens=50, max_input_len=50)


def test_a_text_has_at_least_one_word_and_a_note_says_so() -> None:
    built = build(5, kind="normal", input_tokens=1)
    assert lengths_of(built.requests) == [(2, 16)] * 5
    assert built.notes[0].startswith("5 prompts differ from the drawn length")


def test_texts_are_corrected_where_tokens_are_not_the_sum_of_their_words() -> None:
    class Doubling(WordTokenizer):
        """One token more for each ten words."""

        def encode(self, texts: Any) -> list[list[int]]:
            return [[*ids, *ids[1 : 1 + len(ids) // 10]] for ids in super().encode(texts)]

    built = build(5, tokenizer=Doubling(), kind="normal", input_tokens=64)
    counted = Doubling().encode([request.prompt or "" for request in built.requests])
    assert [len(ids) for ids in counted] == [64] * 5


def test_a_tokenizer_without_one_token_words_is_refused() -> None:
    class Pairs(LetterTokenizer):
        def encode(self, texts: Any) -> list[list[int]]:
            return [[*ids, *ids] for ids in super().encode(texts)]

    with pytest.raises(ConfigError, match="too few common words as one token"):
        TextWriter(Pairs())


@pytest.mark.parametrize(
    ("token_ids", "message"), [(False, "need the model's tokenizer"), (True, "vocabulary")]
)
def test_given_lengths_need_a_tokenizer_or_a_vocabulary(token_ids: bool, message: str) -> None:
    benchmark = Benchmark(workload=Workload(kind="normal"))
    with pytest.raises(ConfigError, match=message):
        make_workload(WorkloadSpec(benchmark, 1, token_ids))
