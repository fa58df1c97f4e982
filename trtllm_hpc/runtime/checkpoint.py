"""What is written into TensorRT-LLM's checkpoint between its conversion and the build."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from trtllm_hpc.paths import write_json


def tell_gpus_per_node(checkpoints: Sequence[Path], gpus: int) -> None:
    """Name the GPUs of a node in the checkpoints' ``config.json``.

    The build hands ``mapping`` on to the engine (``Mapping.to_dict`` and
    ``from_dict``, tensorrt_llm/mapping.py), where the runtime takes a rank's
    device from it. Until 1.1 an option of ``trtllm-build`` said it.
    """
    for checkpoint in checkpoints:
        file = checkpoint / "config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        config["mapping"] = {**config.get("mapping", {}), "gpus_per_node": gpus}
        write_json(file, config)
