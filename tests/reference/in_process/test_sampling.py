from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from trtllm_hpc.reference.generation import NO_END, GenerationRequest, Sampling
from trtllm_hpc.reference.sampling import Sampler, to_host
from trtllm_hpc.reference.stop_words import WordTable

pytestmark = pytest.mark.model

VOCAB = 211
END = 7
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        yield


def request(**changes: Any) -> GenerationRequest:
    """A greedy request with an endless answer; sampling's fields are told apart by their names."""
    sampling = {name: changes.pop(name) for name in list(changes) if name in Sampling.__dataclass_fields__}
    defaults: dict[str, Any] = {"prompt": (1, 2, 3), "max_new_tokens": 1000}
    return GenerationRequest(**(defaults | changes), sampling=Sampling(**sampling))


def sampler_of(requests: Sequence[GenerationRequest], vocab: int = VOCAB) -> Sampler:
    sampler = Sampler(slots=len(requests), vocab_size=vocab, device=CPU)
    for slot, admitted in enumerate(requests):
        sampler.admit(slot, admitted)
    return sampler


class Chosen(NamedTuple):
    tokens: list[int]
    finished: list[bool]
    log_probs: list[float]


def step(sampler: Sampler, logits: torch.Tensor, slots: Sequence[int] | None = None) -> Chosen:
    chosen = list(range(len(logits))) if slots is None else list(slots)
    return Chosen(*to_host(sampler.sample(logits, torch.tensor(chosen), chosen)))


def answer(sampled: GenerationRequest, rows: torch.Tensor) -> list[int]:
    """The tokens that one request gets from each row of logits in turn."""
    sampler = sampler_of([sampled], rows.shape[1])
    return [step(sampler, row[None]).tokens[0] for row in rows]


def answer_by(process: Any, prompt: Sequence[int], rows: torch.Tensor) -> list[int]:
    """The same by transformers' processor of the scores of the next token."""
    sequence = list(prompt)
    for row in rows:
        sequence.append(int(process(torch.tensor([sequence]), row[None].clone()).argmax()))
    return sequence[len(prompt) :]


def draws(sampled: GenerationRequest, row: torch.Tensor, tokens: int) -> Counter[int]:
    """How often each token comes about under 100 seeds that draw ``tokens`` each."""
    sampler = sampler_of(
        [replace(sampled, sampling=replace(sampled.sampling, seed=seed)) for seed in range(100)], len(row)
    )
    return Counter(token for _ in range(tokens) for token in step(sampler, row.expand(100, -1)).tokens)


def support(sampled: GenerationRequest, row: torch.Tensor) -> set[int]:
    """The tokens that can come about."""
    return set(draws(sampled, row, 30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_takes_the_largest_logit_and_leaves_the_logits_alone(dtype: torch.dtype) -> None:
    logits = torch.randn(5, VOCAB).to(dtype)
    before = logits.clone()

    chosen = step(sampler_of([request()] * 5), logits)

    assert chosen.tokens == before.argmax(dim=1).tolist()
    assert chosen.log_probs == [0.0] * 5
    assert torch.equal(logits, before)


def test_rules_that_change_scores_leave_the_logits_alone() -> None:
    logits = torch.randn(1, VOCAB)
    before = logits.clone()
    asks = request(
        temperature=0.5, top_k=0, repetition_penalty=2.0, bad_words=((5,),), min_new_tokens=2, end_id=END
    )

    step(sampler_of([asks]), logits)

    assert torch.equal(logits, before)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 5.0])
def test_repetition_penalty_is_the_one_of_transformers(penalty: float) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    rows = torch.randn(40, 20)
    expected = answer_by(RepetitionPenaltyLogitsProcessor(penalty), (1, 2, 3), rows)

    assert answer(request(repetition_penalty=penalty), rows) == expected


