"""An engine's files and limits, and its server's settings, read with the standard library only."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import read_json
from trtllm_hpc.runtime.engine_cache.cache import KERNELS

REBUILD = "build the engine again"
"""The hint with every error that a broken or old engine causes."""


BUILD_LIMITS = (
    "max_batch_size",
    "max_input_len",
    "max_seq_len",
    "max_beam_width",
    "max_num_tokens",
    "gather_context_logits",
    "gather_generation_logits",
)
"""Limits that have the same name in an engine's ``build_config`` and here."""


class EngineFolder:
    """The files of one engine."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.config = self.folder / "config.json"
        """Layout and limits, in TensorRT-LLM's format."""
        self.model = self.folder / "model"
        """Folder with the model's configuration as transformers stores it, without weights.

        It is separate because transformers and TensorRT-LLM both call theirs ``config.json``.
        """
        self.tokenizer = self.folder / "tokenizer"
        """The default of ``tokenizer_dir``."""
        self.kernels = self.folder / KERNELS
        """Compiled kernels, kept by the first start on each kind of GPU."""

    def weights(self, rank: int) -> Path:
        """One rank's slices of the weights."""
        return self.folder / f"rank{rank}.safetensors"


@dataclass(frozen=True)
class EngineInfo:
    """What a server must know of an engine before it loads the weights. Lengths are in tokens."""

    dtype: str
    vocab_size: int
    world_size: int
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    """Prompt and new tokens together."""
    max_num_tokens: int
    """Most tokens of one step, all requests together."""
    max_beam_width: int
    tokens_per_block: int
    """Size of a block of the KV cache."""
    gather_context_logits: bool
    """Whether a request may ask for the logits of its prompt."""
    gather_generation_logits: bool
    """Whether a request may ask for the logits of its answer."""
    max_lora_rank: int
    """Highest rank of a LoRA adapter; 0 for an engine without LoRA."""

    @classmethod
    def read(cls, engine: EngineFolder) -> EngineInfo:
        """Read ``config.json``. Raises StartFailed if it is missing or not an engine's configuration."""
        try:
            record = read_json(engine.config)
        except (ValueError, OSError) as error:
            raise StartFailed(f"{engine.config} cannot be read: {error}.", hint=REBUILD) from error
        if record is None:
            raise StartFailed(f"There is no engine in {engine.folder}: config.json is missing.", hint=REBUILD)
        try:
            pretrained, build = record["pretrained_config"], record["build_config"]
            plugins = build["plugin_config"]
            return cls(
                dtype=pretrained["dtype"],
                vocab_size=pretrained["vocab_size"],
                world_size=pretrained["mapping"]["world_size"],
                tokens_per_block=plugins["tokens_per_block"],
                # TensorRT-LLM writes a rank even for engines without LoRA.
                max_lora_rank=0 if plugins["lora_plugin"] is None else build["lora_config"]["max_lora_rank"],
                **{name: build[name] for name in BUILD_LIMITS},
            )
        except (KeyError, TypeError) as error:
            raise StartFailed(
                f"{engine.config} is not the configuration of an engine: {error}.", hint=REBUILD
            ) from error

    def most_tokens(self, settings: ServeSettings) -> int:
        """Tokens that the KV cache holds at most: those of a full batch, or as many as the settings allow."""
        size = self.tokens_per_block
        full = -(-self.max_seq_len // size) * size * self.max_batch_size * self.max_beam_width
        return min(full, settings.max_tokens_in_paged_kv_cache or full)


@dataclass(frozen=True)
class ServeSettings:
    """Parameters of the model ``tensorrt_llm``, with TensorRT-LLM's names, meanings and defaults."""

    max_tokens_in_paged_kv_cache: int | None = None
    """Most tokens in the KV cache; ``None``: as many as the fraction of memory gives."""
    kv_cache_free_gpu_mem_fraction: float = 0.9
    """Share of the GPU memory that is free once the weights are loaded; ignored on CPUs."""
    max_queue_size: int = 0
    """Most waiting requests; one more is refused. 0: no limit."""
    cancellation_check_period_ms: int = 100
    """Time between two checks for disconnected clients."""
    stats_check_period_ms: int = 100
    """Time between two updates of the metrics."""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> ServeSettings:
        """Read the parameters of ``config.pbtxt``; an empty or missing one has its default.

        Raises StartFailed if a value is not a number or out of range.
        """
        given = {field.name: parameters.get(field.name, "").strip() for field in fields(cls)}
        numbers: dict[str, Any] = {name: _number(name, text) for name, text in given.items() if text}
        settings = cls(**numbers)
        if not 0 < settings.kv_cache_free_gpu_mem_fraction <= 1:
            raise StartFailed(
                f"kv_cache_free_gpu_mem_fraction is {settings.kv_cache_free_gpu_mem_fraction}; "
                "it must be above 0 and at most 1."
            )
        return replace(settings, max_tokens_in_paged_kv_cache=settings.max_tokens_in_paged_kv_cache or None)


def _number(name: str, text: str) -> float:
    # With a period of 0 the checks would keep a core busy.
    least = 1 if name.endswith("_period_ms") else 0
    try:
        value = float(text) if name == "kv_cache_free_gpu_mem_fraction" else int(text)
    except ValueError as error:
        raise StartFailed(f"The model's parameter {name} is {text!r}, which is not a number.") from error
    if value < least:
        raise StartFailed(f"The model's parameter {name} is {text}; it must be {least} or more.")
    return value


def plain_path(path: str) -> str:
    """A name for ``path`` that this process can open.

    Triton's stub starts Python isolated and without a locale, so that file names are ASCII whatever the
    environment says, and the libraries that read the files take no escaped bytes. A path with other letters
    gets a link with an ASCII name in the rank's scratch folder, which the job removes.
    """
    if path.isascii() or sys.getfilesystemencoding() == "utf-8":
        return path
    folder = tempfile.mkdtemp(prefix="path-", dir=os.environ.get("TRTLLM_HPC_SCRATCH"))
    link = Path(folder, "link")
    # Decoded as this process decodes file names, so that it encodes to the same bytes again.
    link.symlink_to(os.fsdecode(path.encode()))
    return str(link)
