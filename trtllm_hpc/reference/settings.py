"""What a server is told about its engine's limits at run time: parameters of the model ``tensorrt_llm``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from trtllm_hpc.errors import StartFailed

Value = TypeVar("Value", int, float)


@dataclass(frozen=True)
class ServeSettings:
    """Names, meanings and defaults of the parameters are TensorRT-LLM's."""

    max_tokens_in_paged_kv_cache: int | None = None
    """Bound of the tokens whose keys and values are kept; ``None`` leaves it to the fraction."""
    kv_cache_free_gpu_mem_fraction: float = 0.9
    """Share of the GPU memory that is free once the weights are loaded; on CPUs it has no meaning."""
    max_queue_size: int = 0
    """Requests that may wait; one more is refused. 0 sets no bound."""
    cancellation_check_period_ms: int = 100
    """Time between two looks for clients that went away."""
    stats_check_period_ms: int = 100
    """Time between two updates of the metrics."""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> ServeSettings:
        """Read the parameters of ``config.pbtxt``; an empty or missing one has its default.

        Raises:
            StartFailed: one is no number, or out of its range.
        """
        tokens = _number(parameters, "max_tokens_in_paged_kv_cache", int, 0)
        settings = cls(
            max_tokens_in_paged_kv_cache=tokens or None,
            max_queue_size=_number(parameters, "max_queue_size", int, cls.max_queue_size),
            **{
                # Without any time between two looks they would take all of a core.
                name: _number(parameters, name, int, getattr(cls, name), least=1)
                for name in ("cancellation_check_period_ms", "stats_check_period_ms")
            },
            kv_cache_free_gpu_mem_fraction=_number(
                parameters, "kv_cache_free_gpu_mem_fraction", float, cls.kv_cache_free_gpu_mem_fraction
            ),
        )
        if not 0 < settings.kv_cache_free_gpu_mem_fraction <= 1:
            raise StartFailed(
                f"kv_cache_free_gpu_mem_fraction is {settings.kv_cache_free_gpu_mem_fraction}; "
                "it must be above 0 and at most 1."
            )
        return settings


def _number(
    parameters: Mapping[str, str], name: str, kind: Callable[[str], Value], default: Value, *, least: int = 0
) -> Value:
    text = parameters.get(name, "").strip()
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError as error:
        raise StartFailed(f"The model's parameter {name} is {text!r}, which is no number.") from error
    if value < least:
        raise StartFailed(f"The model's parameter {name} is {text}; it must be {least} or more.")
    return value
