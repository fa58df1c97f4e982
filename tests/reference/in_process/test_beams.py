from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from trtllm_hpc.config.synthetic_models import VOCAB_SIZE
from trtllm_hpc.reference.beams import BeamSearch, arguments
from trtllm_hpc.reference.executor import Outcome, prepare
from trtllm_hpc.reference.generation import GenerationRequest, Progress, Sampling
from trtllm_hpc.reference.requests import MOST_LENGTH_PENALTY
from trtllm_hpc.reference.scheduler import Chunk, Decode, Step

from ..oracle import NEAR, generate
from .bench import DEVICE, Bench, new_bench, random_model

pytestmark = pytest.mark.model

PROMPT = (1, 40, 99, 7, 203, 12, 12, 430, 8, 77, 4)
SHORT = (1, 300)


@pytest.fixture(scope="module")
def plain() -> Any:
    """The model as transformers makes it: the oracle."""
    return random_model()


@pytest.fixture(scope="module")
def paged() -> Any:
    """The same weights with our attention."""
    model = random_model()
    prepare(model)
    return model


@pytest.fixture
def bench(paged: Any) -> Bench:
    return new_bench(paged)


def beam_request(prompt: tuple[int, ...] = PROMPT, **changes: Any) -> GenerationRequest:
    return replace(GenerationRequest(prompt, 12, beam_width=3, length_penalty=0.0), **changes)


def expected(model: Any, request: GenerationRequest) -> tuple[list[list[int]], list[list[float]]]:
    """Tokens and raw log-probabilities by transformers alone: its cache, its logits, its beam indices."""
    told = arguments(request)
    told["generation_config"].output_logits = True
    prompt = torch.tensor([request.prompt], device=DEVICE)
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), **told)
    tokens, log_probs = [], []
    for sequence, parents in zip(found.sequences[:, len(request.prompt) :], found.beam_indices, strict=True):
        length = int((parents >= 0).sum())
        tokens.append(sequence[:length].tolist())
        log_probs.append(
            [float(found.logits[at][parents[at]].log_softmax(-1)[sequence[at]]) for at in range(length)]
        )
    return tokens, log_probs


def assert_equal(result: Progress, wanted: tuple[list[list[int]], list[list[float]]]) -> None:
    tokens, log_probs = wanted
    assert [list(beam) for beam in result.tokens] == tokens
    for beam, numbers in zip(result.log_probs, log_probs, strict=True):
        assert beam == pytest.approx(numbers, abs=1e-4)


def common_token(model: Any) -> int:
    """A token in the middle of what the search finds, to end it there."""
    (best, *_), _ = expected(model, beam_request())
    return best[5]


BIAS = np.zeros(VOCAB_SIZE, dtype=np.float32)
BIAS[100:400] = 3.0

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "wide": {"beam_width": 7},
    "one-token-prompt": {"prompt": (5,)},
    "one-new-token": {"max_new_tokens": 1},
    "long": {"max_new_tokens": 40},
    "repetition": {"sampling": Sampling(repetition_penalty=1.4)},
    "presence": {"sampling": Sampling(presence_penalty=1.5)},
    "frequency": {"sampling": Sampling(frequency_penalty=0.7)},
    "bias": {"embedding_bias": BIAS},
    "largest-length-penalty": {"length_penalty": MOST_LENGTH_PENALTY, "max_new_tokens": 40},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_search_finds_what_generate_finds(bench: Bench, plain: Any, name: str) -> None:
    request = beam_request(**VARIANTS[name])
    assert_equal(bench.search(request), expected(plain, request))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("min_new_tokens", [0, 8])
def test_beams_end_with_the_end_token(
    bench: Bench, plain: Any, length_penalty: float, min_new_tokens: int
) -> None:
    end = common_token(plain)
    request = beam_request(
        end_id=end,
        pad_id=end,
        length_penalty=length_penalty,
        sampling=Sampling(min_new_tokens=min_new_tokens),
        max_new_tokens=20,
    )
    result = bench.search(request)
    assert_equal(result, expected(plain, request))
    assert all(len(beam) >= min_new_tokens for beam in result.tokens)


def test_the_end_token_is_part_of_the_beam_and_the_last_of_it(bench: Bench, plain: Any) -> None:
    end = common_token(plain)
    result = bench.search(beam_request(end_id=end))
    ended = [beam for beam in result.tokens if end in beam]
    assert ended
    assert all(beam.index(end) == len(beam) - 1 for beam in ended)


def test_a_stop_word_of_several_tokens_ends_a_beam(bench: Bench, plain: Any) -> None:
    (best, *_), _ = expected(plain, beam_request())
    word = tuple(best[4:6])
    request = beam_request(stop_words=((9, 9, 9), word))
    result = bench.search(request)
    assert_equal(result, expected(plain, request))
    assert any(beam[-2:] == word and len(beam) < 12 for beam in result.tokens)


