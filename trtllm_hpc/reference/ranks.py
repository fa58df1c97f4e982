"""The leader's and the followers' loops.

The leader takes requests from Triton, one after the other, and tells each to
the followers; then all ranks run the same ``generate``. While there is
nothing to do the leader sends a heartbeat, so that no collective waits long
and a dead rank is noticed within seconds.
"""

from __future__ import annotations

import enum
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.ending import Ending, first_sentence
from trtllm_hpc.reference.engine import Engine
from trtllm_hpc.reference.requests import NO_END, Completion, GenerationRequest
from trtllm_hpc.reference.world import World

HEARTBEAT_S = 2.0
"""Seconds between two signs of life of an idle leader."""

LOST_AFTER_S = 30.0
"""A rank that is silent this long between two steps is lost; one whose process died is noticed at once."""

_log = logging.getLogger(__name__)


class Signal(enum.Enum):
    """What the leader may tell the followers besides a request."""

    HEARTBEAT = enum.auto()
    STOP = enum.auto()


Command = GenerationRequest | Signal


@dataclass(frozen=True)
class Job:
    """A request and where its answer goes."""

    request: GenerationRequest
    answer: Callable[[Completion | RequestFailed], None]
    is_cancelled: Callable[[], bool]


class Channel:
    """The leader's commands on their way to the followers; a world of one has none to tell.

    Made after all ranks have loaded, because only from then on the ranks keep
    pace with each other.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._group: Any = None
        if world.size > 1:
            import torch.distributed as dist

            dist.barrier()
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=LOST_AFTER_S))

    def tell(self, command: Command) -> None:
        """Leader: send a command to all followers."""
        if self._group is not None:
            self._exchange(command)

    def listen(self) -> Command:
        """Follower: wait for the leader's next command."""
        return self._exchange(None)

    def _exchange(self, command: Command | None) -> Command:
        import torch.distributed as dist

        box: list[Command | None] = [command]
        dist.broadcast_object_list(box, src=0, group=self._group)
        received = box[0]
        assert received is not None
        if received is Signal.HEARTBEAT:
            # A broadcast alone does not tell the leader that anybody received it.
            dist.monitored_barrier(self._group)
        return received

    def close(self) -> None:
        """Leave the other ranks in order."""
        if self._group is not None:
            import torch.distributed as dist

            dist.destroy_process_group()


class Leader:
    """Rank 0: answers requests in the order of their arrival, in a thread of its own."""

    def __init__(self, engine: Engine, world: World, ending: Ending) -> None:
        self._engine = engine
        self._world = world
        self._ending = ending
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._channel = Channel(world)
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    def start(self) -> None:
        """Generate one token with all ranks, then begin to serve: ready means that every rank answered."""
        self._generate(GenerationRequest((0,), 1, NO_END, 0, return_log_probs=False, exclude_input=False))
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a request; its answer comes from the leader's thread."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Finish what is queued, send the followers home and return."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._serve_one():
                pass
            self._channel.tell(Signal.STOP)
            self._channel.close()
        except BaseException as error:  # noqa: BLE001 - whatever it was, the ranks are out of step now
            _log.exception("rank %d: the leader's loop failed", self._world.rank)
            self._ending.die(f"Rank {self._world.rank} lost another rank or failed: {first_sentence(error)}")

    def _serve_one(self) -> bool:
        """Serve one job or send one heartbeat; ``False`` when the queue is closed."""
        try:
            job = self._jobs.get(timeout=HEARTBEAT_S)
        except queue.Empty:
            self._channel.tell(Signal.HEARTBEAT)
            return True
        if job is None:
            return False
        if job.is_cancelled():
            job.answer(RequestFailed("The request was cancelled before its turn came."))
        else:
            job.answer(self._outcome(job.request))
        return True

    def _outcome(self, request: GenerationRequest) -> Completion | RequestFailed:
        try:
            return self._generate(request)
        except Exception as error:
            # With other ranks nobody knows how far each of them came; alone, the next request can be served.
            if self._world.size > 1:
                raise
            _log.exception("a request failed")
            return RequestFailed(f"The model failed on this request: {first_sentence(error)}")

    def _generate(self, request: GenerationRequest) -> Completion:
        self._channel.tell(request)
        return self._engine.generate(request)


def follow(engine: Engine, world: World, ending: Ending) -> None:
    """Ranks above 0: take part in every request until the leader says stop.

    Any error ends this rank and its server: the leader cannot go on without it.
    """
    try:
        channel = Channel(world)
        while (command := channel.listen()) is not Signal.STOP:
            if isinstance(command, GenerationRequest):
                engine.generate(command)
        channel.close()
    except BaseException as error:  # noqa: BLE001 - whatever it was, the ranks are out of step now
        _log.exception("rank %d: the follower's loop failed", world.rank)
        ending.die(f"Rank {world.rank} lost another rank or failed: {first_sentence(error)}")
