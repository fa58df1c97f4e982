"""An engine that computes a model with transformers' continuous batching.

The library has the scheduler, the paged KV cache, and the tensor parallelism. This module adds settings for
each request that the library has only for a whole batch (seed, stop words), and ends all ranks when one is
lost.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.distributed import DistributedConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)

from trtllm_hpc.errors import RequestFailed, StartFailed
from trtllm_hpc.reference.engine_folder import MODEL, REBUILD, EngineInfo
from trtllm_hpc.reference.generation import Die, Generated, GenerationRequest, Hear, Load, check_room
from trtllm_hpc.reference.world import Channel, World, first_sentence

_log = logging.getLogger(__name__)


class Chooser(ContinuousBatchingLogitsProcessorList):  # type: ignore[misc]
    """Chooses the next token of each request in a step by the request's own settings.

    The scores of all other tokens become minus infinity, so that the library takes the chosen token. The
    choice is the same on every rank and in any batch, because it depends on the seed and the position only.
    """

    def __init__(self, load: Load) -> None:
        super().__init__(transformers.LogitsProcessorList())
        self.do_processing = True
        self.step = load
        """The engine's limits, the size of the last step, and the number of steps."""
        self._states: list[Any] = []

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Accept any arguments: they are the request itself."""

    def prepare_tensor_args(self, requests_in_batch: list[Any], arg_storage: torch.Tensor) -> torch.Tensor:
        """Keep the requests of the next step, and set the tokens that end them."""
        context = [future.query_length for future in requests_in_batch if future.query_length > 1]
        self.step = replace(
            self.step,
            scheduled=len(requests_in_batch),
            context=len(context),
            context_tokens=sum(context),
            generation_requests=len(requests_in_batch) - len(context),
            iteration=self.step.iteration + 1,
        )
        self._states = [future.state for future in requests_in_batch if future.has_new_token]
        for state in self._states:
            state._eos_token_ids = self._ends(state)
        return arg_storage

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor, logits_processor_args: torch.Tensor
    ) -> torch.Tensor:
        """Return scores [requests, vocabulary] that are minus infinity except for one token in each row."""
        chosen = torch.full_like(scores, -torch.inf)
        for row, state in enumerate(self._states):
            request, logits = state.logit_processor_kwargs["request"], scores[row]
            token = self._token(request, state, logits)
            chosen[row, token] = 0
            if request.return_log_probs:
                state.logprobs.append(float(logits[token] - logits.logsumexp(0)))
        return chosen

    @staticmethod
    def _token(request: GenerationRequest, state: Any, logits: torch.Tensor) -> int:
        processors = transformers.LogitsProcessorList()
        place = len(state.initial_tokens) + len(state.generated_tokens) - len(request.prompt)
        if request.repetition_penalty != 1:
            processors.append(transformers.RepetitionPenaltyLogitsProcessor(request.repetition_penalty))
        if place < request.min_new_tokens and request.end_id >= 0:
            length = len(request.prompt)
            processors.append(
                transformers.MinNewTokensLengthLogitsProcessor(length, request.min_new_tokens, request.end_id)
            )
        if request.top_k != 1:
            processors.append(transformers.TemperatureLogitsWarper(request.temperature))
            if request.top_k:
                processors.append(transformers.TopKLogitsWarper(request.top_k))
            if request.top_p < 1:
                processors.append(transformers.TopPLogitsWarper(request.top_p))
        if processors:
            tokens = torch.tensor([state.initial_tokens + state.generated_tokens], device=logits.device)
            logits = processors(tokens, logits[None])[0]
        if request.top_k == 1:
            return int(logits.argmax())
        seed = random.Random(f"{request.seed} {place}").getrandbits(63)
        generator = torch.Generator(logits.device).manual_seed(seed)
        return int(logits.softmax(0).multinomial(1, generator=generator))

    @staticmethod
    def _ends(state: Any) -> set[int]:
        """Return the end token, and the last token of each stop word whose other tokens precede this place.

        A stop word may begin in the prompt, as in TensorRT-LLM.
        """
        request, tokens = state.logit_processor_kwargs["request"], None
        ends = {request.end_id}
        for *start, last in request.stop_words:
            tokens = tokens or [*state.initial_tokens, *state.generated_tokens]
            if not start or tokens[-len(start) :] == start:
                ends.add(last)
        return ends


class ModelEngine:
    """One rank of the engine: see ``generation.RankEngine``. Raises StartFailed if it cannot be loaded."""

    def __init__(
        self, folder: Path, info: EngineInfo, world: World, *, max_queue_size: int, max_tokens: int
    ) -> None:
        self._rank, self._max_queue_size = world.rank, max_queue_size
        self._channel = Channel(world)
        if world.size > 1:
            world.join()
        began = time.monotonic()
        model = _load(folder, info.dtype, world)
        _log.info("rank %d: weights loaded in %.1f s", world.rank, time.monotonic() - began)
        # The library allocates one block more than a sequence fills.
        size = info.tokens_per_block
        full = info.max_batch_size * (info.max_seq_len // size + 1)
        blocks = min(full, max_tokens // size + 1) if max_tokens else full
        self._manager = model.init_continuous_batching(
            transformers.GenerationConfig(do_sample=False, eos_token_id=-1),
            transformers.ContinuousBatchingConfig(
                block_size=size,
                num_blocks=blocks,
                max_batch_tokens=max(info.max_num_tokens, info.max_batch_size),
                max_requests_per_batch=info.max_batch_size,
                max_blocks_per_request=0,
                allow_block_sharing=False,
                use_async_batching=False,
                use_cuda_graph=False,
                safety_margin=0.0,
                cpu_group_timeout=None,
            ),
        )
        self._chooser = Chooser(Load(info.max_batch_size, blocks, size))
        self._manager.logit_processor = self._chooser
        self._manager.start()
        self._loop = self._manager._generation_thread

    def start(self, hear: Hear, die: Die) -> None:
        """Pass on outputs in a separate thread; if several are ready for a request, the last of them."""
        self._watch(die)
        outputs: queue.Queue[Any] = self._manager.output_router.output_queue

        def pass_on() -> None:
            while (output := outputs.get()) is not None:
                ready = {output.request_id: output}
                while not outputs.empty() and outputs.queue[0] is not None:
                    output = outputs.get()
                    ready[output.request_id] = output
                for number, newest in ready.items():
                    progress = Generated(newest.generated_tokens, newest.logprobs, newest.is_finished())
                    error = newest.error
                    failed = None if error is None else RequestFailed(f"The request failed: {error}")
                    hear(int(number), failed or progress)

        self._passing_on = threading.Thread(target=pass_on, name="outputs", daemon=True)
        self._passing_on.start()

    def submit(self, number: int, request: GenerationRequest) -> None:
        """Queue a request."""
        load = self.load()
        room = (load.blocks_max - 1) * load.tokens_per_block
        total = len(request.prompt) + request.max_new_tokens
        if total > room:
            raise RequestFailed(
                f"The request may need {total} tokens in the KV cache, which has room for {room}. "
                "Ask for fewer tokens, or raise kv_cache.max_tokens."
            )
        check_room(load, self._max_queue_size)
        self._manager.add_request(
            list(request.prompt),
            request_id=str(number),
            max_new_tokens=request.max_new_tokens,
            streaming=True,
            request=request,
        )

    def cancel(self, number: int) -> None:
        """End a request and free its blocks."""
        self._manager.cancel_request(str(number))

    def load(self) -> Load:
        """Return the engine's load now."""
        processor, step = self._manager.batch_processor, self._chooser.step
        if processor is None:
            return step
        waiting = len(processor.scheduler.waiting_requests) + self._manager.input_queue.qsize()
        running = len(processor.scheduler.active_requests)
        used = step.blocks_max - processor.cache.get_num_free_blocks()
        if not running:
            step = replace(step, scheduled=0, context=0, context_tokens=0, generation_requests=0)
        return replace(step, active=running + waiting, waiting=waiting, blocks_used=used)

    def stop(self) -> None:
        """Finish the queued requests, and stop the other ranks."""
        self._manager.stop()
        self._manager.output_router.output_queue.put(None)
        self._passing_on.join()
        self._channel.send(b"")
        self._channel.close()

    def follow(self, die: Die) -> None:
        """Take part in the leader's steps until it stops."""
        self._watch(die)
        self._loop.join()
        if not self._channel.receive():
            self._channel.close()

    def _watch(self, die: Die) -> None:
        """Call ``die`` when another rank is lost or this rank's loop fails: no rank can continue alone."""
        self._channel.watch(die)

        def look() -> None:
            self._loop.join()
            status = self._manager.background_thread_status
            if status.tp_status != status.FLUSH_AND_STOP:
                error = status.fatal_error or RuntimeError("a collective failed")
                die(f"Rank {self._rank} lost another rank or failed: {first_sentence(error)}")

        threading.Thread(target=look, name="loop", daemon=True).start()


def _load(folder: Path, dtype: str, world: World) -> Any:
    """Return this rank's part of the model. Raises StartFailed if its files cannot be read."""
    transformers.utils.logging.disable_progress_bar()
    split = {"distributed_config": DistributedConfig(tp_plan="auto")} if world.size > 1 else {}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder / MODEL,
            local_files_only=True,
            dtype=getattr(torch, dtype),
            attn_implementation="paged|sdpa",
            **split,
        )
        return model.to("cuda" if torch.cuda.is_available() else "cpu")
    except Exception as error:  # transformers and its readers raise anything
        raise StartFailed(
            f"{folder / MODEL} cannot be read: {first_sentence(error)}", hint=REBUILD
        ) from error
