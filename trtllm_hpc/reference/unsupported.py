"""Inputs of upstream's models that ask for what this backend does not have.

Every one of them is declared, as in ``config.pbtxt`` of NVIDIA's tensorrtllm_backend v0.16.0, and accepted
while its value asks for nothing: upstream's clients always send some of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.inputs import Array, Row

_ENCODER = "models with an encoder"
_DRAFT = "speculative decoding"
_IMAGES = "images and videos"
_PROMPT_TUNING = "prompt tuning"

_TOKEN_INPUTS = {
    "encoder_input_features": _ENCODER,
    "encoder_output_lengths": _ENCODER,
    "cross_attention_mask": _ENCODER,
    "skip_cross_attn_blocks": _ENCODER,
    "draft_input_ids": _DRAFT,
    "draft_logits": _DRAFT,
    "prompt_embedding_table": _PROMPT_TUNING,
    "context_phase_params": "disaggregated serving",
    "return_kv_cache_reuse_stats": "statistics of a reused KV cache",
}
"""Inputs of ``tensorrt_llm``. Those that only qualify one of them ask for nothing by themselves."""

_TENSORS = frozenset({"encoder_input_features", "draft_input_ids", "draft_logits", "prompt_embedding_table"})
"""Of these zeros are content, too; of the others they say no."""

_TEXT_INPUTS = {
    "decoder_text_input": ("DECODER_QUERY", _ENCODER),
    "image_input": ("", _IMAGES),
    "image_bytes_input": ("IMAGE_BYTES", _IMAGES),
    "image_url_input": ("IMAGE_URL", _IMAGES),
    "video_bytes_input": ("VIDEO_BYTES", _IMAGES),
    "num_draft_tokens": ("", _DRAFT),
}
"""Inputs of the models that take text: the name in ``preprocessing``, if any, and what they ask for."""


def refuse_unsupported(row: Row, *, beam_width: int) -> None:
    """Refuse what one prompt's inputs of ``tensorrt_llm`` ask for in vain.

    Raises RequestFailed with the input's name.
    """
    for name, what in _TOKEN_INPUTS.items():
        array = row.array(name)
        if array is not None and (name in _TENSORS or array.any()):
            raise _refusal(name, what)
    # Upstream's preprocessing always makes one token, which a model without an encoder does not read.
    decoder = row.array("decoder_input_ids")
    if decoder is not None and decoder.size > 1:
        raise _refusal("decoder_input_ids", _ENCODER)
    decay = row.number("runtime_top_p_decay", 1.0)
    if decay != 1:
        raise _refusal("runtime_top_p_decay", "a top p that changes during a request")
    if beam_width > 1 and row.number("beam_search_diversity_rate", 0.0) != 0:
        raise _refusal("beam_search_diversity_rate", "a beam search with a diversity rate")
    if beam_width > 1 and "early_stopping" in row and not row.flag("early_stopping"):
        raise _refusal("early_stopping=false", "a beam search that goes on after enough beams have ended")


def refuse_unsupported_text(arrays: Mapping[str, Array | None]) -> None:
    """Refuse what the inputs of a model that takes text ask for in vain, by its own names or preprocessing's.

    Empty texts and zeros ask for nothing. Raises RequestFailed with the input's name.
    """
    for name, (inner, what) in _TEXT_INPUTS.items():
        for array in (arrays.get(name), arrays.get(inner)):
            if array is not None and array.any():
                raise _refusal(f"{name} ({inner})" if inner else name, what)


def _refusal(name: str, what: str) -> RequestFailed:
    return RequestFailed(f"{name} asks for {what}, which the reference backend does not have. Leave it out.")
