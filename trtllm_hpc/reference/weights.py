"""Writes the weight files of an engine, one for each rank, and loads a rank's model from its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES
from transformers.utils import logging as transformers_logging

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference import sharding
from trtllm_hpc.reference.engine_config import REBUILD, EngineFolder, EngineInfo
from trtllm_hpc.reference.world import World, rank_device


def write(model: Any, engine: EngineFolder, ranks: int) -> None:
    """Write the model's configuration, and each rank's slices of the weights."""
    model.config.save_pretrained(engine.model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = _kept_buffers(model)
    for rank in range(ranks):
        tensors = {
            name: sharding.slice_of(name, parameters[name].data, model.tp_plan, rank, ranks)
            for name in sharding.stored_names(model, ranks)
        }
        save_file({**tensors, **buffers}, engine.weights(rank), metadata={"format": "pt"})


def _kept_buffers(model: Any) -> dict[str, Any]:
    """Buffers that are stored with the weights; the others are computed from the configuration."""
    stored = model.state_dict()
    return {name: buffer.contiguous() for name, buffer in model.named_buffers() if name in stored}


def load_model(
    engine: EngineFolder, info: EngineInfo, world: World, adapt: Callable[[Any], None] | None = None
) -> Any:
    """Load this rank's part of the model, ready for ``forward`` under ``torch.no_grad``.

    Only the rank's own slices are ever in memory. On a CPU they stay in the mapped file, which must not
    change while the model is used. With several ranks, which must be connected, every forward pass is a
    collective. ``adapt`` may change how layers compute this rank's part, before they sum over the ranks.
    Raises StartFailed if the engine is for another number of ranks, or this rank's file is missing or of
    another engine.
    """
    if world.size != info.world_size:
        raise StartFailed(
            f"The engine in {engine.folder} was built for {info.world_size} ranks; "
            f"{world.size} were started.",
            hint=f"start {info.world_size} ranks or build with --tensor-parallel {world.size}",
        )
    file = engine.weights(world.rank)
    if not file.is_file():
        raise StartFailed(f"The weights of rank {world.rank} are missing: there is no {file}.", hint=REBUILD)
    transformers_logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(engine.model, local_files_only=True)
    with _parameters_without_memory():
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, info.dtype))
    device = rank_device()
    _fill(model, engine, world, device)
    model.to(device).eval().requires_grad_(False)
    if adapt is not None:
        adapt(model)
    if world.size > 1:
        _join_ranks(model, device.type, world.size)
    # The model's own defaults (sampling, end tokens) would replace values that a request leaves out.
    model.generation_config = GenerationConfig()
    return model


@contextmanager
def _parameters_without_memory() -> Iterator[None]:
    """Move each parameter to the meta device as soon as it is made.

    Buffers stay: no file has those that a model computes from its
    configuration, and building the whole model on the meta device would lose them.
    """

    def forget(_module: Any, _name: str, parameter: Any) -> Any:
        if parameter is None or parameter.is_meta:
            return None
        return torch.nn.Parameter(parameter.data.to("meta"), requires_grad=False)

    hook = register_module_parameter_registration_hook(forget)
    try:
        yield
    finally:
        hook.remove()


def _fill(model: Any, engine: EngineFolder, world: World, device: Any) -> None:
    """Load this rank's tensors, straight from the file to the device."""
    path = engine.weights(world.rank)
    shapes = {
        name: sharding.slice_shape(name, tuple(tensor.shape), model.tp_plan, world.size)
        for name, tensor in model.named_parameters(remove_duplicate=False)
    }
    wanted = {name: shapes[name] for name in sharding.stored_names(model, world.size)}
    wanted |= {name: tuple(buffer.shape) for name, buffer in _kept_buffers(model).items()}
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.offset_keys()}
            wrong = next((it for it in {**wanted, **found} if wanted.get(it) != found.get(it)), None)
            if wrong is not None:
                raise StartFailed(
                    f"{path} is not of this engine: {wrong} has the shape {found.get(wrong)}, "
                    f"not {wanted.get(wrong)}.",
                    hint=REBUILD,
                )
            for name in wanted:
                _put(model, name, torch.nn.Parameter(file.get_tensor(name), requires_grad=False))
    except (SafetensorError, OSError) as error:
        raise StartFailed(f"{path} cannot be read: {error}", hint=REBUILD) from error
    for name, source in model.all_tied_weights_keys.items():
        if name not in wanted:
            _put(model, name, model.get_parameter(source))


def _put(model: Any, name: str, parameter: Any) -> None:
    module, _, leaf = name.rpartition(".")
    owner = model.get_submodule(module)
    if leaf in owner._buffers:
        owner._buffers[leaf] = parameter.data
    else:
        owner._parameters[leaf] = parameter


def _join_ranks(model: Any, device_type: str, ranks: int) -> None:
    """Make the split layers exchange their results, by transformers' own forward passes.

    The parameters are plain tensors, not distributed ones; the forward passes
    then do one sum over the ranks for each layer and nothing else.
    """
    mesh = init_device_mesh(device_type, (ranks,), mesh_dim_names=("tp",))
    for name, module in model.named_modules():
        if sharding.is_cut(name, model.tp_plan):
            ALL_PARALLEL_STYLES[sharding.style_of(name, model.tp_plan)].install_forward(module, mesh)
