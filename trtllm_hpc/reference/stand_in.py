"""An engine without a model, for trying how a server is launched, fails and ends.

It needs no PyTorch, and is ready at once. It takes requests, batches them and streams as the other engine
does, but its tokens follow from their place alone. All ranks meet in every step, as in a collective: one
that has died ends the others, and one that is stopped holds them up.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection

from trtllm_hpc.config.synthetic_models import STAND_IN
from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import read_json
from trtllm_hpc.reference.adapter_places import Sizes
from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo, ServeSettings
from trtllm_hpc.reference.engine_parts import Chosen, Results, no_logits
from trtllm_hpc.reference.generation import GenerationRequest
from trtllm_hpc.reference.scheduler import Limits, Step
from trtllm_hpc.reference.world import RENDEZVOUS_TIMEOUT_S, World

STEP_S = 0.002
"""A step takes about as long as that of the smallest model."""

_FIRST_TOKEN = 3
"""Those before it are special and have no text."""
_STRIDE = 37
"""Between the tokens of an answer, so that its text does not repeat soon."""


def is_stand_in(folder: EngineFolder) -> bool:
    """Return whether the engine in this folder has no model."""
    try:
        record = read_json(folder.config)
    except (ValueError, OSError):
        return False
    pretrained = record.get("pretrained_config") if isinstance(record, dict) else None
    return isinstance(pretrained, dict) and pretrained.get("architecture") == STAND_IN


def load(folder: EngineFolder, settings: ServeSettings, world: World) -> StandIn:
    """Connect the ranks. Collective.

    Raises StartFailed if the engine cannot be read, or the ranks did not connect in time.
    """
    info = EngineInfo.read(folder)
    if info.world_size != world.size:
        raise StartFailed(f"The engine was built for {info.world_size} ranks, and there are {world.size}.")
    size = info.tokens_per_block
    tokens = -(-info.max_seq_len // size) * size * info.max_batch_size
    if settings.max_tokens_in_paged_kv_cache is not None:
        tokens = min(tokens, settings.max_tokens_in_paged_kv_cache)
    limits = Limits(info.max_batch_size, info.max_num_tokens, tokens // size, size)
    return StandIn(info, limits, Ranks(world))


class StandIn:
    """One rank's part: see ``engine_parts.Engine``."""

    def __init__(self, info: EngineInfo, limits: Limits, channel: Ranks) -> None:
        self.info, self.limits, self.channel = info, limits, channel
        self.sizes: Sizes = {}
        self.is_prepared = True
        self._requests: dict[int, GenerationRequest] = {}
        self._lengths: dict[int, int] = {}
        """Tokens of each slot's answer so far."""

    def compute(self, step: Step) -> Results:
        """Wait for the other ranks, and give each sequence its next token."""
        for admission in step.admitted:
            self._requests[admission.slot] = admission.request
            self._lengths[admission.slot] = 0
        time.sleep(STEP_S)
        self.channel.gather()
        complete = [
            chunk.slot for chunk in step.chunks if chunk.end == len(self._requests[chunk.slot].prompt)
        ]
        slots = [*(decode.slot for decode in step.decodes), *complete]
        return Results([self._next(slot) for slot in slots], no_logits, {}, {})

    def take_part(self, step: Step) -> None:
        """Meet the leader."""
        self.channel.gather()

    def release(self, slot: int) -> None:
        """Keep nothing of the request."""
        del self._requests[slot], self._lengths[slot]

    def close(self) -> None:
        """Nothing to free."""

    def _next(self, slot: int) -> Chosen:
        request, length = self._requests[slot], self._lengths[slot]
        place = (len(request.prompt) + length) * _STRIDE % (self.info.vocab_size - _FIRST_TOKEN)
        self._lengths[slot] = length + 1
        return Chosen(slot, _FIRST_TOKEN + place, length + 1 == request.max_new_tokens, 0.0)


class Ranks:
    """Connections between rank 0 and each other rank. Nothing is connected in a world of one rank.

    Raises StartFailed if the ranks did not connect in time.
    """

    def __init__(self, world: World) -> None:
        self._is_leaving = threading.Event()
        self._is_leader = world.is_leader
        self._others: Mapping[int, Connection] = {}
        if world.size > 1:
            self._others = _accept(world) if world.is_leader else {0: _connect(world)}

    def watch(self, on_lost: Callable[[RuntimeError], object]) -> None:
        """See ``engine_parts.Channel``."""
        if self._others:
            threading.Thread(target=self._look, args=(on_lost,), name="ranks", daemon=True).start()

    def send(self, step: Step | None) -> None:
        """See ``engine_parts.Channel``."""
        if step is None:
            # Now, and not when this rank closes: another may have left before that.
            self._is_leaving.set()
        for connection in self._others.values():
            connection.send(step)

    def receive(self) -> Step | None:
        """See ``engine_parts.Channel``."""
        step: Step | None = self._hear(0)
        if step is None:
            self._is_leaving.set()
        return step

    def gather(self) -> None:
        """Leader: wait for a message of each other rank; the others send it. Collective."""
        if not self._is_leader:
            self._others[0].send(True)
            return
        for rank in self._others:
            self._hear(rank)

    def close(self) -> None:
        """See ``engine_parts.Channel``."""
        self._is_leaving.set()
        for connection in self._others.values():
            if self._is_leader:
                # The others leave first, so that none of them takes the leader's end for a loss.
                with suppress(EOFError, OSError):
                    connection.recv()
            connection.close()

    def _hear(self, rank: int) -> Step | None:
        try:
            # pickle is safe here: the other end is a rank of the same job.
            message: Step | None = self._others[rank].recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the connection to rank {rank} was closed") from error
        return message

    def _look(self, on_lost: Callable[[RuntimeError], object]) -> None:
        poller = select.poll()
        ranks = {connection.fileno(): rank for rank, connection in self._others.items()}
        for handle in ranks:
            poller.register(handle, select.POLLRDHUP)
        found = poller.poll()
        if not self._is_leaving.is_set():
            on_lost(RuntimeError(f"the connection to rank {ranks[found[0][0]]} was closed"))


def _address() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def _accept(world: World) -> dict[int, Connection]:
    """Rank 0: wait for all others; each says its rank first."""
    address, port = _address()
    found: dict[int, Connection] = {}
    try:
        with socket.create_server(("", port)) as listener:
            listener.settimeout(RENDEZVOUS_TIMEOUT_S)
            while len(found) < world.size - 1:
                theirs, _ = listener.accept()
                theirs.setblocking(True)
                connection = Connection(theirs.detach())
                found[connection.recv()] = connection
    except OSError as error:
        raise StartFailed(f"The ranks did not connect at {address}:{port}: {error}") from error
    return found


def _connect(world: World) -> Connection:
    """Other ranks: connect to rank 0, which may listen later."""
    address, port = _address()
    deadline = time.monotonic() + RENDEZVOUS_TIMEOUT_S
    while True:
        try:
            ours = socket.create_connection((address, port), timeout=10)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise StartFailed(f"The ranks did not connect at {address}:{port}: {error}") from error
            time.sleep(0.1)
    ours.setblocking(True)
    connection = Connection(ours.detach())
    connection.send(world.rank)
    return connection
