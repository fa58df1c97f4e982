"""Which models the reference backend can serve; asked when an engine is built."""

from __future__ import annotations

from typing import Any

from trtllm_hpc.errors import BuildFailed
from trtllm_hpc.reference import sharding


def check(model: Any, tensor_parallel: int, max_seq_len: int) -> None:
    """Refuse a model that cannot be cut for so many ranks, or would not compute what it does by itself.

    Raises:
        BuildFailed: with the reason.
    """
    from trtllm_hpc.reference import selfcheck  # it imports torch, which a wrong option need not wait for

    config = model.config.get_text_config()
    _check_heads(config, tensor_parallel)
    sharding.check(model, tensor_parallel)
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and max_seq_len > longest:
        raise BuildFailed(f"--max-seq-len {max_seq_len} exceeds the model's own limit of {longest}.")
    reason = _told_by_the_configuration(model, config, max_seq_len) or selfcheck.difference(model)
    if reason:
        raise BuildFailed(
            f"The reference backend cannot serve models of type {config.model_type} as they are: {reason}."
        )


def _check_heads(config: Any, ranks: int) -> None:
    for name in ("num_attention_heads", "num_key_value_heads"):
        value = getattr(config, name, None)
        if value is not None and value % ranks:
            raise BuildFailed(
                f"The model's {name} is {value}, which cannot be split over --tensor-parallel {ranks} ranks."
            )


def _told_by_the_configuration(model: Any, config: Any, max_seq_len: int) -> str | None:
    """Why attention over all tokens so far, in pages, would not be what this model computes."""
    if model.config.is_encoder_decoder:
        return "it has an encoder"
    if not model._supports_attention_backend:
        return "transformers lets nobody replace its attention"
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds or model._is_stateful:
        return (
            f"not all of its layers are attention over all tokens ({', '.join(sorted(kinds)) or 'a state'})"
        )
    window = getattr(config, "sliding_window", None)
    if window is not None and window < max_seq_len:
        return f"it attends to the last {window} tokens only, fewer than --max-seq-len {max_seq_len}"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "it bounds the scores of its attention"
    if any(name.endswith(".sinks") for name, _ in model.named_parameters()):
        return "its attention has sinks"
    return None
