"""What answers are held against: transformers' own float32 computation with the engine's weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtllm_hpc.reference import synthetic

from .clients import MAX_SEQ_LEN


class Oracle:
    """Knows the right answers of every world."""

    def __init__(self) -> None:
        self.model = synthetic.make_model(seed=0, dtype="float32", max_seq_len=MAX_SEQ_LEN).eval()

    def greedy(self, prompt: Sequence[int], count: int, end_id: int | None = None) -> list[int]:
        """The new tokens of a greedy answer."""
        import torch

        tokens = torch.tensor([list(prompt)])
        output = self.model.generate(
            tokens,
            # Otherwise tokens of the prompt that equal the padding token would be masked.
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=end_id,
            pad_token_id=2,
        )
        new: list[int] = output[0, len(prompt) :].tolist()
        return new

    def log_probs(self, prompt: Sequence[int], new: Sequence[int]) -> list[float]:
        """Natural logarithms of the new tokens' probabilities."""
        import torch

        with torch.no_grad():
            logits = self.model(torch.tensor([[*prompt, *new]])).logits[0][len(prompt) - 1 : -1]
        found: list[float] = logits.log_softmax(-1)[np.arange(len(new)), list(new)].tolist()
        return found
