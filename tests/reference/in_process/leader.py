"""The engine without Triton: its threads in this process, and a listener that keeps what it hears."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from tests.waiting import eventually
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference import engine
from trtllm_hpc.reference.engine_config import EngineFolder, ServeSettings
from trtllm_hpc.reference.generation import GenerationRequest, Load, Progress
from trtllm_hpc.reference.leader import Leader
from trtllm_hpc.reference.world import World

ANSWER_LIMIT_S = 60.0


@dataclass
class Heard:
    """What came back for one request."""

    parts: list[Progress] = field(default_factory=list)
    error: RequestFailed | None = None
    ticket: int = -1
    is_done: threading.Event = field(default_factory=threading.Event)
    has_begun: threading.Event = field(default_factory=threading.Event)
    place: int = -1
    """Among all requests, in the order of their ends."""

    def __call__(self, outcome: Progress | RequestFailed) -> None:
        if isinstance(outcome, RequestFailed):
            self.error = outcome
            self._end()
            return
        self.parts.append(outcome)
        self.has_begun.set()
        if outcome.is_final:
            self._end()

    def _end(self) -> None:
        self.place = next(_places)
        self.is_done.set()

    def wait(self) -> Heard:
        assert self.is_done.wait(ANSWER_LIMIT_S), "no answer"
        if self.error is not None:
            raise self.error
        return self

    @property
    def tokens(self) -> list[int]:
        return [token for part in self.parts for token in part.tokens[0]]

    @property
    def log_probs(self) -> list[float]:
        return [number for part in self.parts for number in part.log_probs[0]]

    @property
    def context_logits(self) -> torch.Tensor:
        (found,) = [part.context_logits for part in self.parts if part.context_logits is not None]
        return torch.from_numpy(found)

    @property
    def generation_logits(self) -> torch.Tensor:
        found = [part.generation_logits for part in self.parts if part.generation_logits is not None]
        return torch.from_numpy(np.concatenate(found, axis=1))


def die(sentence: str) -> NoReturn:
    """Stands for the server's end: here a failed engine fails the test's wait instead."""
    raise AssertionError(sentence)


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Leader]:
    """A world of one rank, serving."""
    chosen = ServeSettings(**settings)
    # The thread that loads the engine runs it, as in its own process.
    with ThreadPoolExecutor(max_workers=1) as thread:
        world = World(0, 1, 0, None)
        loaded = thread.submit(engine.load, EngineFolder(folder), chosen, world).result()
        leader = Leader(loaded, chosen, die)
        running = thread.submit(leader.run)
        try:
            yield leader
        finally:
            leader.stop()
            running.result()


_tickets, _places = itertools.count(), itertools.count()


def ask(leader: Leader, *requests: GenerationRequest) -> list[Heard]:
    """Submit requests one after the other, without waiting."""
    heard = [Heard() for _ in requests]
    for request, listener in zip(requests, heard, strict=True):
        listener.ticket = next(_tickets)
        leader.submit([request], [listener], [listener.ticket])
    return heard


def idle(leader: Leader) -> Load:
    """What the engine says of itself once it has nothing to do."""
    assert eventually(lambda: not leader.load().active, ANSWER_LIMIT_S), f"still busy: {leader.load()}"
    return leader.load()
