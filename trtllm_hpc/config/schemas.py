"""The shipped JSON Schemas, of the two files and of what ``--json`` prints, and the keys with new names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

_ENDING = ".schema.json"

RENAMED: Mapping[str, str] = {
    "engine.kv_cache": "engine.kv_cache_type",
    "repository.tokenizer": "model.tokenizer",
    "repository.max_tokens_in_paged_kv_cache": "kv_cache.max_tokens",
    "repository.kv_cache_free_gpu_mem_fraction": "kv_cache.free_gpu_memory_fraction",
    "repository.kv_cache_reuse": "kv_cache.enable_block_reuse",
    "repository.kv_cache_host_memory_bytes": "kv_cache.host_cache_size",
    "repository.max_attention_window_size": "kv_cache.max_attention_window",
    "repository.sink_token_length": "kv_cache.sink_token_length",
    "repository.cross_kv_cache_fraction": "kv_cache.cross_kv_cache_fraction",
    "repository.chunked_context": "engine.enable_chunked_prefill",
    "repository.batch_scheduler_policy": "engine.capacity_scheduler_policy",
}
"""Keys of the job file that had other names before: new names by old ones, for error messages and for
``schema --renamed``. The new names are those of the LLM API, where every backend that has the key looks."""


def schemas() -> dict[str, Path]:
    """Return every schema by name: ``job``, ``cluster``, and a command's words with hyphens."""
    folder = Path(str(resources.files("trtllm_hpc.templates"))) / "schemas"
    return {path.name.removesuffix(_ENDING): path for path in sorted(folder.glob(f"*{_ENDING}"))}
