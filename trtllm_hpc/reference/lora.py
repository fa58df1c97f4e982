"""LoRA adapters, each for the rows of its own requests in a shared batch.

All adapters are in two matrices for each linear layer. One product gives the low-rank values of every
adapter, those of other rows' adapters are set to zero, and a second product gives the outputs. So a pass
needs the same few kernels for any mix of adapters, does not wait for the host, and can be recorded into a
CUDA graph. To a row without an adapter, zeros are added.

The layout of an adapter's tensors is in ``adapter_places``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import linear

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference import sharding
from trtllm_hpc.reference.adapter_places import PLACES, QKV, Key, Size, Sizes, changed_layers
from trtllm_hpc.reference.generation import GenerationRequest, LoraRequest
from trtllm_hpc.reference.scheduler import Adapter

_MODULES = {1: "q_proj", 2: "k_proj", 3: "v_proj", 4: "o_proj", 5: "gate_proj", 6: "down_proj", 7: "up_proj"}

_LAYER = re.compile(rf"\.layers\.(\d+)\.(?:self_attn|mlp)\.({'|'.join(_MODULES.values())})$")


def _parts(lora: LoraRequest, sizes: Sizes) -> Iterator[tuple[Key, torch.Tensor, torch.Tensor]]:
    """Split the tensors of a checked request: two matrices for each layer, inwards and outwards.

    Their product is added to the layer's weight; they are [rank, inputs] and [outputs, rank].
    """
    assert lora.weights is not None and lora.config is not None
    for row, (module, layer, rank) in zip(lora.weights, lora.config.tolist(), strict=True):
        size = sizes[module, layer]
        values = torch.from_numpy(row[: size.values(rank)])
        inwards = values[: rank * size.inputs].view(rank, size.inputs)
        outwards = values[rank * size.inputs :].view(size.outputs, rank)
        keys = changed_layers((module, layer))
        for key, part in zip(keys, torch.split(outwards, [sizes[key].outputs for key in keys]), strict=True):
            yield key, inwards, part


class _Layer:
    """This rank's slices of all adapters for one linear layer."""

    def __init__(self, module: torch.nn.Linear, cut: int | None, rank: int) -> None:
        outputs, inputs = module.weight.shape
        self._cut = cut
        self._rank = rank
        self._inwards = module.weight.new_zeros(PLACES, rank, inputs)
        self._outwards = module.weight.new_zeros(PLACES, rank, outputs)

    def clear(self, place: int) -> None:
        self._inwards[place] = 0
        self._outwards[place] = 0

    def put(self, place: int, inwards: torch.Tensor, outwards: torch.Tensor, rank: int, ranks: int) -> None:
        """Store this rank's slices of an adapter."""
        if self._cut == 0:
            outwards = outwards.chunk(ranks, 0)[rank]
        if self._cut == 1:
            inwards = inwards.chunk(ranks, 1)[rank]
        used = inwards.shape[0]
        self._inwards[place, :used] = inwards.to(self._inwards)
        self._outwards[place, :used] = outwards.T.to(self._outwards)

    def delta(self, inputs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """What the adapters add to the layer's output for ``inputs``, [rows, tokens, inputs].

        ``others``, [rows, 1, places, 1], is true for adapters other than the row's.
        """
        low = linear(inputs, self._inwards.flatten(0, 1))
        own = low.view(*low.shape[:-1], PLACES, self._rank).masked_fill(others, 0)
        return torch.matmul(own.flatten(-2), self._outwards.flatten(0, 1))


class Adapters:
    """One rank's slices of all adapters, and the adapter of each slot of the batch.

    Their memory is allocated when the model is loaded: ``PLACES`` times ``max_rank`` rows and columns for
    each layer that they can change. Padding has one more slot, without an adapter.
    """

    def __init__(self, max_rank: int, *, slots: int, rank: int, ranks: int) -> None:
        self._max_rank = max_rank
        self._slots = slots
        self._rank = rank
        self._ranks = ranks
        self._layers: dict[Key, _Layer] = {}
        self._place_of_task: dict[int, int] = {}
        self._others: torch.Tensor | None = None
        self.sizes: dict[Key, Size] = {}

    def attach(self, model: Any) -> None:
        """Make the model's layers add the adapters' part.

        Must be called before the layers are made to sum over the ranks, so that a rank's part of an adapter
        is summed, too. Raises StartFailed if no layer can be changed.
        """
        numbers = {name: number for number, name in _MODULES.items()}
        for name, module in model.named_modules():
            found = _LAYER.search(name)
            if found and isinstance(module, torch.nn.Linear):
                self._attach(name, module, (numbers[found[2]], int(found[1])), model.tp_plan)
        if not self._layers:
            raise StartFailed(
                f"LoRA adapters are not supported for models of type {model.config.model_type}.",
                hint="build the engine with engine.max_lora_rank: 0",
            )
        for layer in {layer for _, layer in self.sizes}:
            parts = [self.sizes.get(key) for key in changed_layers((QKV, layer))]
            if all(parts):
                outputs = sum(part.outputs for part in parts if part)
                self.sizes[QKV, layer] = Size(self.sizes[1, layer].inputs, outputs)
        self._place_of_slot = torch.full((self._slots + 1,), -1, device=model.device)
        self._all_places = torch.arange(PLACES, device=model.device)

    def _attach(self, name: str, module: torch.nn.Linear, key: Key, plan: dict[str, str]) -> None:
        outputs, inputs = module.weight.shape
        cut = sharding.cut_dimension(f"{name}.weight", (outputs, inputs), plan, self._ranks)
        self.sizes[key] = Size(
            inputs * (self._ranks if cut == 1 else 1), outputs * (self._ranks if cut == 0 else 1)
        )
        layer = self._layers[key] = _Layer(module, cut, self._max_rank)
        forward = module.forward

        def changed(input: torch.Tensor) -> torch.Tensor:
            output = forward(input)
            return output if self._others is None else output + layer.delta(input, self._others)

        module.forward = changed  # type: ignore[method-assign]

    def load(self, adapter: Adapter) -> None:
        """Load a checked adapter into its place."""
        kept = {task: place for task, place in self._place_of_task.items() if place != adapter.place}
        self._place_of_task = {**kept, adapter.lora.task_id: adapter.place}
        for layer in self._layers.values():
            layer.clear(adapter.place)
        for key, inwards, outwards in _parts(adapter.lora, self.sizes):
            self._layers[key].put(adapter.place, inwards, outwards, self._rank, self._ranks)

    def admit(self, slot: int, request: GenerationRequest) -> None:
        """Set the adapter of a slot."""
        self._place_of_slot[slot] = -1 if request.lora is None else self._place_of_task[request.lora.task_id]

    def aim(self, slots: torch.Tensor | None) -> None:
        """Set the slot of each row of the next pass; ``None`` if no row has an adapter."""
        if slots is None:
            self._others = None
        else:
            places = self._place_of_slot.index_select(0, slots)
            self._others = (places[:, None] != self._all_places)[:, None, :, None]
