"""An engine's files and limits, and its server's settings, read with the standard library only."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.config.synthetic_models import STAND_IN
from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import read_json

REBUILD = "build the engine again"
"""The hint with every error that a broken or old engine causes."""


BUILD_LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")
"""Limits that have the same name in an engine's ``build_config`` and here."""


CONFIG, MODEL, TOKENIZER = "config.json", "model", "tokenizer"
"""Names in an engine's folder: layout and limits in TensorRT-LLM's format, the model as transformers stores
it, and the default of ``tokenizer_dir``. The model has its own folder because its configuration is also
called ``config.json``."""


@dataclass(frozen=True)
class EngineInfo:
    """The properties of an engine that a server reads before the weights. Lengths are in tokens."""

    dtype: str
    vocab_size: int
    world_size: int
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    """Prompt and new tokens together."""
    max_num_tokens: int
    """Most tokens of one step, for all requests together."""
    tokens_per_block: int
    is_stand_in: bool = False

    @classmethod
    def read(cls, folder: Path) -> EngineInfo:
        """Read an engine's configuration. Raises StartFailed if it is missing or invalid."""
        try:
            record: Any = read_json(folder / CONFIG)
            pretrained, build = record["pretrained_config"], record["build_config"]
            return cls(
                dtype=pretrained["dtype"],
                vocab_size=pretrained["vocab_size"],
                world_size=pretrained["mapping"]["world_size"],
                tokens_per_block=build["plugin_config"]["tokens_per_block"],
                is_stand_in=pretrained.get("architecture") == STAND_IN,
                **{name: build[name] for name in BUILD_LIMITS},
            )
        except (ValueError, OSError, KeyError, TypeError) as error:
            message = f"{folder / CONFIG} is not the configuration of an engine: {error}."
            raise StartFailed(message, hint=REBUILD) from error


def plain_path(path: str) -> str:
    """Return a name for ``path`` that this process can open.

    Triton's stub starts Python isolated and without a locale, so file names are ASCII whatever the
    environment says, and the libraries that read the files do not accept escaped bytes. A path with other
    letters gets a link with an ASCII name in the rank's scratch folder, which the job removes.
    """
    if path.isascii() or sys.getfilesystemencoding() == "utf-8":
        return path
    folder = tempfile.mkdtemp(prefix="path-", dir=os.environ.get("TRTLLM_HPC_SCRATCH"))
    link = Path(folder, "link")
    # Decoded as this process decodes file names, so that it encodes to the same bytes again.
    link.symlink_to(os.fsdecode(path.encode()))
    return str(link)
