"""Models of a Triton server as their configurations describe them."""

from __future__ import annotations

from dataclasses import replace

from trtllm_hpc.wire.served_model import ServedModel

CORE = ServedModel(
    "tensorrt_llm",
    {
        **dict.fromkeys(("input_ids", "input_lengths", "request_output_len"), "TYPE_INT32"),
        "streaming": "TYPE_BOOL",
    },
)
UNBATCHED_CORE = replace(CORE, batched=False)
LLM_API = ServedModel(
    "tensorrt_llm", {"text_input": "TYPE_STRING", "sampling_param_max_tokens": "TYPE_INT32"}, batched=False
)
