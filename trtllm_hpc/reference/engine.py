"""The model: loading it, and continuing one prompt. All computing is transformers' and torch's."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference.engine_folder import EngineFolder, EngineInfo
from trtllm_hpc.reference.requests import NO_END, Completion, GenerationRequest
from trtllm_hpc.reference.world import World

_log = logging.getLogger(__name__)


class Engine:
    """A loaded model, or this rank's part of it.

    In a world of several ranks every rank must call ``generate`` with the
    same request: each step of the model is a collective.
    """

    def __init__(self, model: Any, info: EngineInfo) -> None:
        self._model = model
        self.info = info

    @classmethod
    def load(cls, engine: EngineFolder, world: World) -> Engine:
        """Load the engine's weights, each rank its own part.

        Each rank reads only its slices of the one safetensors file: that is
        how transformers loads for tensor parallelism.

        Raises:
            StartFailed: there is no engine, or it is for another world.
        """
        info = EngineInfo.read(engine)
        if world.size != info.world_size:
            raise StartFailed(
                f"The engine in {engine.folder} was built for {info.world_size} ranks; "
                f"{world.size} were started.",
                hint=f"start {info.world_size} ranks or build with --tensor-parallel {world.size}",
            )
        started = time.perf_counter()
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.distributed import DistributedConfig
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        imported = time.perf_counter()
        _share_cores(world)
        where: dict[str, Any]
        if world.size > 1:
            where = {"distributed_config": DistributedConfig(tp_size=info.tensor_parallel)}
        else:
            where = {"device_map": "cuda"} if torch.cuda.is_available() else {}
        model = AutoModelForCausalLM.from_pretrained(
            engine.checkpoint, dtype=getattr(torch, info.dtype), local_files_only=True, **where
        ).eval()
        # The checkpoint's own defaults (sampling, end tokens) would fill what a request leaves open.
        model.generation_config = GenerationConfig()
        _log.info(
            "rank %d: libraries imported in %.1f s, weights loaded in %.1f s",
            world.rank,
            imported - started,
            time.perf_counter() - imported,
        )
        return cls(model, info)

    def generate(self, request: GenerationRequest) -> Completion:
        """Continue one prompt greedily."""
        import torch
        from transformers import GenerationConfig

        prompt = torch.tensor([request.prompt], device=self._model.device)
        output = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=GenerationConfig(
                max_new_tokens=request.max_new_tokens,
                do_sample=False,
                eos_token_id=None if request.end_id == NO_END else request.end_id,
                pad_token_id=max(request.pad_id, 0),
                return_dict_in_generate=True,
                output_logits=request.return_log_probs,
            ),
        )
        new_tokens = output.sequences[0, len(request.prompt) :]
        return Completion(tuple(new_tokens.tolist()), _log_probs(output, new_tokens, request))


def _log_probs(output: Any, new_tokens: Any, request: GenerationRequest) -> tuple[float, ...]:
    if not request.return_log_probs:
        return (0.0,) * len(new_tokens)
    import torch

    logits = torch.cat(output.logits).float()
    chosen = torch.log_softmax(logits, dim=-1).gather(1, new_tokens[:, None].to(logits.device))
    return tuple(chosen[:, 0].tolist())


def _share_cores(world: World) -> None:
    """Give each rank its share of the cores, as if all ranks ran here; OMP_NUM_THREADS decides otherwise.

    Ranks that each start a thread a core slow each other down several times.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world.size))
