"""LoRA adapters, each for the rows of its own requests in a shared batch.

All adapters lie in two matrices for each linear layer. One product gives the
low-rank values of every adapter, those that are not the row's own become
zero, and another product leads back. So a pass costs the same few launches
for any mix of adapters, waits for nothing on the host, and can be recorded
into a CUDA graph. A row without an adapter gets zeros added.

Numbers of the modules and layout of the tensors are TensorRT-LLM's
(``docs/source/advanced/lora.md``, and for the layers that the numbers mean
``get_default_trtllm_modules_to_hf_modules`` in ``tensorrt_llm/lora_manager.py``,
as of 2025; the two differ in what they call gate and up, and the code decides).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear

from trtllm_hpc.errors import RequestFailed, StartFailed
from trtllm_hpc.reference import sharding
from trtllm_hpc.reference.generation import GenerationRequest, LoraRequest
from trtllm_hpc.reference.steps import Adapter

PLACES = 8
"""Adapters that are kept at once; TensorRT-LLM's ``lora_cache_optimal_adapter_size`` is 8 too."""

_QKV = 0
_MODULES = {1: "q_proj", 2: "k_proj", 3: "v_proj", 4: "o_proj", 5: "gate_proj", 6: "down_proj", 7: "up_proj"}
_NAMES = ("attn_qkv", "attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate")
"""What TensorRT-LLM calls the modules, by number."""

_LAYER = re.compile(rf"\.layers\.(\d+)\.(?:self_attn|mlp)\.({'|'.join(_MODULES.values())})$")

Key = tuple[int, int]
"""Number of the module and of the layer."""


@dataclass(frozen=True)
class Size:
    """Of a linear layer in the whole model, all ranks together."""

    inputs: int
    outputs: int

    def values(self, rank: int) -> int:
        """Values of an adapter of that rank."""
        return rank * (self.inputs + self.outputs)


Sizes = Mapping[Key, Size]
"""The layers that adapters can change."""


@dataclass(frozen=True)
class _Part:
    """What an adapter changes in one layer: a product of two matrices is added to its weight."""

    key: Key
    inwards: torch.Tensor
    """[rank, inputs]"""
    outwards: torch.Tensor
    """[outputs, rank]"""


def check(lora: LoraRequest, sizes: Sizes) -> None:
    """Refuse an adapter that does not fit the model.

    Raises:
        RequestFailed: it names a module or layer that the model lacks, or one
            twice, or has too few values or such as are no finite numbers.
    """
    assert lora.weights is not None and lora.config is not None
    seen: set[Key] = set()
    for row, (module, layer, rank) in enumerate(lora.config.tolist()):
        size = sizes.get((module, layer))
        if size is None:
            raise RequestFailed(
                f"lora_config names module {_named(module)} of layer {layer}; this engine can adapt "
                f"{_offered(sizes)}."
            )
        keys = set(_changed((module, layer)))
        if keys & seen:
            raise RequestFailed(f"lora_config names module {_named(module)} of layer {layer} twice.")
        seen |= keys
        needed = size.values(rank)
        if lora.weights.shape[1] < needed:
            raise RequestFailed(
                f"lora_weights holds {lora.weights.shape[1]} values for each module, but {_named(module)} "
                f"at rank {rank} has {rank} x {size.inputs} inwards and {size.outputs} x {rank} outwards."
            )
        # Else the zeros that keep an adapter from other requests' rows would not stay zeros.
        if not bool(torch.from_numpy(lora.weights[row, :needed]).isfinite().all()):
            raise RequestFailed(f"lora_weights holds a NaN or an infinite value for {_named(module)}.")


def _named(module: int) -> str:
    return f"{module} ({_NAMES[module]})" if 0 <= module < len(_NAMES) else str(module)


def _offered(sizes: Sizes) -> str:
    modules = ", ".join(_named(module) for module in sorted({module for module, _ in sizes}))
    return f"layers 0 to {max(layer for _, layer in sizes)} and modules {modules}"


def _changed(key: Key) -> list[Key]:
    """The layers that a module stands for: attn_qkv for three."""
    module, layer = key
    return [(part, layer) for part in (1, 2, 3)] if module == _QKV else [key]


def _parts(lora: LoraRequest, sizes: Sizes) -> Iterator[_Part]:
    """Take the tensors of a request apart, which was checked."""
    assert lora.weights is not None and lora.config is not None
    for row, (module, layer, rank) in zip(lora.weights, lora.config.tolist(), strict=True):
        size = sizes[module, layer]
        values = torch.from_numpy(row[: size.values(rank)])
        inwards = values[: rank * size.inputs].view(rank, size.inputs)
        outwards = values[rank * size.inputs :].view(size.outputs, rank)
        keys = _changed((module, layer))
        for key, part in zip(keys, torch.split(outwards, [sizes[key].outputs for key in keys]), strict=True):
            yield _Part(key, inwards, part)


