"""Whom the load asks, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtllm_hpc.client.tensors import ENSEMBLE, TextModel
from trtllm_hpc.runtime.records import Endpoint


@dataclass(frozen=True)
class CoreModel:
    """A model that takes token ids, upstream's ``tensorrt_llm``."""

    batched: bool = True
    """Whether its inputs have a batch dimension."""


@dataclass(frozen=True)
class Target:
    """A served model and the way to ask it."""

    endpoint: Endpoint
    model: str
    kind: TextModel | CoreModel = ENSEMBLE
    protocol: Literal["grpc", "http"] = "grpc"
    streaming: bool = False
    """Whether the answer is asked for as it comes."""
    timeout_s: float = 60.0
    """For each request, from its send."""
    min_length_input: str | None = None
    """Input that keeps answers from ending early; it is sent as long as the answer may be. ``None``: not asked for."""

    @property
    def token_ids(self) -> bool:
        """Whether it takes token ids instead of a text."""
        return isinstance(self.kind, CoreModel)
