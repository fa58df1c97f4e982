"""What is written into TensorRT-LLM's checkpoint between its conversion and the build."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from trtllm_hpc.paths import write_json


class NoCheckpoint(ValueError):
    """A folder holds no checkpoint; the message is one sentence."""


def tell_gpus_per_node(checkpoints: Sequence[Path], gpus: int) -> None:
    """Name the GPUs of a node in the checkpoints' ``config.json``.

    The build hands ``mapping`` on to the engine (``Mapping.to_dict`` and
    ``from_dict``, tensorrt_llm/mapping.py), where the runtime takes a rank's
    device from it. Until 1.1 an option of ``trtllm-build`` said it.

    Raises:
        NoCheckpoint: the conversion has left no ``config.json`` that can be read.
    """
    for checkpoint in checkpoints:
        file = checkpoint / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
            config["mapping"] = {**config.get("mapping", {}), "gpus_per_node": gpus}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise NoCheckpoint(f"{file} is none of a checkpoint ({type(error).__name__}: {error})") from None
        write_json(file, config)
