"""Tokenizers that are easy to count with, and shortcuts to build and read workloads."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtllm_hpc.bench.workload.build import make_workload
from trtllm_hpc.bench.workload.request import (
    BuiltWorkload,
    TextEncoder,
    Vocabulary,
    WorkloadRequest,
    WorkloadSpec,
)
from trtllm_hpc.config.benchmark import Benchmark, Workload

BEGIN, END = 1, 2
VOCABULARY = Vocabulary(range(3, 1000), 1000)


class WordTokenizer:
    """One token a word, after one that begins the text; optionally one that ends it."""

    name = "words"

    def __init__(self, *, ends: bool = False) -> None:
        self._end = [END] if ends else []

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[BEGIN, *map(word_id, text.split()), *self._end] for text in texts]


class LetterTokenizer:
    """One token a letter, spaces included, and no special tokens."""

    name = "letters"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]


def word_id(word: str) -> int:
    return 10 + zlib.crc32(word.encode()) % 100_000


def build(
    count: int,
    *,
    token_ids: bool = False,
    tokenizer: TextEncoder | None = None,
    vocabulary: Vocabulary | None = None,
    max_input_len: int | None = None,
    takes_messages: bool = False,
    settings: dict[str, Any] | None = None,
    **workload: Any,
) -> BuiltWorkload:
    """Build a workload, by default with ``WordTokenizer`` and ``VOCABULARY``."""
    if isinstance(workload.get("path"), Path):
        workload["path"] = str(workload["path"])
    benchmark = Benchmark(workload=Workload(**workload), **(settings or {}))
    tokens = tokenizer or WordTokenizer(), vocabulary or VOCABULARY
    return make_workload(
        WorkloadSpec(benchmark, count, token_ids, *tokens, max_input_len, takes_messages=takes_messages)
    )


def prompts_of(built: BuiltWorkload) -> list[str]:
    return [request.prompt or "" for request in built.requests]


def lengths_of(requests: Sequence[WorkloadRequest]) -> list[tuple[int | None, int]]:
    return [(request.input_tokens, request.max_tokens) for request in requests]


def read_workload(path: Path) -> list[WorkloadRequest]:
    """Read what ``write_workload`` wrote."""
    with path.open(encoding="utf-8") as lines:
        return [_request(json.loads(line)) for line in lines]


def _request(plain: dict[str, Any]) -> WorkloadRequest:
    if plain.get("token_ids") is not None:
        plain["token_ids"] = tuple(plain["token_ids"])
    return WorkloadRequest(**plain)
