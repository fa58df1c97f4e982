"""Carries out the steps: the forward passes of the model, on every rank.

A step decodes one token for every running sequence in one pass, and computes the prompts of new ones in
others. The inputs of a pass follow from the step alone, so that all ranks do the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trtllm_hpc.reference import attention, beams
from trtllm_hpc.reference.attention import PADDING_BLOCK, PagedCache
from trtllm_hpc.reference.beams import BeamSearch
from trtllm_hpc.reference.fusion import fuse
from trtllm_hpc.reference.generation import GenerationRequest, Progress
from trtllm_hpc.reference.graphs import DecodeGraphs, DecodeInputs, PromptGraphs, PromptInputs
from trtllm_hpc.reference.lora import Adapters
from trtllm_hpc.reference.scheduler import Admission, Chunk, Decode, Step
from trtllm_hpc.reference.stop_words import to_device

MOST_ALONE = 4
"""Prompts of a step that are computed by graphs, one by one; one pass takes as long as four graphs."""

MOST_ALONE_TOKENS = 512
"""Tokens of each of these, at most."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The results of a step."""

    logits: torch.Tensor | None
    """[rows, vocabulary]: one row for each slot in ``slots``. Valid until the next step."""
    slots: tuple[int, ...]
    """The decoded slots, then those whose prompt is now complete."""
    context_logits: dict[int, torch.Tensor]
    """By slot, [chunk's tokens, vocabulary], for the requests that want them."""
    beams: dict[int, Progress]
    """By slot, for the beam searches that have ended."""


