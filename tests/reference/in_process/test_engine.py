"""The engine's answers against transformers' own, alone and in company."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference import synthetic
from trtllm_hpc.reference.generation import (
    NO_END,
    Cancelled,
    GenerationRequest,
    Progress,
    QueueFull,
    Sampling,
)
from trtllm_hpc.reference.leader import Leader

from ..conftest import build_engine
from ..oracle import NEAR, generate
from .leader import Heard, ask, idle, running

pytestmark = pytest.mark.model

END = 2
MAX_SEQ_LEN = 160


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps of 64 tokens, so that long prompts are read in chunks; blocks of 16."""
    return build_engine(
        tmp_path_factory.mktemp("engine") / "e",
        *("--synthetic", "tiny-llama", "--max-seq-len", str(MAX_SEQ_LEN), "--max-input-len", "128"),
        *("--max-batch-size", "8", "--max-num-tokens", "64", "--tokens-per-block", "16"),
        *("--gather-context-logits", "--gather-generation-logits"),
    )


@pytest.fixture(scope="module")
def leader(folder: Path) -> Iterator[Leader]:
    with running(folder) as started:
        yield started


@pytest.fixture(scope="module")
def model() -> Any:
    """The same weights in transformers' hands."""
    return synthetic.make_model(seed=0, dtype="float32", max_seq_len=MAX_SEQ_LEN).eval()


def generated(model: Any, request: GenerationRequest) -> list[int]:
    end_id = None if request.end_id == NO_END else request.end_id
    return generate(model, request.prompt, request.max_new_tokens, eos_token_id=end_id)[0]


def drawn(draw: random.Random, **more: Any) -> GenerationRequest:
    prompt = tuple(draw.randrange(3, 500) for _ in range(draw.randint(1, 100)))
    return GenerationRequest(prompt, draw.randint(1, 50), end_id=END, **more)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to 1e-4 and as much of the number; on a GPU, which adds in another order, to 5e-4.

    Logits here reach 15, and transformers' own pass with a cache differs from
    that without one by 1.3e-4.
    """
    torch.testing.assert_close(found, expected, atol=NEAR, rtol=1e-4)


def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def test_alone_the_tokens_are_transformers_own(leader: Leader, model: Any) -> None:
    draw = random.Random(1)
    for request in [drawn(draw) for _ in range(8)]:
        assert ask(leader, request)[0].wait().tokens == generated(model, request)


def test_32_at_once_each_get_their_own_tokens(leader: Leader, model: Any) -> None:
    draw = random.Random(2)
    requests = [drawn(draw) for _ in range(32)]
    for request, heard in zip(requests, ask(leader, *requests), strict=True):
        assert heard.wait().tokens == generated(model, request)


def test_streaming_tells_each_token_once(leader: Leader, model: Any) -> None:
    request = drawn(random.Random(3), streaming=True)
    heard = ask(leader, request)[0].wait()
    assert heard.tokens == generated(model, request)
    assert [len(part.tokens[0]) for part in heard.parts] == [1] * len(heard.tokens)
    assert [part.is_final for part in heard.parts] == [False] * (len(heard.parts) - 1) + [True]


@pytest.mark.parametrize("streaming", [False, True])
def test_log_probs_and_logits_are_the_models(leader: Leader, model: Any, streaming: bool) -> None:
    draw = random.Random(4)
    requests = [
        drawn(
            draw,
            streaming=streaming,
            return_log_probs=True,
            return_context_logits=True,
            return_generation_logits=True,
        )
        for _ in range(8)
    ]
    for request, heard in zip(requests, ask(leader, *requests), strict=True):
        heard.wait()
        logits = logits_of(model, [*request.prompt, *heard.tokens])
        count = len(request.prompt)
        assert_close(heard.context_logits, logits[:count])
        assert_close(heard.generation_logits[0], logits[count - 1 : -1])
        chosen = torch.log_softmax(logits[count - 1 : -1], -1).gather(1, torch.tensor(heard.tokens)[:, None])
        assert heard.log_probs == pytest.approx(chosen[:, 0].tolist(), abs=NEAR)


def test_a_seed_gives_the_same_tokens_alone_and_in_company(leader: Leader) -> None:
    draw = random.Random(5)
    requests = [
        drawn(
            draw,
            sampling=Sampling(
                temperature=draw.uniform(0.5, 2), top_k=draw.choice((0, 5, 50)), top_p=0.9, seed=seed
            ),
        )
        for seed in range(24)
    ]
    together = [heard.wait().tokens for heard in ask(leader, *requests, *(drawn(draw) for _ in range(8)))]
    alone = [ask(leader, request)[0].wait().tokens for request in requests]
    assert together[:24] == alone


def test_a_short_request_does_not_wait_for_a_long_one(leader: Leader) -> None:
    long, short = ask(leader, GenerationRequest((5,) * 4, 150), GenerationRequest((6,) * 4, 2))
    assert (len(long.wait().tokens), len(short.wait().tokens)) == (150, 2)
    assert short.place < long.place


def test_a_full_kv_cache_makes_requests_wait_and_loses_none(folder: Path, model: Any) -> None:
    draw = random.Random(6)
    requests = [drawn(draw) for _ in range(12)]
    with running(folder, max_tokens_in_paged_kv_cache=160) as leader:
        heard = ask(leader, *requests)
        for request, answer in zip(requests, heard, strict=True):
            assert answer.wait().tokens == generated(model, request)
        load = leader.load()
        assert (load.blocks_max, load.tokens_per_block) == (10, 16)
        with pytest.raises(RequestFailed, match="needs 176 tokens of the KV cache, which holds 160"):
            ask(leader, GenerationRequest((5,) * 100, 70))[0].wait()


def test_a_full_queue_refuses_and_serves_the_others(folder: Path) -> None:
    with running(folder, max_queue_size=3) as leader:
        long, short = GenerationRequest((5,), 150), GenerationRequest((6,), 1)
        heard = ask(leader, *[long] * 8, *[short] * 9)
        running_ones, waiting = heard[:8], heard[8:]
        with pytest.raises(QueueFull, match="Maximum queue size of 3 has been reached"):
            for item in waiting:
                item.wait()
        assert len([item for item in waiting if item.is_done.wait(60) and item.error is None]) >= 3
        for item in running_ones:
            assert len(item.wait().tokens) == 150


def test_cancelling_frees_the_place_and_says_what_became_of_it(leader: Leader) -> None:
    request = GenerationRequest((5,) * 10, 150, streaming=True)
    kept, dropped = Heard(), Heard()

    def cancels(heard: Heard, keep: bool, outcome: Progress | RequestFailed) -> None:
        """Cancel a request at its first token."""
        heard(outcome)
        leader.cancel(id(heard), keep=keep)

    for heard, keep in ((kept, True), (dropped, False)):
        leader.submit([request], [partial(cancels, heard, keep)], [id(heard)])
    assert 0 < len(kept.wait().tokens) < 150
    with pytest.raises(Cancelled):
        dropped.wait()
    leader.cancel(id(kept), keep=True)
    assert ask(leader, GenerationRequest((5,), 1))[0].wait().tokens
    assert idle(leader).blocks_used == 0


def test_what_can_never_wait_is_told_so(folder: Path) -> None:
    with running(folder, max_queue_size=2) as leader:
        heard = [Heard() for _ in range(11)]
        leader.submit([GenerationRequest((5,), 1)] * 11, heard, range(100, 111))
        for each in heard:
            with pytest.raises(RequestFailed, match="needs 11 sequences at once"):
                each.wait()
        assert ask(leader, GenerationRequest((5,), 1))[0].wait().tokens
