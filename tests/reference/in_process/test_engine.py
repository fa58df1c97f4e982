"""The engine's answers against transformers' own where prompts are read in parts.

What a client of a server sees of the same is in ``test_contract``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference import synthetic
from trtllm_hpc.reference.generation import (
    NO_END,
    GenerationRequest,
)
from trtllm_hpc.reference.leader import Leader

from ..conftest import build_engine
from ..oracle import NEAR, generate
from .leader import Heard, ask, running

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


def test_32_at_once_each_get_their_own_tokens(leader: Leader, model: Any) -> None:
    draw = random.Random(2)
    requests = [drawn(draw) for _ in range(32)]
    for request, heard in zip(requests, ask(leader, *requests), strict=True):
        assert heard.wait().tokens == generated(model, request)


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


def test_what_can_never_wait_is_told_so(folder: Path) -> None:
    with running(folder, max_queue_size=2) as leader:
        heard = [Heard() for _ in range(11)]
        leader.submit([GenerationRequest((5,), 1)] * 11, heard, range(100, 111))
        for each in heard:
            with pytest.raises(RequestFailed, match="needs 11 sequences at once"):
                each.wait()
        assert ask(leader, GenerationRequest((5,), 1))[0].wait().tokens
