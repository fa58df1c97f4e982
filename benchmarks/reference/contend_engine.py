"""The reference backend's engine alone, in this process."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

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

_tickets = itertools.count()


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


@contextmanager
def contend(setup: Setup, mode: str) -> Iterator[Measure]:
    """Load the engine of one rank."""
    answers: Answers = queue.SimpleQueue()

    def die(sentence: str) -> NoReturn:
        answers.put((-1, BenchmarkFailed(sentence)))
        raise SystemExit(1)

    settings = ServeSettings()
    folder = EngineFolder(setup.engine(1))
    # The thread that loads the engine runs it, as in its own process.
    with ThreadPoolExecutor(max_workers=1) as thread:
        loaded = thread.submit(engine.load, folder, settings, World(0, 1, 0, None)).result()
        leader = Leader(loaded, settings, die)
        thread.submit(leader.run)
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
        leader.submit([prepared[index]], [_Heard(index, answers)], [next(_tickets)])

    seconds, cpu, tokens = closed_loop(run, send, lambda: answers.get(timeout=ANSWER_LIMIT_S))
    return Outcome(seconds, tokens, cpu)
