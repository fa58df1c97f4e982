"""An engine without a model, for tests of how a server is launched, fails and ends.

The engine does not need PyTorch, and is ready at once. It accepts requests, batches them and streams like the
other engine, but a token depends only on its position. All ranks meet in every step, as in a collective: a
rank that has died ends the others, and a rank that is stopped delays them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from trtllm_hpc.reference.engine_folder import EngineInfo
from trtllm_hpc.reference.generation import Die, Generated, GenerationRequest, Hear, Load, check_room
from trtllm_hpc.reference.world import Channel, World, first_sentence

STEP_S = 0.002
"""Seconds of one step, about those of the smallest model."""

_FIRST_TOKEN = 3
"""The first token with a text; tokens before it are special."""
_STRIDE = 37
"""Distance between successive tokens of an answer, so that its text does not repeat soon."""


class StandIn:
    """One rank of the engine: see ``generation.RankEngine``."""

    def __init__(self, info: EngineInfo, world: World, *, max_queue_size: int) -> None:
        size = info.tokens_per_block
        blocks = -(-info.max_seq_len // size) * info.max_batch_size
        self._limits = Load(info.max_batch_size, blocks, size)
        self._max_queue_size, self._rank, self._iteration = max_queue_size, world.rank, 0
        self._words = info.vocab_size - _FIRST_TOKEN
        self._channel = Channel(world)
        self._open: dict[int, tuple[GenerationRequest, list[int]]] = {}
        """Each request with the tokens of its answer by number; the first ``max_requests`` of them run."""
        self._changed = threading.Condition()
        self._is_stopping = False

    def start(self, hear: Hear, die: Die) -> None:
        """Run steps in a separate thread while there are requests."""
        self._thread = threading.Thread(target=self._run, args=(hear, die), name="steps", daemon=True)
        self._thread.start()

    def submit(self, number: int, request: GenerationRequest) -> None:
        """Queue a request."""
        check_room(self.load(), self._max_queue_size)
        with self._changed:
            self._open[number] = request, []
            self._changed.notify()

    def cancel(self, number: int) -> None:
        """Forget a request."""
        with self._changed:
            self._open.pop(number, None)

    def load(self) -> Load:
        """Return the engine's load now."""
        slots, size = self._limits.max_requests, self._limits.tokens_per_block
        with self._changed:
            requests = list(self._open.values())
        running = requests[:slots]
        return replace(
            self._limits,
            active=len(requests),
            waiting=len(requests) - len(running),
            blocks_used=sum(-(-(len(request.prompt) + len(new)) // size) for request, new in running),
            scheduled=len(running),
            generation_requests=len(running),
            iteration=self._iteration,
        )

    def stop(self) -> None:
        """Finish the queued requests, and stop the other ranks."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()
        self._channel.send(b"")
        self._channel.close()

    def follow(self, die: Die) -> None:
        """Meet the leader in every step until it stops."""
        try:
            self._channel.watch(die)
            while self._channel.receive():
                self._channel.gather()
            self._channel.close()
        except Exception as error:  # noqa: BLE001 - after any error the ranks are out of step
            die(f"Rank {self._rank} lost another rank or failed: {first_sentence(error)}")

    def _run(self, hear: Hear, die: Die) -> None:
        self._channel.watch(die)
        try:
            while self._step(hear):
                time.sleep(STEP_S)
        except Exception as error:  # noqa: BLE001 - as above
            die(f"Rank {self._rank} lost another rank or failed: {first_sentence(error)}")

    def _step(self, hear: Hear) -> bool:
        """Wait for requests, meet the other ranks, and add the next token to each running request.

        Returns whether another step follows.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._is_stopping)
            if not self._open:
                return False
        self._channel.send(b"step")
        self._channel.gather()
        with self._changed:
            running = list(self._open.items())[: self._limits.max_requests]
            self._iteration += 1
        for number, (request, new) in running:
            place = (len(request.prompt) + len(new)) * _STRIDE % self._words
            new.append(_FIRST_TOKEN + place)
            is_final = len(new) == request.max_new_tokens
            if is_final:
                self.cancel(number)
            hear(number, Generated(new[:], [0.0] * len(new), is_final))
        return True
