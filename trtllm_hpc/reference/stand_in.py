"""An engine without a model, for trying how a server is launched, fails and ends.

It needs no PyTorch, and is ready at once. It takes requests, batches them and streams as the other engine
does, but its tokens follow from their place alone. All ranks meet in every step, as in a collective: one
that has died ends the others, and one that is stopped holds them up.
"""

from __future__ import annotations

import time

from trtllm_hpc.config.synthetic_models import STAND_IN
from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import read_json
from trtllm_hpc.reference.adapter_places import Sizes
from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo, ServeSettings
from trtllm_hpc.reference.generation import GenerationRequest
from trtllm_hpc.reference.leader import Chosen, Results, no_logits
from trtllm_hpc.reference.scheduler import Limits, Step
from trtllm_hpc.reference.world import Channel, World

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
    """Connect the ranks. Collective. Raises StartFailed if a rank cannot read the engine or connect."""
    info = EngineInfo.read(folder)
    if info.world_size != world.size:
        raise StartFailed(f"The engine was built for {info.world_size} ranks, and there are {world.size}.")
    size = info.tokens_per_block
    blocks = info.most_tokens(settings) // size
    limits = Limits(info.max_batch_size, info.max_num_tokens, blocks, size)
    return StandIn(info, limits, Channel(world))


class StandIn:
    """One rank's part: see ``leader.Engine``."""

    def __init__(self, info: EngineInfo, limits: Limits, channel: Channel) -> None:
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
