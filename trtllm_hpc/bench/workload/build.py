"""A workload from its settings: the same settings give the same requests, to the byte."""

from __future__ import annotations

from collections.abc import Callable

from trtllm_hpc.bench.workload.dataset import dataset
from trtllm_hpc.bench.workload.prompts import prompts
from trtllm_hpc.bench.workload.synthetic import histogram, normal, shared_prefix
from trtllm_hpc.bench.workload.tokenizer import Tokenizer
from trtllm_hpc.bench.workload.trace import trace
from trtllm_hpc.bench.workload.vocabulary import Vocabulary
from trtllm_hpc.bench.workload.wanted import Built, Wanted
from trtllm_hpc.config.benchmark import Benchmark

__all__ = ["Built", "make_workload"]

_KINDS: dict[str, Callable[[Wanted], Built]] = {
    "prompts": prompts,
    "dataset": dataset,
    "normal": normal,
    "histogram": histogram,
    "shared-prefix": shared_prefix,
    "trace": trace,
}


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

    A longer workload of the same settings begins with the same requests.

    Args:
        token_ids: whether the model takes ids (``tensorrt_llm``) instead of texts.
        tokenizer: as the server cuts texts; ``None`` if there is none to be had.
        vocabulary: what ids may be drawn; ``None`` takes it from the tokenizer.
        longest_input: the engine's limit, for prompts that must not be sent.

    Raises:
        ConfigError: the workload's file or its settings make no requests; with file and line.
    """
    wanted = Wanted(settings, count, token_ids, tokenizer, vocabulary, longest_input)
    return _KINDS[settings.workload.kind](wanted)
