"""The leader's table of LoRA adapters: which are loaded, and whether a new one fits the model. NumPy only.

The numbers of the modules and the layout of the tensors are TensorRT-LLM's (``docs/source/advanced/lora.md``,
and for the layers behind the numbers ``get_default_trtllm_modules_to_hf_modules`` in
``tensorrt_llm/lora_manager.py``, as of 2025; the two differ in gate and up, and the code is followed here).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.reference.generation import GenerationRequest, LoraRequest
from trtllm_hpc.reference.scheduler import Adapter

PLACES = 8
"""Number of adapters kept at once; TensorRT-LLM's ``lora_cache_optimal_adapter_size`` is 8, too."""

QKV = 0
_NAMES = ("attn_qkv", "attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate")
"""TensorRT-LLM's names of the modules, by number."""

Key = tuple[int, int]
"""Number of the module and of the layer."""


@dataclass(frozen=True)
class Size:
    """Size of a linear layer in the whole model, all ranks together."""

    inputs: int
    outputs: int

    def values(self, rank: int) -> int:
        """Number of values of an adapter of that rank."""
        return rank * (self.inputs + self.outputs)


Sizes = Mapping[Key, Size]
"""The layers that adapters can change."""


def check(lora: LoraRequest, sizes: Sizes) -> None:
    """Refuse an adapter that does not fit the model.

    Raises RequestFailed if it names a module or layer that the model lacks, names one twice, or has too few
    values or some that are not finite.
    """
    assert lora.weights is not None and lora.config is not None
    seen: set[Key] = set()
    for row, (module, layer, rank) in enumerate(lora.config.tolist()):
        size = sizes.get((module, layer))
        if size is None:
            modules = sorted({module for module, _ in sizes})
            raise RequestFailed(
                f"lora_config names module {_named(module)} of layer {layer}; this engine can adapt layers "
                f"0 to {max(layer for _, layer in sizes)} and modules {', '.join(map(_named, modules))}."
            )
        keys = set(changed_layers((module, layer)))
        if keys & seen:
            raise RequestFailed(f"lora_config names module {_named(module)} of layer {layer} twice.")
        seen |= keys
        needed = size.values(rank)
        if lora.weights.shape[1] < needed:
            raise RequestFailed(
                f"lora_weights holds {lora.weights.shape[1]} values for each module, but {_named(module)} "
                f"at rank {rank} has {rank} x {size.inputs} inwards and {size.outputs} x {rank} outwards."
            )
        # Otherwise the zeros that keep an adapter out of other requests' rows would not stay zeros.
        if not np.isfinite(lora.weights[row, :needed]).all():
            raise RequestFailed(f"lora_weights holds a NaN or an infinite value for {_named(module)}.")


def _named(module: int) -> str:
    return f"{module} ({_NAMES[module]})" if 0 <= module < len(_NAMES) else str(module)


def changed_layers(key: Key) -> list[Key]:
    """The layers of a module; attn_qkv has three."""
    module, layer = key
    return [(part, layer) for part in (1, 2, 3)] if module == QKV else [key]


class AdapterPlaces:
    """The leader's table of adapters: gives each a place. An engine without LoRA has no ``sizes``.

    As in TensorRT-LLM the first request with an adapter sends its weights, and later ones only its number;
    weights for a known number are ignored. A new adapter replaces the least recently requested one, but none
    that a waiting or running request uses.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._places: OrderedDict[int, int] = OrderedDict()
        """By task id, the most recently requested one last."""
        self._users: Counter[int] = Counter()
        self._loads: list[Adapter] = []

    def hold(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        """Reserve the adapters of requests, all or none, until each is dropped; return them without weights.

        Raises RequestFailed if an adapter is unknown and was not sent, does not fit the model, or all places
        are in use.
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
        """Release the adapters of requests that have ended."""
        self._users.subtract(request.lora.task_id for request in requests if request.lora is not None)
        # Drop zeros: clients may use any number of task ids.
        self._users = +self._users

    def take_loads(self) -> tuple[Adapter, ...]:
        """The adapters that must be loaded before the held requests can run."""
        loads, self._loads = tuple(self._loads), []
        return loads

    def _hold(self, adapter: LoraRequest) -> None:
        if not self._sizes:
            raise RequestFailed(
                "This engine takes no LoRA adapters: leave lora_task_id out, or build it with "
                "engine.max_lora_rank."
            )
        if adapter.weights is not None:
            check(adapter, self._sizes)
        if adapter.task_id in self._places:
            self._places.move_to_end(adapter.task_id)
        elif adapter.weights is None:
            raise RequestFailed(
                f"The LoRA adapter {adapter.task_id} (lora_task_id) is not loaded, or not any more. "
                "Send lora_weights and lora_config with the request."
            )
        else:
            place = self._places[adapter.task_id] = self._free_place()
            self._loads.append(Adapter(place, adapter))
        self._users[adapter.task_id] += 1

    def _free_place(self) -> int:
        if len(self._places) < PLACES:
            return len(self._places)
        idle = next((task for task in self._places if not self._users[task]), None)
        if idle is None:
            raise RequestFailed(
                f"Other requests use {PLACES} LoRA adapters now, which is the most that can be loaded. "
                "Try again later."
            )
        return self._places.pop(idle)
