"""Shared by the two contenders that use transformers alone."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.reference.workload import Setup


def load_model(setup: Setup, attention: str) -> Any:
    """Load the model with transformers, with the number of threads the engine would use."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(
        setup.source, dtype=setup.dtype, attn_implementation=attention, local_files_only=True
    )
    # A model's own defaults may sample, or end early.
    model.generation_config = GenerationConfig()
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
