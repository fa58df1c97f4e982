"""Which LoRA adapters the engine has, and who uses them: the leader's book of them."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference import lora
from trtllm_hpc.reference.generation import GenerationRequest, LoraRequest
from trtllm_hpc.reference.steps import Adapter


class AdapterPlaces:
    """Gives each adapter a place on the devices; may be called from any thread.

    As in TensorRT-LLM the first request with an adapter brings its weights,
    and later ones only its number; weights for a number that is known are
    passed over. The adapter that was asked for longest ago gives way to a new
    one, but none does that a waiting or running request needs.

    Args:
        sizes: of the layers that adapters can change; empty for an engine without LoRA.
    """

    def __init__(self, sizes: lora.Sizes) -> None:
        self._sizes = sizes
        self._lock = threading.Lock()
        self._places: OrderedDict[int, int] = OrderedDict()
        """By task id, the one asked for last at the end."""
        self._users: Counter[int] = Counter()
        self._loads: list[Adapter] = []

    def hold(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        """Keep the adapters of requests, all or none, until each is dropped; returns them without weights.

        Raises:
            RequestFailed: one is not known and was not sent, does not fit the
                model, or finds no place.
        """
        held: list[GenerationRequest] = []
        try:
            for request in requests:
                if request.lora is not None:
                    self._hold(request.lora)
                    request = replace(request, lora=LoraRequest(request.lora.task_id))
                held.append(request)
        except RequestFailed:
            self.drop(held)
            raise
        return held

    def drop(self, requests: Iterable[GenerationRequest]) -> None:
        """Take note that requests have ended."""
        with self._lock:
            self._users.subtract(request.lora.task_id for request in requests if request.lora is not None)
            # Only those in use are kept: clients may number their adapters as they like.
            self._users = +self._users

    def take_loads(self) -> tuple[Adapter, ...]:
        """The adapters that must be loaded before any request that is held by now can run."""
        with self._lock:
            loads, self._loads = tuple(self._loads), []
        return loads

    def _hold(self, adapter: LoraRequest) -> None:
        if not self._sizes:
            raise RequestFailed(
                "This engine takes no LoRA adapters: leave lora_task_id out, or build it with "
                "engine.max_lora_rank."
            )
        if adapter.weights is not None:
            lora.check(adapter, self._sizes)
        with self._lock:
            if adapter.task_id in self._places:
                self._places.move_to_end(adapter.task_id)
            elif adapter.weights is None:
                raise RequestFailed(
                    f"The LoRA adapter {adapter.task_id} (lora_task_id) is not known, or no longer. "
                    "Send lora_weights and lora_config with the request."
                )
            else:
                place = self._places[adapter.task_id] = self._free_place()
                self._loads.append(Adapter(place, adapter))
            self._users[adapter.task_id] += 1

    def _free_place(self) -> int:
        if len(self._places) < lora.PLACES:
            return len(self._places)
        idle = next((task for task in self._places if not self._users[task]), None)
        if idle is None:
            raise RequestFailed(
                f"Other requests use {lora.PLACES} LoRA adapters now, which is as many as there may be. "
                "Try again later."
            )
        return self._places.pop(idle)
