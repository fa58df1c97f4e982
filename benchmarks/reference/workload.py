"""The workload of every contender: the same model, prompts and number of new tokens."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ANSWER_LIMIT_S = 300.0
END_ID = 2
"""End token where a request must have one, so that min_length can forbid it."""

Answer = list[int]
"""The new tokens of one request."""


@dataclass(frozen=True)
class Setup:
    """The setup of one run of the benchmark, as its child processes see it."""

    folder: Path
    """Scratch folder of the whole run."""
    model: str
    """A local folder in transformers' format, or the name of a synthetic model."""
    dtype: str
    tensor_parallel: int
    """Ranks behind Triton; the contenders in one process have one."""
    decoupled: bool
    prompt_tokens: int
    new_tokens: int
    most: int
    """The highest concurrency."""
    vocab_size: int = 0
    """Known once the model is prepared."""

    @property
    def source(self) -> Path:
        """The model in transformers' format."""
        local = Path(self.model)
        return local.absolute() if local.is_dir() else self.folder / "source"

    def engine(self, ranks: int) -> Path:
        """The model as an engine of the reference backend."""
        return self.folder / f"engine-tp{ranks}"


@dataclass(frozen=True)
class Run:
    """One measurement: ``requests`` in total, ``concurrency`` of them outstanding at any time."""

    concurrency: int
    requests: int
    features: bool = False
    """Every request asks for all that can be asked for of a request alone."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one measurement."""

    seconds: float
    """From before the first request to after the last answer."""
    answers: list[Answer]
    cpu_seconds: float
    """CPU time of the process that sent the requests."""

    @property
    def tokens(self) -> int:
        return sum(len(answer) for answer in self.answers)


Measure = Callable[[Run], Outcome]


class BenchmarkFailed(Exception):
    """A contender could not be measured."""


def prompt(setup: Setup, index: int) -> list[int]:
    """Token ids of prompt number ``number``; special tokens, which have the lowest ids, are not used."""
    draw = random.Random(index)
    return [draw.randrange(3, setup.vocab_size) for _ in range(setup.prompt_tokens)]


def inputs(setup: Setup, index: int, features: bool) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of one request to ``tensorrt_llm``, a batch of one."""
    values: dict[str, Any] = {
        "input_ids": np.array([prompt(setup, index)], dtype=np.int32),
        "input_lengths": np.array([[setup.prompt_tokens]], dtype=np.int32),
        "request_output_len": np.array([[setup.new_tokens]], dtype=np.int32),
        "exclude_input_in_output": np.array([[True]]),
    }
    return {**values, **_features(setup, index)} if features else values


def _features(setup: Setup, index: int) -> dict[str, np.ndarray[Any, Any]]:
    """Every request option except beams, logits and adapters.

    The end token is forbidden by ``min_length`` and the stop word is too long
    to come up by chance: a contender checks for both and still makes all tokens.
    """
    draw = random.Random(-1 - index)
    bad, stop = ([draw.randrange(3, setup.vocab_size) for _ in range(count)] for count in (3, 8))
    return {
        "temperature": np.array([[0.8]], dtype=np.float32),
        "runtime_top_k": np.array([[40]], dtype=np.int32),
        "runtime_top_p": np.array([[0.95]], dtype=np.float32),
        "repetition_penalty": np.array([[1.1]], dtype=np.float32),
        "presence_penalty": np.array([[0.2]], dtype=np.float32),
        "frequency_penalty": np.array([[0.1]], dtype=np.float32),
        "random_seed": np.array([[index]], dtype=np.uint64),
        "end_id": np.array([[END_ID]], dtype=np.int32),
        "min_length": np.array([[setup.new_tokens]], dtype=np.int32),
        # One word of one token and one of two.
        "bad_words_list": np.array([[bad, [1, 3, -1]]], dtype=np.int32),
        "stop_words_list": np.array([[stop, [8, *[-1] * 7]]], dtype=np.int32),
        "return_log_probs": np.array([[True]]),
    }


def closed_loop(
    run: Run, send: Callable[[int], None], receive: Callable[[], tuple[int, Any]]
) -> tuple[float, float, list[Any]]:
    """Send a new request for each answer. Returns seconds, the sender's CPU seconds, and the answers."""
    found: dict[int, Any] = {}
    cpu, started = time.process_time(), time.perf_counter()
    for index in range(run.concurrency):
        send(index)
    for following in range(run.concurrency, run.concurrency + run.requests):
        index, answer = receive()
        if isinstance(answer, Exception):
            raise answer
        found[index] = answer
        if following < run.requests:
            send(following)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return seconds, cpu, [found[index] for index in range(run.requests)]


def check(outcome: Outcome, setup: Setup) -> Outcome:
    """Check that the contender generated every token.

    Raises:
        BenchmarkFailed: it generated fewer or more.
    """
    lengths = {len(answer) for answer in outcome.answers}
    if lengths != {setup.new_tokens}:
        raise BenchmarkFailed(f"answers of {sorted(lengths)} tokens came instead of {setup.new_tokens}")
    return outcome
