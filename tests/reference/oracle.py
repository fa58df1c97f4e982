"""What answers are held against: transformers' own float32 computation with the engine's weights, on the CPU.

``TRTLLM_HPC_TEST_DTYPE`` names the type in which the servers compute. In
float32, the default, tokens are equal, and numbers differ by 1e-4 at most on
CPUs, and by 5e-4 on GPUs, which add in another order: logits reach 15.

In bfloat16 a number has 8 significant bits, and each kernel, size of batch
and number of ranks rounds at other places. Tokens of a longer answer cannot be
equal then: one near-tie decided otherwise changes all that follow. So each
answer is checked token by token, after the tokens that it begins with itself
(teacher forcing): a greedy token must be the likeliest, or less likely than
that by no more than rounding explains; log-probabilities must be
those of float32 within ``BFLOAT16``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.reference import synthetic

DTYPE = os.environ.get("TRTLLM_HPC_TEST_DTYPE", "float32")
ON_GPU = Path("/dev/nvidiactl").exists()
MAX_SEQ_LEN = 2048 if ON_GPU else 512
"""Long enough for something to happen during an answer: a processor's takes more than half a second."""

LONG = MAX_SEQ_LEN - 8

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Bounds:
    """How far a server may be from float32."""

    tie: float
    """Between the logits of a greedy token and of the likeliest."""
    log_prob: float


NEAR = 5e-4 if ON_GPU else 1e-4
"""Between numbers of float32."""

FLOAT32 = Bounds(tie=0.0, log_prob=NEAR)
BFLOAT16 = Bounds(tie=0.4, log_prob=0.25)
"""A little more than bfloat16 alone explains; the logits of the model here have a standard deviation of 1.6.

transformers' own forward pass in bfloat16, on a CPU, is up to 0.30 from float32
in a logit (0.043 in the root of the mean square), 0.17 in a log-probability and
0.18 between a greedy token and the likeliest, in 16 answers of 24 tokens. The
servers were up to 0.15, 0.031, 0.07 and 0.11 from it on H200s, on one and on two.
"""


def make_model() -> Any:
    """The model of the engines that the servers load, in ``DTYPE``.

    Weights of half the size for bfloat16: as they are, they make the model
    so sensitive that rounding changes logits by a tenth of their spread.
    """
    import torch

    model = synthetic.make_model(seed=0, dtype="float32", max_seq_len=MAX_SEQ_LEN).eval()
    if DTYPE != "float32":
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data *= 0.5
    return model.to(getattr(torch, DTYPE))


def generate(model: Any, prompt: Sequence[int], count: int, **options: Any) -> list[list[int]]:
    """New tokens by transformers' own ``generate``, greedy and without an end token; a row a sequence."""
    import torch

    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 2, **options}
    tokens = torch.tensor([list(prompt)], device=model.device)
    # Otherwise tokens of the prompt that equal the padding token would be masked.
    mask = torch.ones_like(tokens)
    output = model.generate(tokens, attention_mask=mask, max_new_tokens=count, **options)
    rows: list[list[int]] = output[:, len(prompt) :].tolist()
    return rows


@dataclass
class Oracle:
    """Checks a server's answers; the numbers that it checks are those of ``model``, in float32."""

    model: Any
    bounds: Bounds = FLOAT32 if DTYPE == "float32" else BFLOAT16
    seen: dict[str, float] = field(default_factory=dict)
    """The largest deviation of each kind so far."""

    @property
    def is_exact(self) -> bool:
        """Whether tokens must be equal."""
        return self.bounds.tie == 0.0

    def logits(self, tokens: Sequence[int]) -> Array:
        """[tokens, vocabulary]"""
        import torch

        with torch.no_grad():
            found: Array = self.model(torch.tensor([tokens])).logits[0].numpy()
        return found

    def before(self, prompt: Sequence[int], new: Sequence[int]) -> Array:
        """The logits that each new token was chosen by, [new tokens, vocabulary]."""
        return self.logits([*prompt, *new])[len(prompt) - 1 : -1]

    def check_greedy(self, prompt: Sequence[int], new: Sequence[int], count: int, end_id: int | None) -> None:
        """These are the ``count`` new tokens of a greedy answer, or fewer up to the end token."""
        if self.is_exact:
            assert [list(new)] == generate(self.model, prompt, count, eos_token_id=end_id)
            return
        assert len(new) == count or (0 < len(new) < count and new[-1] == end_id)
        assert end_id not in new[:-1]
        logits = self.before(prompt, new)
        self._hold("tie", logits.max(-1) - logits[np.arange(len(new)), new])

    def certain(self, prompt: Sequence[int], new: Sequence[int]) -> list[int]:
        """The tokens of a greedy answer up to the first one that rounding may change."""
        if self.is_exact:
            return list(new)
        likeliest = np.sort(self.before(prompt, new), axis=-1)[:, -2:]
        ties = np.flatnonzero(likeliest[:, 1] - likeliest[:, 0] <= self.bounds.tie)
        return list(new)[: ties[0] if len(ties) else None]

    def check_text(
        self,
        text: str,
        tokenizer: ModelTokenizer,
        prompt: Sequence[int],
        alone: Sequence[int],
        *,
        with_prompt: bool = True,
    ) -> None:
        """This is the text of a greedy answer in company; the same alone are the tokens ``alone``."""
        certain = self.certain(prompt, alone)
        expected = tokenizer.decode([*(prompt if with_prompt else ()), *certain])
        if len(certain) == len(alone):
            assert text == expected
        else:
            # The first bytes of a letter may stand at the end.
            assert text.startswith(expected.rstrip("\ufffd"))

    def log_probs(self, prompt: Sequence[int], new: Sequence[int]) -> Array:
        """Natural logarithms of the new tokens' probabilities."""
        logits = self.before(prompt, new)
        totals = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
        found: Array = logits[np.arange(len(new)), new] - totals
        return found

    def check_log_probs(
        self, prompt: Sequence[int], new: Sequence[int], found: Array, cumulative: float
    ) -> None:
        """These are the new tokens' log-probabilities and their sum."""
        expected = self.log_probs(prompt, new)
        self._hold("log_prob", np.abs(found - expected))
        assert cumulative == pytest.approx(expected.sum().item(), abs=self.bounds.log_prob)

    def _hold(self, kind: str, deviations: Array) -> None:
        largest = float(deviations.max())
        self.seen[kind] = max(self.seen.get(kind, 0.0), largest)
        assert largest <= getattr(self.bounds, kind), f"{kind}: {largest}"
