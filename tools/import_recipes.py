"""``recipes.toml`` from the tables of NVIDIA/TensorRT-LLM: ``python -m tools.import_recipes FOLDER``.

FOLDER has files of that repository at their paths: ``examples/configs/curated`` and ``database``, each with
its ``lookup.yaml``. Its file COMMITS has a line ``commit path`` for each file; in a clone, type

    for f in $(git ls-files 'examples/configs/*/*.yaml'); do
      echo "$(git log -1 --format=%H -- $f) $f"; done > COMMITS

A file that COMMITS does not name is left out. In place of a commit may stand the version that version.py had
on the main branch. ``git diff`` then shows what upstream has changed.

Only facts are taken: names, numbers and keys. ``print_iter_log``, for measurements, is left out, and
``kv_cache_free_gpu_memory_fraction``, an option of trtllm-serve, becomes the key of ``kv_cache_config``.
``max_draft_len`` of MTP has its name of releases until 1.2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from trtllm_hpc.tensorrt_llm.releases.data_files import read_data

DATA = Path(__file__).parents[1] / "trtllm_hpc" / "tensorrt_llm" / "releases" / "data" / "recipes.toml"
_CONFIGS = "examples/configs"
_GOALS = {"Min Latency": "latency", "Max Throughput": "throughput"}
"""Upstream's scenarios; the others are for one half of disaggregated serving."""
_BLACKWELL = ["b200", "gb200", "b300", "gb300"]
_KERNELS = ("TRTLLM", "CUTEDSL", "DEEPGEMM")
"""Kernels of quantized experts that only Blackwell has: a file with them is not for "Any" GPU."""
_LATENCY, _THROUGHPUT = 8, 32
"""Requests at once: at most for latency, at least for throughput (upstream's database.py)."""
_AFTER = ("deepseek-v4", "minimax-m3", "nemotron-3", "qwen3.5", "qwen3.8")
"""Beginnings of curated files whose models came after 1.2.1."""
_NOT_LISTED = {
    # Curated files that the lookup.yaml read does not list: model and GPUs by upstream's deployment guides,
    # for DeepSeek V4 by examples/models/core/deepseek_v4/README.md.
    "deepseek-v4-pro-latency": ("deepseek-ai/DeepSeek-V4-Pro", "latency", _BLACKWELL),
    "deepseek-v4-pro-throughput": ("deepseek-ai/DeepSeek-V4-Pro", "throughput", _BLACKWELL),
    "qwen3.8-low-latency-mtp3": ("Qwen/Qwen3.8-2.4T-A95B-FP8", "latency", _BLACKWELL),
    "qwen3.8-high-throughput-mtp3": ("Qwen/Qwen3.8-2.4T-A95B-FP8", "throughput", _BLACKWELL),
    "qwen3.8-high-throughput": ("Qwen/Qwen3.8-2.4T-A95B-FP8", "throughput", _BLACKWELL),
}
_HEAD = """\
# Recipes of NVIDIA/TensorRT-LLM, written by tools/import_recipes.py: change nothing here by hand.
# How to read and renew this file: docs/reference/releases.md.
"""


def entries(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of the table: curated ones first, then those of the database, in upstream's order."""
    commits = dict(line.split()[::-1] for line in (folder / "COMMITS").read_text().splitlines())
    curated: dict[tuple[str, str], dict[str, Any]] = {}
    for row in _yaml(folder / _CONFIGS / "curated" / "lookup.yaml"):
        path, goal = row["config_path"], _GOALS.get(row["scenario"])
        if path not in commits or goal is None:
            continue
        gpus = [] if row["gpu_compatibility"] == "Any" else row["gpu_compatibility"].lower().split(", ")
        entry = curated.setdefault((path, str(gpus)), _entry(folder, path, commits[path], gpus, goal))
        entry["models"].append(row["model"])
        is_quantized = read_data("models")["model"].get(row["model"], {}).get("quantization") != "none"
        if not gpus and is_quantized and entry["llm_api"].get("moe_config", {}).get("backend") in _KERNELS:
            entry["gpus"] = _BLACKWELL
        entry |= {"goal": "disaggregated serving"} if row.get("disagg") else {}
    yield from curated.values()
    for name, (model, goal, gpus) in _NOT_LISTED.items():
        path = f"{_CONFIGS}/curated/{name}.yaml"
        if path in commits:
            yield _entry(folder, path, commits[path], gpus, goal) | {"models": [model]}
    rows = _yaml(folder / _CONFIGS / "database" / "lookup.yaml")
    for row in rows:
        # As upstream's database.py: of the loads of one table, the smallest is for latency, the largest for
        # throughput; those between are balanced, and left out. So is a smallest load that is large.
        load, loads = row["concurrency"], [it["concurrency"] for it in rows if _table(it) == _table(row)]
        goal = "latency" if load == min(loads) and load <= _LATENCY else None
        goal = "throughput" if load == max(loads) and load >= _THROUGHPUT else goal
        path, gpu = row["config_path"], row["gpu"].lower().partition("_")[0]
        if goal is not None and path in commits:
            requests = "1 request" if load == 1 else f"{load} requests"
            sentence = f"{requests} at once of {row['isl']} + {row['osl']} tokens"
            measured = {"models": [row["model"]], "input_tokens": row["isl"], "load": sentence}
            yield _entry(folder, path, commits[path], [gpu], goal) | measured


def _table(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("model", "gpu", "num_gpus", "isl", "osl"))


def _entry(folder: Path, path: str, commit: str, gpus: list[str], goal: str) -> dict[str, Any]:
    llm_api = dict(_yaml(folder / path))
    llm_api.pop("print_iter_log", None)
    llm_api.pop("backend", None)  # PyTorch, the only one
    fraction = llm_api.pop("kv_cache_free_gpu_memory_fraction", None)
    if fraction is not None:
        llm_api["kv_cache_config"] = {
            **llm_api.get("kv_cache_config", {}),
            "free_gpu_memory_fraction": fraction,
        }
    balancer = llm_api.get("moe_config", {}).get("load_balancer", "")
    if balancer.startswith(
        "examples/"
    ):  # in the folder of upstream's images, from which its guide starts the server
        llm_api["moe_config"]["load_balancer"] = f"/app/tensorrt_llm/{balancer}"
    speculative = llm_api.get("speculative_config", {})
    if speculative.get("decoding_type") == "MTP" and "max_draft_len" in speculative:
        speculative["num_nextn_predict_layers"] = speculative.pop("max_draft_len")
    if "env_overrides" in llm_api:  # variables are text
        llm_api["env_overrides"] = {key: str(value) for key, value in llm_api["env_overrides"].items()}
    count = llm_api.get("tensor_parallel_size", 1) * llm_api.get("pipeline_parallel_size", 1)
    known = {"source": path, "commit": commit, "models": [], "gpus": gpus, "count": count, "goal": goal}
    is_newer = path.rpartition("/")[2].startswith(_AFTER)
    return {**known, "llm_api": llm_api, **({"after": "1.2.1"} if is_newer else {})}


def _yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(it)}" for key, it in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def document(folder: Path) -> str:
    """Return the data file."""
    parts = ["".join(f"{key} = {_toml(value)}\n" for key, value in it.items()) for it in entries(folder)]
    return _HEAD + "".join(f"\n[[recipe]]\n{part}" for part in parts)


if __name__ == "__main__":
    DATA.write_text(document(Path(sys.argv[1])), encoding="utf-8")
