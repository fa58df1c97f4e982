"""File names, limits and layout of an engine that the reference backend loads.

Standard library only: the preflight and the tests read engines without torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import read_json

REBUILD = "build the engine again"
"""The hint with every error that a broken or old engine is the reason of."""


class EngineFolder:
    """Names of everything in one engine folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()

    @property
    def config(self) -> Path:
        """Layout and limits, in the form that TensorRT-LLM writes."""
        return self.folder / "config.json"

    @property
    def model(self) -> Path:
        """Folder of the model's configuration as transformers stores it; it has no weights.

        A folder of its own, because transformers' ``config.json`` and
        TensorRT-LLM's share their name.
        """
        return self.folder / "model"

    def weights(self, rank: int) -> Path:
        """One rank's slices of the weights."""
        return self.folder / f"rank{rank}.safetensors"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer; what ``tokenizer_dir`` points to unless another is wanted."""
        return self.folder / "tokenizer"


@dataclass(frozen=True)
class EngineInfo:
    """What a server needs to know of an engine before it loads the weights. Lengths are in tokens."""

    dtype: str
    vocab_size: int
    tensor_parallel: int
    world_size: int
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    """Prompt and new tokens together."""
    max_num_tokens: int
    """Tokens of all requests that one step may compute."""
    max_beam_width: int
    tokens_per_block: int
    """Keys and values are kept in blocks of so many tokens."""
    gather_context_logits: bool
    """Whether a request may ask for the logits of its prompt."""
    gather_generation_logits: bool
    """Whether a request may ask for the logits of its answer."""
    max_lora_rank: int
    """Highest rank of a LoRA adapter; 0 for an engine without LoRA."""

    @classmethod
    def read(cls, engine: EngineFolder) -> EngineInfo:
        """Read ``config.json``.

        Raises:
            StartFailed: it is not there, or is not the configuration of an engine.
        """
        try:
            record = read_json(engine.config)
        except (ValueError, OSError) as error:
            raise StartFailed(f"{engine.config} cannot be read: {error}.", hint=REBUILD) from error
        if record is None:
            raise StartFailed(f"There is no engine in {engine.folder}: config.json is missing.", hint=REBUILD)
        try:
            return cls._from_record(record)
        except (KeyError, TypeError) as error:
            raise StartFailed(
                f"{engine.config} is not the configuration of an engine: {error}.", hint=REBUILD
            ) from error

    @classmethod
    def _from_record(cls, record: Any) -> EngineInfo:
        pretrained, build = record["pretrained_config"], record["build_config"]
        return cls(
            dtype=pretrained["dtype"],
            vocab_size=pretrained["vocab_size"],
            tensor_parallel=pretrained["mapping"]["tp_size"],
            world_size=pretrained["mapping"]["world_size"],
            max_batch_size=build["max_batch_size"],
            max_input_len=build["max_input_len"],
            max_seq_len=build["max_seq_len"],
            max_num_tokens=build["max_num_tokens"],
            max_beam_width=build["max_beam_width"],
            tokens_per_block=build["plugin_config"]["tokens_per_block"],
            gather_context_logits=bool(build["gather_context_logits"]),
            gather_generation_logits=bool(build["gather_generation_logits"]),
            max_lora_rank=build["lora_config"]["max_lora_rank"] if _has_lora(build) else 0,
        )


def _has_lora(build: Any) -> bool:
    """TensorRT-LLM writes a rank for engines without LoRA too: the plugin decides."""
    return build["plugin_config"]["lora_plugin"] is not None
