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
    """A served model and the way to ask it; :func:`trtllm_hpc.bench.targets.targets_of` makes one."""

    endpoint: Endpoint
    model: str
    kind: TextModel | CoreModel = ENSEMBLE
    protocol: Literal["grpc", "http"] = "grpc"
    streaming: bool = False
    """Whether the answer is asked for as it comes."""
    timeout_s: float = 60.0
    """For each request, from its send."""
    decoupled: bool = False
    """Whether the model may answer in several responses."""
    stream_input: str | None = None
    """Input that asks a decoupled model for its tokens as they come."""
    min_length_input: str | None = None
    """Input that keeps answers from ending early, sent with the length asked for; ``None`` sends none."""

    @property
    def token_ids(self) -> bool:
        """Whether it takes token ids instead of a text."""
        return isinstance(self.kind, CoreModel)

    @property
    def by_stream(self) -> bool:
        """Whether gRPC needs ``ModelStreamInfer``: Triton takes ``ModelInfer`` of no decoupled model."""
        return self.protocol == "grpc" and (self.streaming or self.decoupled)
