"""Loads one rank's engine: weights, KV cache and executor."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference import executor
from trtllm_hpc.reference.adapter_places import Sizes
from trtllm_hpc.reference.attention import LayerShape, PagedCache, layer_shapes
from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo, ServeSettings
from trtllm_hpc.reference.executor import Executor
from trtllm_hpc.reference.fusion import can_compile
from trtllm_hpc.reference.leader import Chosen, Logits, Results, no_logits
from trtllm_hpc.reference.lora import Adapters
from trtllm_hpc.reference.sampling import Sampler, to_host
from trtllm_hpc.reference.scheduler import Limits, Step
from trtllm_hpc.reference.weights import load_model
from trtllm_hpc.reference.world import Channel, World, rank_device

_log = logging.getLogger(__name__)


class Engine:
    """One rank's part of a loaded engine: see ``leader.Engine``."""

    def __init__(
        self, info: EngineInfo, executor: Executor, limits: Limits, channel: Channel, *, is_leader: bool
    ) -> None:
        self.info, self.limits, self.channel = info, limits, channel
        self.sizes: Sizes = executor.adapters.sizes if executor.adapters else {}
        self._executor = executor
        self._sampler = (
            Sampler(slots=limits.slots, vocab_size=info.vocab_size, device=executor.device)
            if is_leader
            else None
        )

    @property
    def is_prepared(self) -> bool:
        """Whether nothing is left to prepare."""
        return self._executor.is_prepared

    def compute(self, step: Step) -> Results:
        """Carry out a step and choose the tokens."""
        assert self._sampler is not None, "only rank 0 chooses tokens"
        for admission in step.admitted:
            if admission.request.beam_width == 1:
                self._sampler.admit(admission.slot, admission.request)
        outcome = self._executor.run(step)
        context = {slot: _on_host(logits) for slot, logits in outcome.context_logits.items()}
        rows = outcome.logits
        if rows is None:
            return Results((), no_logits, context, outcome.beams)
        slots = outcome.slots
        device_slots = torch.tensor(slots, dtype=torch.long).to(rows.device, non_blocking=True)
        sampled = to_host(self._sampler.sample(rows, device_slots, slots))
        chosen = [Chosen(*row) for row in zip(slots, *sampled, strict=True)]
        return Results(chosen, lambda row: _on_host(rows[row]), context, outcome.beams)

    def take_part(self, step: Step) -> None:
        """Carry out a step."""
        self._executor.run(step)

    def release(self, slot: int) -> None:
        """Forget the request of a slot."""
        assert self._sampler is not None, "only rank 0 chooses tokens"
        self._sampler.release(slot)

    def close(self) -> None:
        """Free what must be free before the ranks disconnect."""
        self._executor.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _on_host(logits: torch.Tensor) -> Logits:
    array: Logits = logits.float().cpu().numpy()
    return array


@torch.no_grad()
def load(folder: EngineFolder, settings: ServeSettings, world: World) -> Engine:
    """Load this rank's part and prepare it for the first request. Collective.

    Raises StartFailed if there is no engine, it is for another number of ranks, or there is no memory for its
    KV cache.
    """
    channel = Channel(world)
    world.join()
    info = EngineInfo.read(folder)
    if "OMP_NUM_THREADS" not in os.environ:
        # An equal share of the cores: ranks that each start a thread for every core slow each other down.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world.size))
    _log.info("rank %d: Python and the libraries took %.1f s", world.rank, _age_s())
    started = time.perf_counter()
    if os.access(folder.folder, os.W_OK):
        # Triton keeps compiled kernels, named by GPU and its own version, with the engine for the next start.
        os.environ.setdefault("TRITON_CACHE_DIR", str(folder.kernels))
    # A second start only finds the kernels, which takes half as long as the weights.
    kernels = ThreadPoolExecutor(1).submit(can_compile, rank_device())
    adapters = None
    if info.max_lora_rank:
        adapters = Adapters(info.max_lora_rank, slots=info.max_batch_size, rank=world.rank, ranks=world.size)
    model = load_model(folder, info, world, None if adapters is None else adapters.attach)
    executor.prepare(model)
    _log.info("rank %d: weights loaded in %.1f s", world.rank, time.perf_counter() - started)
    layers = layer_shapes(model)
    limits = Limits(
        slots=info.max_batch_size,
        step_tokens=info.max_num_tokens,
        blocks=_lowest(_blocks(model, layers, info, settings)),
        tokens_per_block=info.tokens_per_block,
    )
    blocks, size = limits.blocks, limits.tokens_per_block
    cache = PagedCache(model, layers, blocks=blocks, tokens_per_block=size)
    runner = Executor(
        model,
        cache,
        slots=limits.slots,
        blocks_per_sequence=-(-info.max_seq_len // size),
        adapters=adapters,
    )
    runner.warm_up(has_kernels=_lowest(kernels.result()) > 0)
    _log.info("rank %d: KV cache of %d tokens (%d blocks of %d)", world.rank, blocks * size, blocks, size)
    return Engine(info, runner, limits, channel, is_leader=world.is_leader)


def _age_s() -> float:
    """Seconds since the start of this process: proc(5), field 22 of stat."""
    began = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    return up - began / os.sysconf("SC_CLK_TCK")


def _blocks(model: Any, layers: list[LayerShape], info: EngineInfo, settings: ServeSettings) -> int:
    """Number of KV-cache blocks on this rank: as the settings allow, at most what a full batch can use."""
    tokens, size = info.most_tokens(settings), info.tokens_per_block
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        values = sum(layer.heads * (layer.key_size + layer.value_size) for layer in layers)
        room = free * settings.kv_cache_free_gpu_mem_fraction / (values * model.dtype.itemsize)
        tokens = min(tokens, int(room))
    if tokens < size:
        raise StartFailed(
            f"The KV cache would hold {tokens} tokens, which is less than one block of {size}.",
            hint="raise max_tokens_in_paged_kv_cache or kv_cache_free_gpu_mem_fraction",
        )
    return tokens // size


def _lowest(number: int) -> int:
    """The smallest number of all ranks. Collective."""
    value = torch.tensor([number], dtype=torch.int64)
    if dist.is_initialized():
        dist.all_reduce(value, op=dist.ReduceOp.MIN)
    return int(value.item())
