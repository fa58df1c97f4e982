"""A workload from its settings: the same settings give the same requests, to the byte."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.bench.workload.tokenizer import Tokenizer
from trtllm_hpc.bench.workload.vocabulary import Vocabulary
from trtllm_hpc.config.benchmark import Benchmark


@dataclass(frozen=True)
class Built:
    """The requests in the order in which they are asked."""

    requests: list[Request]
    notes: list[str] = field(default_factory=list)
    """What whoever reads the figures must know, in sentences: e.g. how many prompts were left out."""


def make_workload(
    settings: Benchmark,
    count: int,
    *,
    token_ids: bool,
    tokenizer: Tokenizer | None = None,
    vocabulary: Vocabulary | None = None,
    longest_input: int | None = None,
) -> Built:
    """The first ``count`` requests of the workload; fewer of a shorter trace, which never begins again.

    Args:
        token_ids: whether the model takes ids (``tensorrt_llm``) instead of texts.
        tokenizer: as the server cuts texts; ``None`` if there is none to be had.
        vocabulary: what ids may be drawn; ``None`` takes it from the tokenizer.
        longest_input: the engine's limit, for prompts that must not be sent.

    Raises:
        ConfigError: the workload's file or its settings make no requests; with file and line.
    """
    raise NotImplementedError