class _Layer:
    """This rank's slices of what all adapters add to one linear layer."""

    def __init__(self, module: torch.nn.Linear, cut: int | None, rank: int) -> None:
        outputs, inputs = module.weight.shape
        self._cut = cut
        self._rank = rank
        self._inwards = module.weight.new_zeros(PLACES, rank, inputs)
        self._outwards = module.weight.new_zeros(PLACES, rank, outputs)

    def clear(self, place: int) -> None:
        """Forget an adapter."""
        self._inwards[place] = 0
        self._outwards[place] = 0

    def put(self, place: int, part: _Part, rank: int, ranks: int) -> None:
        """Store this rank's slices of an adapter."""
        inwards, outwards = part.inwards, part.outwards
        if self._cut == 0:
            outwards = outwards.chunk(ranks, 0)[rank]
        if self._cut == 1:
            inwards = inwards.chunk(ranks, 1)[rank]
        used = inwards.shape[0]
        self._inwards[place, :used] = inwards.to(self._inwards)
        self._outwards[place, :used] = outwards.T.to(self._outwards)

    def change(self, inputs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """What is to be added to the layer's output.

        Args:
            inputs: [rows, tokens, inputs] of the layer.
            others: [rows, 1, places, 1], where the adapter is not the row's.
        """
        low = linear(inputs, self._inwards.flatten(0, 1))
        own = low.view(*low.shape[:-1], PLACES, self._rank).masked_fill(others, 0)
        return torch.matmul(own.flatten(-2), self._outwards.flatten(0, 1))


class Adapters:
    """One rank's slices of all adapters, and which slot of the batch has which.

    The memory for them is taken when the model is loaded: ``PLACES`` times
    ``max_rank`` rows and columns for each layer that they can change.

    Args:
        max_rank: highest rank of an adapter.
        slots: places of the batch; one more is the padding's, which has no adapter.
        rank: of this process.
        ranks: that share the model.
    """

    def __init__(self, max_rank: int, *, slots: int, rank: int, ranks: int) -> None:
        self._max_rank = max_rank
        self._slots = slots
        self._rank = rank
        self._ranks = ranks
        self._layers: dict[Key, _Layer] = {}
        self._places: dict[int, int] = {}
        """By task id."""
        self._others: torch.Tensor | None = None
        self.sizes: dict[Key, Size] = {}

    def attach(self, model: Any) -> None:
        """Let the model's layers add what the adapters say.

        Comes before the layers are made to sum over the ranks, so that what a
        rank adds to its part of a sum is summed with it.

        Raises:
            StartFailed: no layer can be changed.
        """
        numbers = {name: number for number, name in _MODULES.items()}
        for name, module in model.named_modules():
            found = _LAYER.search(name)
            if found and isinstance(module, torch.nn.Linear):
                self._attach(name, module, (numbers[found[2]], int(found[1])), model.tp_plan)
        if not self._layers:
            raise StartFailed(
                f"LoRA adapters cannot be had with models of type {model.config.model_type}.",
                hint="build the engine with engine.max_lora_rank: 0",
            )
        for layer in {layer for _, layer in self.sizes}:
            parts = [self.sizes.get(key) for key in _changed((_QKV, layer))]
            if all(parts):
                outputs = sum(part.outputs for part in parts if part)
                self.sizes[_QKV, layer] = Size(self.sizes[1, layer].inputs, outputs)
        self._place_of_slot = torch.full((self._slots + 1,), -1, device=model.device)
        self._all_places = torch.arange(PLACES, device=model.device)

    def _attach(self, name: str, module: torch.nn.Linear, key: Key, plan: dict[str, str]) -> None:
        outputs, inputs = module.weight.shape
        cut = sharding.cut_dimension(f"{name}.weight", (outputs, inputs), plan) if self._ranks > 1 else None
        self.sizes[key] = Size(
            inputs * (self._ranks if cut == 1 else 1), outputs * (self._ranks if cut == 0 else 1)
        )
        layer = self._layers[key] = _Layer(module, cut, self._max_rank)
        forward = module.forward

        def changed(input: torch.Tensor) -> torch.Tensor:
            output = forward(input)
            return output if self._others is None else output + layer.change(input, self._others)

        module.forward = changed  # type: ignore[method-assign]

    def load(self, adapter: Adapter) -> None:
        """Put an adapter, which was checked, into its place."""
        self._places = {task: place for task, place in self._places.items() if place != adapter.place}
        self._places[adapter.lora.task_id] = adapter.place
        for layer in self._layers.values():
            layer.clear(adapter.place)
        for part in _parts(adapter.lora, self.sizes):
            self._layers[part.key].put(adapter.place, part, self._rank, self._ranks)

    def admit(self, slot: int, request: GenerationRequest) -> None:
        """Note which adapter a slot has from now on."""
        self._place_of_slot[slot] = -1 if request.lora is None else self._places[request.lora.task_id]

    def aim(self, slots: torch.Tensor | None) -> None:
        """Say which slot each row of the next pass belongs to; ``None`` if none of them has an adapter."""
        if slots is None:
            self._others = None
        else:
            places = self._place_of_slot.index_select(0, slots)
            self._others = (places[:, None] != self._all_places)[:, None, :, None]
