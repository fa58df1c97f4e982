"""The two engines of an encoder-decoder model, and what differs between their command lines.

Source: tensorrtllm_backend v0.12.0 and v0.16.0, docs/encoder_decoder.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.command_lines.option_table import OptionRequest, plugin, same
from trtllm_hpc.tensorrt_llm.releases.families import Family

Part = Literal["encoder", "decoder"]
PARTS: Sequence[Part] = ("encoder", "decoder")

DECODER_ONLY = (
    "engine.max_seq_len",
    "engine.max_encoder_input_len",
    "engine.kv_cache_type",
    "engine.gather_context_logits",
    "engine.gather_generation_logits",
    "engine.paged_context_fmha",
)
"""Keys that mean nothing to an encoder: it generates no answer and keeps no KV cache."""
DECODER_START = 1
"""Length of a decoder's prompt: one token, which starts the answer."""


def adapted(
    requests: Sequence[OptionRequest], job: JobFile, family: Family, part: Part
) -> Iterator[OptionRequest]:
    """Return the requests for one of the two engines."""
    for request in requests:
        if request.key == "engine.max_input_len" or (part == "encoder" and request.key in DECODER_ONLY):
            continue
        yield request
    yield from _encoder(job) if part == "encoder" else _decoder(job)
    if job.engine.context_fmha is None and family.context_fmha is not None:
        yield OptionRequest("model.family", family.context_fmha, same("--context_fmha", "build"))
    if "moe" not in job.engine.plugins:
        # Neither part has experts, and upstream's guides switch the plugin off.
        yield replace(plugin("engine.encoder_decoder", "moe", "disable"), needed=False)


def _encoder(job: JobFile) -> Iterator[OptionRequest]:
    key = "max_encoder_input_len" if job.engine.max_encoder_input_len else "max_input_len"
    longest = getattr(job.engine, key)
    if longest is not None:
        yield OptionRequest(f"engine.{key}", longest, same("--max_input_len", "build"))
    no_cache = same("--kv_cache_type", "build", translate={"disabled": "disabled"})
    no_cache += same("--paged_kv_cache", "build", translate={"disabled": False})
    yield OptionRequest("engine.encoder_decoder", "disabled", no_cache)


def _decoder(job: JobFile) -> Iterator[OptionRequest]:
    both = job.engine.max_encoder_input_len is not None
    start = job.engine.max_input_len if both and job.engine.max_input_len is not None else DECODER_START
    yield OptionRequest("engine.max_input_len", start, same("--max_input_len", "build"))
    if not both and job.engine.max_input_len is not None:
        encoder = same("--max_encoder_input_len", "build")
        yield OptionRequest("engine.max_input_len", job.engine.max_input_len, encoder)