class Executor:
    """One rank's model, its KV cache and the block tables of the running sequences; perhaps LoRA adapters."""

    def __init__(
        self,
        model: Any,
        cache: PagedCache,
        *,
        slots: int,
        blocks_per_sequence: int,
        adapters: Adapters | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self.device: torch.device = model.device
        self.adapters = adapters
        self._admitted: dict[int, Admission] = {}
        self._searches: dict[int, BeamSearch] = {}
        # One more row than slots, for the padding rows of a CUDA graph.
        self._tables = torch.full(
            (slots + 1, blocks_per_sequence), PADDING_BLOCK, dtype=torch.long, device=self.device
        )
        self._padding_slot = slots
        # By whether a row has an adapter: a graph without adapters saves their matrix products.
        self._graphs: dict[bool, DecodeGraphs] = {}
        self._prompt_graphs: PromptGraphs | None = None
        if self.device.type == "cuda":
            self._prompt_graphs = PromptGraphs(
                self._prompt_pass,
                most_tokens=min(MOST_ALONE_TOKENS, blocks_per_sequence * cache.tokens_per_block),
                most_blocks=blocks_per_sequence,
                tokens_per_block=cache.tokens_per_block,
            )
            for with_adapters in (False,) if adapters is None else (False, True):
                decode_pass = partial(self._decode_pass, with_adapters=with_adapters)
                self._graphs[with_adapters] = DecodeGraphs(
                    decode_pass,
                    most_rows=slots,
                    most_blocks=blocks_per_sequence,
                    tokens_per_block=cache.tokens_per_block,
                )

    @torch.no_grad()
    def run(self, step: Step) -> Outcome:
        """Carry out a step. Collective."""
        if step.prepares:
            self._record_next()
        for slot in step.released:
            self._release(slot)
        for adapter in step.adapters:
            assert self.adapters is not None, "an engine without LoRA is sent no adapter"
            self.adapters.load(adapter)
        for admission in step.admitted:
            self._admit(admission)
        parts: list[torch.Tensor] = []
        if step.decodes:
            parts.append(self._decode(step.decodes))
        read: list[int] = []
        context: dict[int, torch.Tensor] = {}
        alone, together = self._ways(step.chunks)
        for chunk in alone:
            assert self._prompt_graphs is not None
            tokens = self._request(chunk.slot).prompt[chunk.start : chunk.end]
            logits = self._prompt_graphs.run(tokens, chunk.start, chunk.slot)
            if self._is_whole(chunk):
                parts.append(logits)
                read.append(chunk.slot)
        for chunks in self._passes(together):
            logits = self._compute_prompts(chunks)
            for chunk, rows in zip(chunks, logits, strict=True):
                if self._request(chunk.slot).return_context_logits:
                    context[chunk.slot] = rows[-chunk.tokens :]
            ended = [row for row, chunk in enumerate(chunks) if self._is_whole(chunk)]
            if ended:
                parts.append(logits[:, -1].index_select(0, to_device(torch.tensor(ended), self.device)))
                read += [chunks[row].slot for row in ended]
        slots = (*(decode.slot for decode in step.decodes), *read)
        found = {slot: self._advance(slot) for slot in step.beams}
        return Outcome(
            torch.cat(parts) if len(parts) > 1 else next(iter(parts), None),
            slots,
            context,
            {slot: result for slot, result in found.items() if result is not None},
        )

    @torch.no_grad()
    def warm_up(self, *, has_kernels: bool) -> None:
        """Prepare what the first requests would otherwise wait for. Collective.

        If one rank cannot compile fused kernels, all must leave them out: they must stay in step.
        """
        if has_kernels:
            fuse(self._model)
        for graphs in self._all_graphs():
            graphs.record_usual()

    @property
    def is_prepared(self) -> bool:
        """Whether there is nothing left that a step with ``prepares`` could prepare."""
        return all(graphs.is_complete for graphs in self._all_graphs())

    def close(self) -> None:
        """Forget the CUDA graphs, before the ranks disconnect: NCCL waits for recorded graphs."""
        for graphs in self._all_graphs():
            graphs.close()

    def _all_graphs(self) -> Iterator[DecodeGraphs | PromptGraphs]:
        yield from self._graphs.values()
        if self._prompt_graphs is not None:
            yield self._prompt_graphs

    def _record_next(self) -> None:
        incomplete = next((graphs for graphs in self._all_graphs() if not graphs.is_complete), None)
        if incomplete is not None:
            incomplete.record_next()

    def _release(self, slot: int) -> None:
        admission = self._admitted.pop(slot)
        if (search := self._searches.pop(slot, None)) is not None:
            search.close()
        if admission.request.lora is not None:
            # An adapter may have made infinite numbers, which the next owner's mask could not hide.
            self._cache.forget([block for row in admission.blocks for block in row])

    def _admit(self, admission: Admission) -> None:
        self._admitted[admission.slot] = admission
        if self.adapters is not None:
            self.adapters.admit(admission.slot, admission.request)
        if admission.request.beam_width > 1:
            self._searches[admission.slot] = BeamSearch(self._model, self._cache, admission)
            return
        blocks = admission.blocks[0]
        # Fill the row with its own last block. A mask hides what is read there, but only if it is finite,
        # which must not depend on another request.
        rest = blocks[-1:] * (self._tables.shape[1] - len(blocks))
        self._tables[admission.slot] = to_device(torch.tensor(blocks + rest), self.device)

    def _have_adapters(self, slots: Iterable[int]) -> bool:
        return any(self._request(slot).lora is not None for slot in slots)

    def _aim(self, slots: torch.Tensor, *, with_adapters: bool) -> None:
        """Set the slots of the rows of the next pass."""
        if self.adapters is not None:
            self.adapters.aim(slots if with_adapters else None)

    def _advance(self, slot: int) -> Progress | None:
        rows = torch.full((self._request(slot).beam_width,), slot, device=self.device)
        self._aim(rows, with_adapters=self._have_adapters([slot]))
        return self._searches[slot].advance()

    def _request(self, slot: int) -> GenerationRequest:
        return self._admitted[slot].request

    def _decode(self, decodes: Sequence[Decode]) -> torch.Tensor:
        """Decode one token of each sequence; return logits [rows, vocabulary]."""
        longest = max(decode.position for decode in decodes) + 1
        blocks = -(-longest // self._cache.tokens_per_block)
        rows = [(decode.slot, decode.token, decode.position) for decode in decodes]
        with_adapters = self._have_adapters(decode.slot for decode in decodes)
        if self._graphs:
            return self._graphs[with_adapters].run(rows, blocks, padding=(self._padding_slot, 0, 0))
        inputs = DecodeInputs(*torch.tensor(rows, dtype=torch.long, device=self.device).unbind(1))
        return self._decode_pass(inputs, blocks, with_adapters=with_adapters, longest=longest)

    def _decode_pass(
        self, inputs: DecodeInputs, blocks: int, *, with_adapters: bool, longest: int | None = None
    ) -> torch.Tensor:
        """Run a decode pass; on GPUs it is recorded into a graph, so everything in it stays on the device.

        With ``longest`` it reads that number of tokens of each row, else whole blocks.
        """
        self._aim(inputs.slots, with_adapters=with_adapters)
        size = self._cache.tokens_per_block
        tables = self._tables[:, :blocks].index_select(0, inputs.slots)
        positions = inputs.positions[:, None]
        keys = torch.arange(longest or blocks * size, device=self.device)
        reads = tables if longest is None else self._places(tables, keys.expand(len(tables), -1))
        self._cache.aim(self._places(tables, positions).flatten(), reads, by_token=longest is not None)
        seen = keys <= positions
        mask = torch.zeros(seen.shape, dtype=self._model.dtype, device=self.device)
        mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)
        return self._forward(inputs.tokens[:, None], positions, mask[:, None, None, :], last_only=True)[:, -1]

    def _places(self, tables: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Indices into the pool of the tokens at ``positions``, [rows, tokens]."""
        size = self._cache.tokens_per_block
        return tables.gather(1, positions // size) * size + positions % size

    def _prompt_pass(self, inputs: PromptInputs, blocks: int) -> torch.Tensor:
        """Run a pass over a part of one prompt; it is recorded into a graph."""
        self._aim(inputs.slot, with_adapters=False)
        tables = self._tables[:, :blocks].index_select(0, inputs.slot)
        positions = inputs.positions[None]
        write = torch.where(inputs.real.bool(), self._places(tables, positions), PADDING_BLOCK)
        self._cache.aim(write.flatten(), tables)
        # Each token sees all earlier ones of its sequence. Padding sees the first one: some key is needed.
        keys = torch.arange(blocks * self._cache.tokens_per_block, device=self.device)
        mask = (keys <= positions[:, :, None])[:, None]
        return self._forward(inputs.tokens[None], positions, mask, last_only=True)[:, -1]

    def _is_whole(self, chunk: Chunk) -> bool:
        """Whether the chunk is the last one of its prompt."""
        return chunk.end == len(self._request(chunk.slot).prompt)

    def _ways(self, chunks: Sequence[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
        """The chunks to compute one by one through graphs, and those to compute together.

        A pass of many prompts takes as long as launching its kernels, or
        longer; a graph of a single one a fraction of that.
        """
        can_be_alone = [
            chunk
            for chunk in chunks
            if chunk.tokens <= MOST_ALONE_TOKENS
            and not self._request(chunk.slot).return_context_logits
            and self._request(chunk.slot).lora is None
        ]
        if self._prompt_graphs is None or len(can_be_alone) > MOST_ALONE:
            return [], list(chunks)
        return can_be_alone, [chunk for chunk in chunks if chunk not in can_be_alone]

    def _passes(self, chunks: Sequence[Chunk]) -> list[list[Chunk]]:
        """Group chunks into passes, by whether they need all logits and whether they begin a prompt."""
        groups: dict[tuple[bool, bool], list[Chunk]] = {}
        for chunk in chunks:
            wants_all = self._request(chunk.slot).return_context_logits
            groups.setdefault((wants_all, chunk.start == 0), []).append(chunk)
        return list(groups.values())

    def _compute_prompts(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Logits [rows, 1 or tokens, vocabulary] of prompts, padded on the left so that all end together."""
        width = max(chunk.tokens for chunk in chunks)
        tokens = torch.zeros((len(chunks), width), dtype=torch.long)
        positions = torch.zeros((len(chunks), width), dtype=torch.long)
        real = torch.zeros((len(chunks), width), dtype=torch.bool)
        for row, chunk in enumerate(chunks):
            prompt = self._request(chunk.slot).prompt
            tokens[row, -chunk.tokens :] = torch.tensor(prompt[chunk.start : chunk.end])
            positions[row, -chunk.tokens :] = torch.arange(chunk.start, chunk.end)
            real[row, -chunk.tokens :] = True
        is_padded = not bool(real.all())
        tokens, positions, real = (to_device(item, self.device) for item in (tokens, positions, real))
        longest = max(chunk.end for chunk in chunks)
        blocks = -(-longest // self._cache.tokens_per_block)
        slots = to_device(torch.tensor([chunk.slot for chunk in chunks]), self.device)
        self._aim(slots, with_adapters=self._have_adapters(chunk.slot for chunk in chunks))
        tables = self._tables[:, :blocks].index_select(0, slots)
        write = torch.where(real, self._places(tables, positions), PADDING_BLOCK)
        is_beginning = chunks[0].start == 0
        self._cache.aim(write.flatten(), None if is_beginning else tables)
        mask: torch.Tensor | None = None
        if not is_beginning:
            # Each token sees all earlier ones of its sequence.
            keys = torch.arange(blocks * self._cache.tokens_per_block, device=self.device)
            mask = (keys <= positions[:, :, None])[:, None]
        elif is_padded:  # otherwise torch's own causal mask is faster
            mask = self._beginning_mask(real)
        wants_all = self._request(chunks[0].slot).return_context_logits
        return self._forward(tokens, positions, mask, last_only=not wants_all)

    def _beginning_mask(self, real: torch.Tensor) -> torch.Tensor:
        """Mask [rows, 1, tokens, tokens] of a pass that reads only its own tokens."""
        width = real.shape[1]
        causal = torch.ones((width, width), dtype=torch.bool, device=self.device).tril()
        # Padding attends to itself: a row without any key would be a division by zero.
        itself = torch.eye(width, dtype=torch.bool, device=self.device)
        return ((causal & real[:, None, :]) | itself)[:, None]

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, *, last_only: bool
    ) -> torch.Tensor:
        output = self._model(
            tokens,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1 if last_only else 0,
        )
        logits: torch.Tensor = output.logits
        return logits


def prepare(model: Any) -> None:
    """Make a model use our attention, and pause between the passes of a beam search."""
    beams.attach(model)
    attention.use(model)
