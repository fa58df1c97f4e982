"""An engine's ``config.json``.

Releases before 0.8 (``build.py``) write ``builder_config`` and ``plugin_config``; later releases write
``pretrained_config`` and ``build_config``. The C++ runtime distinguishes them in the same way
(``gptJsonConfig.cpp``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import BuildFailed
from trtllm_hpc.paths import write_json

DEFAULT_GPUS_PER_NODE = 8
"""GPUs per node that the C++ runtime assumes by default (``WorldConfig::kDefaultGpusPerNode``)."""

_LIMITS = ("max_batch_size", "max_input_len", "max_seq_len", "max_beam_width")


class NotAnEngine(ValueError):
    """A folder does not contain an engine; the message is one sentence."""


@dataclass(frozen=True)
class EngineConfig:
    """Facts about one engine."""

    folder: Path
    world_size: int
    """Number of ranks."""
    tensor: int
    """Tensor parallelism."""
    pipeline: int
    """Pipeline parallelism."""
    files: tuple[str, ...]
    """File of each rank, relative to the folder."""
    max_batch_size: int | None
    max_input_len: int | None
    max_seq_len: int | None
    max_beam_width: int | None
    paged_kv_cache: bool | None
    paged_context_fmha: bool
    version: str | None = None
    """Release of TensorRT-LLM that built the engine; ``None`` before 0.8, which did not write it."""
    is_reference: bool = False
    """Whether the reference backend built the engine."""
    context: int = 1
    """Context parallelism."""
    gpus_per_node: int | None = None
    """GPUs of a node as passed to ``trtllm-build``, 8 by default; ``None`` before 0.10."""

    @property
    def runtime_gpus_per_node(self) -> int:
        """The runtime's N in device = rank % N and node = rank / N (``worldConfig.h``)."""
        return self.gpus_per_node or DEFAULT_GPUS_PER_NODE


def read_engine(folder: Path) -> EngineConfig:
    """Read the engine in a folder.

    Raises NotAnEngine if ``config.json`` is missing or does not describe an engine.
    """
    file = folder / "config.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise TypeError("it is not a JSON object")
        has_old_layout = "builder_config" in record and "pretrained_config" not in record
        return (_old if has_old_layout else _new)(folder, record)
    except FileNotFoundError:
        raise NotAnEngine(f"there is no engine in {folder}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # Any program may have written the file, so any of these errors is possible.
        message = f"{file} does not describe an engine ({type(error).__name__}: {error})"
        raise NotAnEngine(message) from None


def _new(folder: Path, record: Mapping[str, Any]) -> EngineConfig:
    mapping = record["pretrained_config"]["mapping"]
    build = record.get("build_config") or {}
    plugins = build.get("plugin_config") or {}
    is_reference = (record.get("trtllm_hpc") or {}).get("backend") == "reference"
    world = int(mapping["world_size"])
    cache = build.get("kv_cache_type")
    return EngineConfig(
        folder=folder,
        version=None if is_reference else record.get("version"),
        is_reference=is_reference,
        world_size=world,
        tensor=int(mapping.get("tp_size", 1)),
        pipeline=int(mapping.get("pp_size", 1)),
        context=int(mapping.get("cp_size", 1)),
        gpus_per_node=mapping.get("gpus_per_node"),
        files=("model/model.safetensors",)
        if is_reference
        else tuple(f"rank{rank}.engine" for rank in range(world)),
        # "PAGED", or the Python enumeration's "KVCacheType.PAGED".
        paged_kv_cache=str(cache).upper().endswith("PAGED") if cache else plugins.get("paged_kv_cache"),
        **_shared(build, plugins),
    )


def _old(folder: Path, record: Mapping[str, Any]) -> EngineConfig:
    # The names of the files come from get_engine_name of upstream's build.py.
    build, plugins = record["builder_config"], record.get("plugin_config") or {}
    tensor, pipeline = int(build["tensor_parallel"]), int(build.get("pipeline_parallel", 1))
    stages = f"_pp{pipeline}" if pipeline > 1 else ""
    name = f"{build['name']}_{build['precision']}_tp{tensor}{stages}"
    return EngineConfig(
        folder=folder,
        world_size=tensor * pipeline,
        tensor=tensor,
        pipeline=pipeline,
        files=tuple(f"{name}_rank{rank}.engine" for rank in range(tensor * pipeline)),
        paged_kv_cache=plugins.get("paged_kv_cache"),
        **_shared(build, plugins),
    )


def _shared(build: Mapping[str, Any], plugins: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts whose keys are the same in both layouts."""
    limits = {name: build.get(name) for name in _LIMITS}
    inputs, outputs = limits["max_input_len"], build.get("max_output_len")
    if limits["max_seq_len"] is None and inputs is not None and outputs is not None:
        limits["max_seq_len"] = inputs + outputs  # before 0.11, which introduced max_seq_len
    return {**limits, "paged_context_fmha": bool(plugins.get("use_paged_context_fmha"))}


def set_gpus_per_node(checkpoints: Sequence[Path], gpus: int) -> None:
    """Write ``gpus_per_node`` into the ``config.json`` of converted checkpoints; raise BuildFailed.

    The build copies ``mapping`` into the engine (``Mapping.to_dict`` and ``from_dict``,
    tensorrt_llm/mapping.py), and the runtime derives a rank's device from it. Until 1.1 an option of
    ``trtllm-build`` set the value.
    """
    for checkpoint in checkpoints:
        file = checkpoint / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
            config["mapping"] = {**config.get("mapping", {}), "gpus_per_node": gpus}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            fault = f"{type(error).__name__}: {error}"
            raise BuildFailed(f"{file} does not describe a checkpoint ({fault}).") from None
        write_json(file, config)
