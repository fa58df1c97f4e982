"""The reference backend's engine alone, in this process."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from benchmarks.reference.workload import (
    ANSWER_LIMIT_S,
    Answer,
    BenchmarkFailed,
    Measure,
    Outcome,
    Run,
    Setup,
    closed_loop,
    inputs,
)
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference import engine, requests
from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo, ServeSettings
from trtllm_hpc.reference.generation import Progress
from trtllm_hpc.reference.leader import Leader
from trtllm_hpc.reference.world import World

Answers = queue.SimpleQueue[tuple[int, "Answer | Exception"]]


@dataclass
class _Heard:
    """Puts the answer to one request into the shared queue."""

    index: int
    answers: Answers
    tokens: Answer = field(default_factory=list)

    def __call__(self, outcome: Progress | RequestFailed) -> None:
        if isinstance(outcome, RequestFailed):
            self.answers.put((self.index, outcome))
            return
        self.tokens += outcome.tokens[0]
        if outcome.is_final:
            self.answers.put((self.index, self.tokens))


@dataclass
class _Shutdown:
    """In place of the server's shutdown: a failed engine fails the measurement."""

    answers: Answers

    def die(self, sentence: str) -> NoReturn:
        self.answers.put((-1, BenchmarkFailed(sentence)))
        raise SystemExit(1)


@contextmanager
def contend(setup: Setup, mode: str) -> Iterator[Measure]:
    """Load the engine of one rank."""
    answers: Answers = queue.SimpleQueue()
    settings = ServeSettings()
    thread = engine.one_thread()
    folder = EngineFolder(setup.engine(1))
    loaded = thread.submit(engine.load, folder, settings, World(0, 1, 0, None)).result()
    shutdown: Any = _Shutdown(answers)
    leader = Leader(loaded, settings, shutdown)
    leader.start(thread)
    try:
        yield lambda run: _measure(setup, loaded.info, leader, answers, run)
    finally:
        leader.stop()


def _measure(setup: Setup, info: EngineInfo, leader: Leader, answers: Answers, run: Run) -> Outcome:
    prepared = [
        requests.parse(inputs(setup, index, run.features), info, decoupled=False)[0].request
        for index in range(run.requests)
    ]

    def send(index: int) -> None:
        leader.submit([prepared[index]], [_Heard(index, answers)])

    seconds, cpu, tokens = closed_loop(run, send, lambda: answers.get(timeout=ANSWER_LIMIT_S))
    return Outcome(seconds, tokens, cpu)
