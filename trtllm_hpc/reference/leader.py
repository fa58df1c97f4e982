"""Rank 0: takes requests, plans the steps, chooses the tokens, and answers.

All of it runs in one thread. Other threads only put calls into its queue.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Hashable, Iterator, Mapping
from collections.abc import Sequence as Sequences
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.adapter_places import AdapterPlaces, Sizes
from trtllm_hpc.reference.engine_config import EngineInfo, ServeSettings
from trtllm_hpc.reference.generation import Cancelled, GenerationRequest, Listener, Load, Progress, QueueFull
from trtllm_hpc.reference.requests import queue_is_full
from trtllm_hpc.reference.scheduler import Limits, Scheduler, Sequence, Step, refuse_too_long
from trtllm_hpc.reference.shutdown import first_sentence
from trtllm_hpc.reference.world import Channel

_log = logging.getLogger(__name__)

Logits = np.ndarray[Any, np.dtype[np.float32]]


class Chosen(NamedTuple):
    """The token of one slot."""

    slot: int
    token: int
    finished: bool
    """It is the end token, completes a stop word, or is the last one allowed."""
    log_prob: float
    """Natural logarithm of its probability; 0 if no request of the step wants it."""


@dataclass(frozen=True)
class Results:
    """What rank 0 has of a step, on the host."""

    chosen: Sequences[Chosen]
    logits: Callable[[int], Logits]
    """[vocabulary], those from which a row of ``chosen`` was chosen. Valid until the next step."""
    context_logits: Mapping[int, Logits]
    """By slot, [part of the prompt, vocabulary], for the requests that want them."""
    beams: Mapping[int, Progress]
    """By slot, for the beam searches that have ended."""


def no_logits(row: int) -> Logits:
    """The ``logits`` of results without a token."""
    raise IndexError(row)


class Engine(Protocol):
    """One rank's part of a loaded engine: ``engine`` computes a model, ``stand_in`` has none."""

    info: EngineInfo
    limits: Limits
    channel: Channel
    sizes: Sizes
    """Of the layers that adapters can change; empty for an engine without LoRA."""

    @property
    def is_prepared(self) -> bool:
        """Whether there is nothing left that a step with ``prepares`` could prepare."""

    def compute(self, step: Step) -> Results:
        """Rank 0: carry out a step and choose the tokens. Collective."""

    def take_part(self, step: Step) -> None:
        """Other ranks: carry out a step. Collective."""

    def release(self, slot: int) -> None:
        """Rank 0: forget the request of a slot, which is not a beam search."""

    def close(self) -> None:
        """Free what must be free before the ranks disconnect. Collective."""


@dataclass(kw_only=True)
class Job(Sequence):
    """A request, its listener, and its answer so far."""

    listener: Listener
    log_probs: list[float] = field(default_factory=list)
    sent: int = 0
    """Number of new tokens that the listener has got."""
    context_logits: list[Logits] = field(default_factory=list)
    generation_logits: list[Logits] = field(default_factory=list)

    def send_progress(self, *, is_final: bool) -> None:
        """Send the listener what it has not got yet."""
        since, self.sent = self.sent, len(self.new_tokens)
        context, self.context_logits = self.context_logits, []
        generation, self.generation_logits = self.generation_logits, []
        beams = self.request.beam_width
        self.listener(
            Progress(
                # A cancelled beam search has no tokens yet: its rows are empty.
                tokens=(tuple(self.new_tokens[since:]),) * beams,
                log_probs=(tuple(self.log_probs[since:]),) * beams,
                is_final=is_final,
                context_logits=np.concatenate(context) if context else None,
                generation_logits=np.stack(generation)[None] if generation else None,
            )
        )