def test_bad_words_are_not_generated(bench: Bench, plain: Any) -> None:
    (best, *_), _ = expected(plain, beam_request())
    request = beam_request(bad_words=((best[0],), (best[2], best[3])))
    result = bench.search(request)
    assert_equal(result, expected(plain, request))
    assert all(best[0] not in beam for beam in result.tokens)


def test_the_end_token_as_a_bad_word_is_not_generated(bench: Bench, plain: Any) -> None:
    end = common_token(plain)
    result = bench.search(beam_request(end_id=end, bad_words=((end,),)))
    assert all(end not in beam and len(beam) == 12 for beam in result.tokens)


def test_the_embedding_bias_can_forbid_tokens(bench: Bench, plain: Any) -> None:
    bias = np.full(VOCAB_SIZE, -np.inf, dtype=np.float32)
    bias[300:320] = 0.0
    result = bench.search(beam_request(embedding_bias=bias))
    assert all(300 <= token < 320 for beam in result.tokens for token in beam)
    assert all(len(beam) == 12 for beam in result.tokens)


def test_progress_holds_beams_best_first(bench: Bench) -> None:
    progress = bench.search(beam_request())
    assert progress.is_final
    assert len(progress.tokens) == 3
    sums = [sum(numbers) for numbers in progress.log_probs]
    assert sums == sorted(sums, reverse=True)
    assert progress.context_logits is None
    assert progress.generation_logits is None


def test_logits_are_the_models_own(bench: Bench, plain: Any) -> None:
    end = common_token(plain)
    request = beam_request(end_id=end, return_context_logits=True, return_generation_logits=True)
    progress = bench.search(request)
    assert progress.context_logits is not None
    assert progress.generation_logits is not None
    assert progress.generation_logits.shape[:2] == (3, max(map(len, progress.tokens)))
    for beam, logits in zip(progress.tokens, progress.generation_logits, strict=True):
        whole = plain(torch.tensor([[*PROMPT, *beam]], device=DEVICE)).logits[0].detach().cpu()
        np.testing.assert_allclose(progress.context_logits, whole[: len(PROMPT)].numpy(), atol=NEAR, rtol=0)
        answer = whole[len(PROMPT) - 1 : -1].numpy()
        np.testing.assert_allclose(logits[: len(beam)], answer, atol=NEAR, rtol=0)
        assert not logits[len(beam) :].any()


def test_searches_and_the_batch_take_turns_without_touching_each_other(bench: Bench, plain: Any) -> None:
    requests = {0: beam_request(), 1: beam_request(SHORT, beam_width=4), 2: beam_request(max_new_tokens=5)}
    greedy = GenerationRequest(PROMPT[:7], 12)
    admitted = [bench.admission(slot, request) for slot, request in requests.items()]
    batch = bench.admission(3, greedy)
    first, *others = admitted
    outcome = bench.executor.run(Step(admitted=(first, batch), chunks=(Chunk(3, 0, 7),), beams=(0,)))
    answer, found = [_greedy_token(outcome)], dict(outcome.beams)
    outcome = bench.executor.run(Step(admitted=tuple(others)))
    while len(answer) < 12:
        decode = Decode(3, answer[-1], 6 + len(answer))
        left = tuple(slot for slot in requests if slot not in found)
        outcome = bench.executor.run(Step(decodes=(decode,), beams=left))
        answer.append(_greedy_token(outcome))
        found |= outcome.beams
    found |= bench.finish([slot for slot in requests if slot not in found])
    for slot, request in requests.items():
        assert_equal(found[slot], expected(plain, request))
    assert [answer] == generate(plain, greedy.prompt, 12)


def _greedy_token(outcome: Outcome) -> int:
    assert outcome.logits is not None
    return int(outcome.logits[0].argmax())


def test_a_search_takes_one_step_a_token(bench: Bench) -> None:
    bench.executor.run(Step(admitted=(bench.admission(0, beam_request(max_new_tokens=4)),)))
    ended = [bool(bench.executor.run(Step(beams=(0,))).beams) for _ in range(4)]
    assert ended == [False, False, False, True]


def test_a_released_search_leaves_nothing_and_its_slot_serves_again(bench: Bench, plain: Any) -> None:
    bench.executor.run(Step(admitted=(bench.admission(0, beam_request()),), beams=(0,)))
    assert _live_searches() == 1
    bench.executor.run(Step(released=(0,)))
    assert _live_searches() == 0
    request = beam_request(SHORT)
    bench.executor.run(Step(admitted=(bench.admission(0, request),)))
    assert_equal(bench.finish([0])[0], expected(plain, request))


def _live_searches() -> int:
    gc.collect()
    return sum(type(thing) is BeamSearch for thing in gc.get_objects())


def test_a_search_released_before_its_first_step_is_forgotten(bench: Bench) -> None:
    bench.executor.run(Step(admitted=(bench.admission(0, beam_request()),)))
    bench.executor.run(Step(released=(0,)))
    with pytest.raises(KeyError):
        bench.executor.run(Step(beams=(0,)))
