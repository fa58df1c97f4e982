"""Derive the LLM API's arguments from a job file, and compare them with upstream's objects.

This module reads a job file as plain YAML with its own table of keys, independent of the code that renders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from benchmarks.upstream.jobs import Job, merged

_SAME = "dtype max_batch_size max_input_len max_seq_len max_num_tokens max_beam_width enable_chunked_prefill"
_PARALLEL = ("tensor", "pipeline", "context", "moe_tensor", "moe_expert")
_CACHE = "free_gpu_memory_fraction max_tokens enable_block_reuse host_cache_size max_attention_window"
_ENGINE = {
    **{key: key for key in _SAME.split()},
    **{f"{kind}_parallel": f"{kind}_parallel_size" for kind in _PARALLEL},
    "capacity_scheduler_policy": "scheduler_config.capacity_scheduler_policy",
}
_KV_CACHE = {key: f"kv_cache_config.{key}" for key in (*_CACHE.split(), "sink_token_length")}
_TRANSFER = {"kv_transfer": "backend", "kv_transfer_tokens": "max_tokens_in_buffer"}


def expected_arguments(job: Job, role: str | None) -> dict[str, Any]:
    """Return the arguments in a job file for servers of the phase ``role``, or (``None``) for all servers."""
    engine, kv_cache, serve = (job.get(section, {}) for section in ("engine", "kv_cache", "serve"))
    phases = serve.get("disaggregated") or {}
    phase = phases.get(role, {}) if role is not None else {}
    stated: dict[str, Any] = {"model": job["model"]["path"]}
    for keys, section in (
        (_ENGINE, engine),
        ({"tokenizer": "tokenizer"}, job["model"]),
        (_KV_CACHE, kv_cache),
        (_ENGINE, phase),
    ):
        for key, path in keys.items():
            if section.get(key) is not None:
                stated = merged(stated, _at(path, section[key]))
    for key, name in _TRANSFER.items():
        if role is not None and key in phases:
            stated = merged(stated, {"cache_transceiver_config": {name: phases[key]}})
    return merged(stated, {**engine.get("llm_api", {}), **phase.get("llm_api", {})})


def _at(path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: _at(rest, value) if rest else value}


def differences(stated: Mapping[str, Any], reached: Any, path: str = "") -> Iterator[str]:
    """Yield each key of ``stated`` whose value an object of upstream's does not have."""
    for key, value in stated.items():
        inner = f"{path}.{key}" if path else str(key)
        try:
            seen = _attribute(reached, str(key))
        except LookupError:
            yield f"{inner}: {value!r} is lost"
            continue
        if isinstance(value, Mapping) and (isinstance(seen, Mapping) or hasattr(type(seen), "model_fields")):
            yield from differences(value, seen, inner)
        elif not _same(value, seen) and not (key in _CONSTANTS and _bare(value) == _bare(seen)):
            yield f"{inner}: {value!r} became {_plain(seen)!r}"


def unasked(stated: Mapping[str, Any], reached: Any, plain: Any, path: str = "") -> Iterator[str]:
    """Yield each argument that the job file does not set but that differs from its default (``plain``)."""
    for name, field in type(reached).model_fields.items():
        inner = f"{path}.{name}" if path else name
        value, usual = getattr(reached, name), getattr(plain, name)
        values = [stated[alias] for alias in (name, *_aliases(field)) if alias in stated]
        if inner in _OURS or value == usual:
            continue
        if hasattr(type(value), "model_fields") and type(value) is type(usual):
            section = values[0] if values and isinstance(values[0], Mapping) else {}
            yield from unasked(section, value, usual, inner)
        elif not values:
            yield f"{inner}: {_plain(value)!r}, which the job file does not set"


_OURS = (
    *("gpus_per_node", "cache_transceiver_config", "disable_overlap_scheduler"),  # the last two for phases
    "kv_cache_config.event_buffer_max_size",  # for the router kv_cache_aware
    # Upstream derives these from other keys.
    *("postprocess_tokenizer_dir", "cuda_graph_config.batch_sizes", "cuda_graph_config.max_batch_size"),
    # trtllm-serve sets this itself, unless its file has a scheduler_config.
    "scheduler_config.dynamic_batch_config",
)
"""Arguments that may differ from their defaults without a key in the job file."""


def _aliases(field: Any) -> tuple[Any, ...]:
    return (field.alias, *getattr(field.validation_alias, "choices", ()))


def _attribute(reached: Any, key: str) -> Any:
    if isinstance(reached, Mapping):
        return {str(name): value for name, value in reached.items()}[key]
    if key == "decoding_type" and getattr(reached, "_decoding_type_alias", None) is not None:
        return reached._decoding_type_alias
    for name, field in type(reached).model_fields.items():
        if key in (name, *_aliases(field)):
            return getattr(reached, name)
    if key in _CONSTANTS:
        return getattr(reached, key)
    raise LookupError(key)


_CONSTANTS = ("decoding_type", "algorithm")
"""Keys by which upstream chooses a class. Until 1.3.0rc3 the class may spell such a constant differently."""


def _bare(word: Any) -> str:
    return str(word).replace("_", "").casefold()


def _same(stated: Any, seen: Any) -> bool:
    if isinstance(seen, Enum):
        return str(stated).casefold() in (seen.name.casefold(), str(seen.value).casefold())
    if isinstance(stated, bool) or isinstance(seen, bool):
        return stated is seen
    if isinstance(stated, list):
        seen = list(seen) if isinstance(seen, (list, tuple, set)) else [object()]
        return len(stated) == len(seen) and all(map(_same, stated, seen))
    return bool(stated == _plain(seen))


def _plain(seen: Any) -> Any:
    if isinstance(seen, Enum):
        return seen.name
    return str(seen) if isinstance(seen, Path) else seen