def test_presence_and_frequency_count_prompt_and_answer_after_the_temperature() -> None:
    rows = torch.randn(60, 20)
    presence, frequency, temperature = 0.4, 0.25, 0.7

    def penalised(sequence: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(sequence[0], minlength=20)
        return scores / temperature - presence * (counts > 0) - frequency * counts

    expected = answer_by(penalised, (1, 2, 2, 3), rows)
    asks = request(
        prompt=(1, 2, 2, 3), presence_penalty=presence, frequency_penalty=frequency, temperature=temperature
    )

    assert answer(asks, rows) == expected
    assert answer(replace(asks, sampling=Sampling()), rows) != expected


def test_embedding_bias_is_added_to_the_logits_of_its_own_request_only() -> None:
    bias = np.zeros(VOCAB, dtype=np.float32)
    bias[11] = 100
    logits = torch.randn(2, VOCAB)
    sampler = sampler_of([request(embedding_bias=bias), request()])

    tokens = step(sampler, logits).tokens
    sampler.release(0)
    sampler.admit(0, request())

    assert tokens == [11, int(logits[1].argmax())]
    # The other slot's bias is in the same step as the one that was left.
    sampler.admit(1, request(embedding_bias=bias))
    assert step(sampler, logits).tokens == [int(logits[0].argmax()), 11]


def test_bad_words_are_those_of_transformers() -> None:
    from transformers import NoBadWordsLogitsProcessor

    vocab = 6
    words = ((0,), (3, 4), (2, 3), (4, 4, 5), (1, 4, 4, 1))
    rows = torch.randn(200, vocab)
    expected = answer_by(NoBadWordsLogitsProcessor([list(word) for word in words]), (1, 2, 3), rows)

    # The first word's end is banned at once, as it begins in the prompt.
    assert answer(request(bad_words=words), rows) == expected
    assert answer(request(), rows) != expected


def test_a_slot_forgets_the_bad_words_of_the_request_before() -> None:
    logits = torch.randn(2, VOCAB)
    best = logits.argmax(dim=1).tolist()
    sampler = sampler_of([request(bad_words=((best[0],),)), request(bad_words=((best[1],),))])
    assert best[0] != step(sampler, logits).tokens[0]

    sampler.release(0)
    sampler.admit(0, request())

    assert step(sampler, logits).tokens[0] == best[0]
    assert step(sampler, logits).tokens[1] != best[1]


def test_a_slot_forgets_the_tokens_of_the_request_before() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = 1
    sampler = sampler_of([request(prompt=(5,), presence_penalty=2.0)])
    assert step(sampler, logits).tokens != [5]

    sampler.release(0)
    sampler.admit(0, request(prompt=(6,), presence_penalty=2.0))

    assert step(sampler, logits).tokens == [5]


@pytest.mark.parametrize("least", [0, 1, 4])
def test_the_end_token_is_not_chosen_before_the_minimum_length(least: int) -> None:
    from transformers import MinNewTokensLengthLogitsProcessor

    rows = torch.randn(8, VOCAB)
    rows[:, END] = 10
    process = MinNewTokensLengthLogitsProcessor(3, least, END, device="cpu")
    expected = answer_by(process, (1, 2, 3), rows)

    assert answer(request(min_new_tokens=least, end_id=END), rows) == expected
    assert expected[least] == END
    assert answer(request(min_new_tokens=least, end_id=NO_END), rows) == [END] * 8


@pytest.mark.parametrize(
    "settings",
    [
        *({"top_k": top_k} for top_k in (2, 7, 5000)),
        *({"top_k": 0, "top_p": top_p} for top_p in (0.01, 0.3, 0.8)),
        *({"temperature": temperature, "top_k": 10, "top_p": 0.7} for temperature in (0.3, 2.0)),
    ],
)
def test_tokens_are_drawn_from_those_that_transformers_keeps(settings: dict[str, Any]) -> None:
    """Temperature first, then top k, then top p."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    row = torch.randn(30)
    ids, scores = torch.zeros(1, 0, dtype=torch.long), row[None]
    warpers: list[Any] = [
        TemperatureLogitsWarper(settings.get("temperature", 1.0)),
        TopKLogitsWarper(settings["top_k"] or len(row)),
        TopPLogitsWarper(settings.get("top_p", 1.0)),
    ]
    for warper in warpers:
        scores = warper(ids, scores)

    kept = scores[0].isfinite().nonzero().flatten().tolist()
    assert support(request(**settings), row) == set(kept)


def test_a_temperature_of_zero_is_greedy() -> None:
    row = torch.randn(VOCAB)

    assert support(request(temperature=0.0, top_k=0), row) == {int(row.argmax())}


@pytest.mark.long
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (0, 0.6), (5, 1.0), (5, 0.6)], ids=["all", "top_p", "top_k", "both"]
)
def test_tokens_come_as_often_as_their_probability_says(top_k: int, top_p: float) -> None:
    row = torch.randn(12)
    order = row.argsort(descending=True)
    shares = row.double().softmax(0)[order][: top_k or None]
    # The running sum is cut at top_p of what top_k leaves.
    ends = (shares / shares.sum()).cumsum(0).clamp(max=top_p) / top_p
    expected = 20_000 * torch.diff(ends, prepend=torch.zeros(1))
    likely = expected > 1e-6

    counted = draws(request(top_k=top_k, top_p=top_p), row, 200)

    seen = torch.tensor([counted[token] for token in order.tolist()])[: len(expected)][likely]
    assert int(seen.sum()) == 20_000
    chi_square = ((seen - expected[likely]) ** 2 / expected[likely]).sum()
    # 11 degrees of freedom exceed this once in 10,000 times.
    assert float(chi_square) < 37


def test_equal_logits_are_taken_in_the_order_of_the_vocabulary() -> None:
    row = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0, 0.5])

    assert support(request(top_k=2), row) == {1, 2}
    assert support(request(top_k=3, top_p=0.5), row) == {1, 2}
    assert support(request(top_k=0, top_p=0.4), row) == {1, 2}


def test_one_request_gets_independent_numbers_from_one_seed() -> None:
    tokens = answer(request(top_k=0, seed=3), torch.zeros(2001, 2))

    pairs = Counter(pairwise(tokens))
    assert len(pairs) == 4
    assert all(400 < count < 600 for count in pairs.values())


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_a_seed_has_64_bits(seed: int) -> None:
    rows = torch.randn(20, VOCAB)
    tokens = answer(request(top_k=0, seed=seed), rows)

    assert tokens == answer(request(top_k=0, seed=seed), rows)
    for bit in (0, 31, 32, 63):
        assert tokens != answer(request(top_k=0, seed=seed ^ (1 << bit)), rows)


def crowd() -> list[GenerationRequest]:
    """32 requests that together ask for everything."""
    bias = torch.randn(VOCAB).numpy()
    kinds: list[dict[str, Any]] = [
        {},
        {"top_k": 0, "top_p": 0.9},
        {"top_k": 40, "top_p": 0.95, "temperature": 0.8, "return_log_probs": True},
        {"top_k": 3, "repetition_penalty": 1.2, "bad_words": ((4,), (5, 6)), "stop_words": ((9, 9),)},
        {"presence_penalty": 0.5, "frequency_penalty": 0.2, "temperature": 1.5},
        {"embedding_bias": bias, "top_k": 0},
        {"min_new_tokens": 4, "end_id": END, "top_k": 100},
        {"bad_words": ((1,), (2, 3), (1, 2, 3, 4, 5)), "top_k": 0, "temperature": 3.0},
    ]
    return [
        request(**kinds[number % len(kinds)], seed=number, prompt=tuple(range(number + 1)))
        for number in range(32)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_request_gets_the_same_tokens_alone_and_among_31_others(dtype: torch.dtype) -> None:
    requests = crowd()
    # bfloat16 makes many logits equal.
    rows = (2 * torch.randn(12, 32, VOCAB)).to(dtype)
    together = sampler_of(requests)
    order = torch.randperm(32).tolist()
    steps = [step(together, logits[order], order).tokens for logits in rows]

    for slot, alone in enumerate(requests):
        assert [tokens[order.index(slot)] for tokens in steps] == answer(alone, rows[:, slot])


def test_a_request_may_join_and_leave_while_others_go_on() -> None:
    first, second, third = request(top_k=0, seed=1), request(top_k=9, seed=2), request(top_k=0, seed=3)
    rows = torch.randn(6, VOCAB)
    sampler = Sampler(slots=2, vocab_size=VOCAB, device=CPU)
    tokens: dict[str, list[int]] = {"first": [], "second": [], "third": []}
    sampler.admit(0, first)
    tokens["first"] += step(sampler, rows[:1], [0]).tokens
    sampler.admit(1, second)
    for row in rows[1:3]:
        later, earlier = step(sampler, torch.stack((rows[0], row)), [1, 0]).tokens
        tokens["first"].append(earlier)
        tokens["second"].append(later)
    sampler.release(0)
    sampler.admit(0, third)
    for row in rows[:3]:
        tokens["third"].append(step(sampler, row[None], [0]).tokens[0])

    assert tokens["first"] == answer(first, rows[:3])
    assert tokens["second"] == answer(second, rows[:1].expand(2, -1))
    assert tokens["third"] == answer(third, rows[:3])


def finishing(sampled: GenerationRequest, tokens: Sequence[int]) -> list[bool]:
    """Whether the request is finished after each of these tokens, which its logits dictate."""
    sampler = sampler_of([sampled])
    logits = torch.nn.functional.one_hot(torch.tensor(tokens), VOCAB).float()
    return [step(sampler, row[None]).finished[0] for row in logits]


def test_an_answer_is_finished_by_the_end_token_or_its_length() -> None:
    assert finishing(request(end_id=END), [1, 2, END]) == [False, False, True]
    assert finishing(request(), [1, 2, END]) == [False] * 3
    assert finishing(request(min_new_tokens=2), [1, 2]) == [False] * 2
    assert finishing(request(max_new_tokens=2), [1, 2]) == [False, True]


def test_an_answer_is_finished_by_a_stop_word_of_any_length() -> None:
    words = ((50, 51, 52), (9,), (60, 61))

    assert finishing(request(stop_words=words), [50, 51, 52]) == [False, False, True]
    assert finishing(request(stop_words=words), [50, 50, 51, 53, 60, 9]) == [False] * 5 + [True]
    # Neither in pieces nor backwards.
    assert finishing(request(stop_words=words), [60, 4, 61, 60, 51, 52]) == [False] * 6
    # It may begin in the prompt, but not end there.
    assert finishing(request(prompt=(1, 50, 51), stop_words=words), [52]) == [True]
    assert finishing(request(prompt=(60, 61), stop_words=words), [4]) == [False]


def test_a_longer_word_of_a_later_request_leaves_the_earlier_ones_words_intact() -> None:
    logits = torch.nn.functional.one_hot(torch.tensor([50, 51]), VOCAB).float()
    sampler = Sampler(slots=2, vocab_size=VOCAB, device=CPU)
    sampler.admit(0, request(stop_words=((50, 51),), bad_words=((50, 9),)))
    assert not step(sampler, logits[:1], [0]).finished[0]

    sampler.admit(1, request(stop_words=tuple((number,) * 20 for number in range(9)), bad_words=((4,) * 30,)))

    assert step(sampler, logits[[1, 0]], [0, 1]).finished == [True, False]


def test_long_lists_of_words_take_memory_only_while_their_request_runs() -> None:
    table = WordTable(4, CPU)
    table.put(1, ((5,), (6, 7)))
    table.put(2, tuple((number,) * 30 for number in range(100)))
    table.clear(2)
    tails = torch.tensor([[0] * 30 + [6, 7]] * 2)
    assert table.complete(torch.tensor([1, 2]), tails).tolist() == [True, False]
    table.clear(1)
    assert table.length == 1
    table.put(3, ((8, 9),))
    assert table.complete(torch.tensor([1, 3]), torch.tensor([[6, 7], [8, 9]])).tolist() == [False, True]


def test_log_probs_are_those_of_the_raw_logits() -> None:
    logits = torch.randn(2, VOCAB)
    sampler = sampler_of(
        [
            request(return_log_probs=True, top_k=0, temperature=0.1, bad_words=((1,),)),
            request(return_log_probs=True),
        ]
    )

    chosen = step(sampler, logits)

    expected = torch.log_softmax(logits, dim=1)[range(2), chosen.tokens]
    assert torch.allclose(torch.tensor(chosen.log_probs), expected, atol=1e-5)


def test_logits_that_are_no_numbers_give_some_token_of_the_vocabulary() -> None:
    logits = torch.full((3, VOCAB), torch.nan)
    sampler = sampler_of([request(), request(top_k=0), request(top_k=5)])

    assert all(0 <= token < VOCAB for token in step(sampler, logits).tokens)


def test_a_step_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = sampler_of(crowd())
    logits, slots = torch.randn(32, VOCAB), torch.arange(32)

    def waits(*args: Any, **options: Any) -> Any:
        raise AssertionError("This would wait for the device.")

    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__"):
            patch.setattr(torch.Tensor, name, waits)
        sampler.release(31)
        sampler.admit(31, request(bad_words=((1, 2),), repetition_penalty=2.0))
        sampled = sampler.sample(logits, slots, list(range(32)))
    assert len(to_host(sampled)[0]) == 32