class Leader:
    """Takes requests for an engine, and runs it.

    ``submit``, ``cancel``, ``load`` and ``stop`` may be called from any thread. ``die`` ends the process with
    a sentence, if the engine cannot go on. ``on_step`` is called after each step, and before the engine waits
    for requests, with what it does.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ServeSettings,
        die: Callable[[str], NoReturn],
        *,
        on_step: Callable[[Load], object] = lambda _: None,
    ) -> None:
        self._engine = engine
        self._scheduler = Scheduler(engine.limits)
        self._channel = engine.channel
        self._die = die
        self._on_step = on_step
        self._max_queue_size = settings.max_queue_size
        self._adapters = AdapterPlaces(engine.sizes)
        self._jobs: dict[Hashable, Job] = {}
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_stopping = False
        self._iteration = 0
        self._load = self._loaded(Step())

    def submit(
        self,
        requests: Sequences[GenerationRequest],
        listeners: Sequences[Listener],
        tickets: Sequences[Hashable],
    ) -> None:
        """Queue requests that belong together, all or none; tickets are names for ``cancel``, each used once.

        They are refused if the queue is full, the KV cache is too small for one of them, or a LoRA adapter is
        not available; each listener hears the reason then.
        """
        jobs = [
            Job(ticket, request, listener=listener)
            for ticket, request, listener in zip(tickets, requests, listeners, strict=True)
        ]
        self._commands.put(partial(self._add, jobs))

    def cancel(self, ticket: Hashable, *, keep: bool) -> None:
        """End a request and free its slot; does nothing for an unknown or finished one.

        With ``keep`` its listener gets what was generated so far as the final progress, otherwise a failure.
        """
        self._commands.put(partial(self._cancel, ticket, keep))

    def load(self) -> Load:
        """What the engine does now."""
        return self._load

    def stop(self) -> None:
        """Make ``run`` finish what is queued, stop the other ranks and return."""
        self._commands.put(self._begin_stop)

    def run(self) -> None:
        """Serve until it is stopped, in the thread that loaded the engine."""
        with _in_step(self._engine, self._die, 0):
            while self._turn():
                pass
            self._channel.send(None)

    def _turn(self) -> bool:
        """Carry out one step, or wait for a command; return ``False`` once stopped and idle."""
        while not self._commands.empty():
            self._commands.get()()
        step = self._scheduler.plan()
        if step is not None:
            step = replace(step, adapters=self._adapters.take_loads())
            self._channel.send(step)
            self._carry_out(step)
            self._on_step(self._load)
            return True
        self._load = self._loaded(Step())
        self._on_step(self._load)
        if self._is_stopping:
            return False
        if self._engine.is_prepared:
            self._commands.get()()
        elif self._commands.empty():
            # Use the pause: a request that arrives meanwhile waits for one preparation, not for all.
            step = Step(prepares=True)
            self._channel.send(step)
            self._engine.compute(step)
        return True

    def _begin_stop(self) -> None:
        self._is_stopping = True

    def _add(self, jobs: list[Job]) -> None:
        requests = [job.request for job in jobs]
        try:
            for request in requests:
                refuse_too_long(request, self._scheduler.limits)
            self._check_queue(len(requests))
            requests = self._adapters.hold(requests)
        except RequestFailed as error:
            for job in jobs:
                job.listener(error)
            return
        for job, request in zip(jobs, requests, strict=True):
            job.request = request
            self._jobs[job.ticket] = job
            self._scheduler.add(job)

    def _check_queue(self, requests: int) -> None:
        """Raise RequestFailed for requests beyond those that get a slot and those that may wait."""
        waiting, most, limits = self._scheduler.waiting, self._max_queue_size, self._scheduler.limits
        if not most:
            return
        if requests > most + limits.slots:
            raise RequestFailed(
                f"The request needs {requests} sequences at once, more than can ever run and wait: "
                f"max_batch_size is {limits.slots}, max_queue_size {most}. Send fewer at a time."
            )
        if waiting + requests > most + self._scheduler.room:
            raise QueueFull(queue_is_full(waiting, most))

    def _cancel(self, ticket: Hashable, keep: bool) -> None:
        job = self._jobs.get(ticket)
        if job is None:
            return
        self._end(job)
        if keep:
            job.send_progress(is_final=True)
        else:
            job.listener(Cancelled("The request was cancelled."))

    def _end(self, job: Job) -> None:
        slot = job.slot
        if slot is not None and not job.is_beam_search:
            self._engine.release(slot)
        self._scheduler.end(job)
        del self._jobs[job.ticket]
        self._adapters.drop([job.request])

    def _carry_out(self, step: Step) -> None:
        results = self._engine.compute(step)
        self._iteration += 1
        self._load = self._loaded(step)
        for slot, logits in results.context_logits.items():
            self._job(slot).context_logits.append(logits)
        self._tell(results)
        for slot, result in results.beams.items():
            job = self._job(slot)
            self._end(job)
            job.listener(result)

    def _job(self, slot: int) -> Job:
        return self._jobs[self._scheduler.running[slot].ticket]

    def _tell(self, results: Results) -> None:
        """Send each chosen token to its listener."""
        for row, (slot, token, finished, log_prob) in enumerate(results.chosen):
            job = self._job(slot)
            job.new_tokens.append(token)
            job.log_probs.append(log_prob)
            if job.request.return_generation_logits:
                job.generation_logits.append(results.logits(row))
            if finished:
                self._end(job)
            if finished or job.request.streaming:
                job.send_progress(is_final=finished)

    def _loaded(self, step: Step) -> Load:
        scheduler, limits = self._scheduler, self._scheduler.limits
        return Load(
            active=len(scheduler.running) + scheduler.waiting,
            scheduled=len(step.decodes) + len(step.chunks) + len(step.beams),
            context=len(step.chunks),
            waiting=scheduler.waiting,
            max_requests=limits.slots,
            blocks_max=limits.blocks,
            blocks_used=scheduler.used_blocks,
            tokens_per_block=limits.tokens_per_block,
            context_tokens=sum(chunk.tokens for chunk in step.chunks),
            generation_requests=len(step.decodes) + len(step.beams),
            iteration=self._iteration,
        )


def follow(engine: Engine, die: Callable[[str], NoReturn], rank: int) -> None:
    """Ranks above 0: take part in every step until the leader stops them."""
    with _in_step(engine, die, rank):
        while (step := engine.channel.receive()) is not None:
            engine.take_part(step)


@contextmanager
def _in_step(engine: Engine, die: Callable[[str], NoReturn], rank: int) -> Iterator[None]:
    """Leave in order at the end; any error ends this rank and its server, since no rank can go on alone."""
    engine.channel.watch(lambda error: die(f"Rank {rank} lost another rank: {first_sentence(error)}"))
    try:
        yield
        engine.close()
        engine.channel.close()
    except BaseException as error:  # noqa: BLE001 - after any error the ranks are out of step
        _log.exception("rank %d: the engine's loop failed", rank)
        die(f"Rank {rank} lost another rank or failed: {first_sentence(error)}")
