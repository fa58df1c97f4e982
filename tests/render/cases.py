"""The runs whose scripts are kept in ``tests/golden``.

``python -m tests.render.cases`` renders them into the golden folder, for a
person to review with ``git diff``; no test ever does. With a folder as its
argument it writes every file of every case whole into that folder.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.plan import outcomes
from tests.render.golden import Files, write_case
from tests.tensorrt_llm import outcomes as upstream_outcomes
from trtllm_hpc.backends import facts_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.files import jobs, read_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Plan, make_plan
from trtllm_hpc.render.scripts import (
    render_configurations,
    render_node_checks,
    render_repository,
    render_scripts,
)
from trtllm_hpc.runs.node_checks import node_check_plan
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.tensorrt_llm.job_facts import with_job_image

GOLDEN = Path(__file__).parent.parent / "golden"
OUTCOMES = "outcomes"
"""Beside the cases: what job files lead to, by both modules ``outcomes``."""
_RUN = "/scratch/ana/runs of june/17"
"""The folder of every case, so that cases differ only by what their settings change."""

_MODEL = {"path": "/models/Llama 3", "synthetic": None}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sandbox-two-ranks": (
        {"name": "tiny-llama", "engine": {"tensor_parallel": 2}, "serve": {"nodes": 2}},
        {"name": "sandbox", "partition": "batch", "gpus_per_node": 4, "triton": {"server": "pytriton"}},
    ),
    "sandbox-instances": (
        {
            "name": "tiny-llama",
            "engine": {"tensor_parallel": 2},
            "serve": {"instances": 4, "nodes": 2, "routing": "session"},
        },
        {"name": "sandbox", "partition": "batch", "gpus_per_node": 4, "triton": {"server": "pytriton"}},
    ),
    "renewed": (
        {
            "name": "llama",
            "model": _MODEL,
            "engine": {"dtype": "bfloat16"},
            "serve": {"renew": True, "keep_running": True, "drain_seconds": 90, "time_limit_minutes": 1440},
        },
        {"name": "bare", "gpus_per_node": 4, "partition": "batch"},
    ),
    "local-proxy": (
        {"name": "tiny-llama", "engine": {"tensor_parallel": 2}},
        {"name": "here", "scheduler": "local", "triton": {"server": "pytriton"}},
    ),
    "pyxis-large-instances": (
        {
            "name": "llama-70b",
            "model": _MODEL,
            "engine": {"tensor_parallel": 8, "dtype": "bfloat16"},
            "serve": {"instances": 2, "restarts": 1, "tls": True},
        },
        {
            "name": "pyxis",
            "gpus_per_node": 4,
            "haproxy": "/sw/haproxy 3/bin/haproxy",
            "container": {"runtime": "pyxis", "image": "/images/tritonserver 24.12.sqsh"},
            "network_interface": "ib0",
        },
    ),
    "pyxis-two-nodes": (
        {
            "name": "llama-70b",
            "model": _MODEL,
            "engine": {"tensor_parallel": 8, "dtype": "bfloat16"},
            "build": {"gpus": 1, "memory_gib": 200, "cpus": 16},
            "serve": {"nodes": 2, "cpus_per_rank": 8, "memory_gib_per_node": 400, "time_limit_minutes": 240},
            "companion": {
                "request": {"prompt": 'it\'s $(hostname) "quoted"\nand a second line', "max_tokens": 32}
            },
        },
        {
            "name": "pyxis",
            "partition": "gpu",
            "account": "my project",
            "qos": "normal",
            "gpus_per_node": 4,
            "gpu_request": "gres",
            "gpu_type": "a100",
            "exclusive": True,
            "companion_partition": "cpu",
            "container": {
                "runtime": "pyxis",
                "image": "/images/tritonserver 24.12.sqsh",
                "mounts": ["/models:/models:ro"],
                "options": ["--container-writable"],
            },
            "environment": {"HF_HUB_OFFLINE": "1", "NOTE": "a b'c"},
            "setup": ["module load slurm"],
            "sbatch_options": ["--mail-type=FAIL"],
            "srun_options": ["--cpu-bind=none"],
            "network_interface": "ib0",
        },
    ),
    "apptainer-overlap-keeps-running": (
        {
            "name": "llama",
            "engine": {"directory": "/engines/llama tp2", "tensor_parallel": 2},
            "serve": {"keep_running": True, "proxy": "none"},
            "companion": {"benchmark": None},
        },
        {
            "name": "apptainer",
            "gpus_per_node": 2,
            "companion": "overlap",
            "container": {
                "runtime": "apptainer",
                "image": "/images/triton.sif",
                "mounts": ["/engines"],
                "options": ["--overlay", "/images/more of it:ro"],
                "cache_folder": "/scratch/ana/cache",
            },
        },
    ),
    "tensorrt-llm-two-nodes": (
        {
            "name": "llama-70b-fp8",
            "model": {"path": "/models/it's Llama 3", "synthetic": None, "family": "llama"},
            "engine": {
                "backend": "tensorrtllm",
                "tensor_parallel": 4,
                "pipeline_parallel": 2,
                "max_batch_size": 64,
                "max_input_len": 2048,
                "max_seq_len": 3072,
                "paged_context_fmha": True,
                "quantization": {
                    "method": "fp8",
                    "kv_cache": "fp8",
                    "calibration_dataset": "/data/cnn dailymail",
                },
                "workers": 4,
                "capacity_scheduler_policy": "max_utilization",
            },
            "build": {"gpus": 4},
            "kv_cache": {"enable_block_reuse": True},
            "serve": {"nodes": 2},
        },
        {
            "name": "pyxis",
            "gpus_per_node": 4,
            "gpu": "h100-80gb",
            "engines_folder": "/scratch/ana/engines of june",
            "container": {
                "runtime": "pyxis",
                "image": "/images/tritonserver_24.12-trtllm-python-py3.sqsh",
                "mounts": ["/models:/models:ro", "/src/tensorrtllm_backend:/tensorrtllm_backend:ro"],
            },
        },
    ),
    "pytorch-triton-two-nodes": (
        {
            "name": "llama-llmapi",
            "model": {"path": "/models/llama", "synthetic": None},
            "engine": {"backend": "pytorch", "tensor_parallel": 8},
            "serve": {
                **{"nodes": 2, "proxy": "none", "frontend": "triton"},
            },
            "companion": {"enabled": False},
        },
        {
            "name": "pyxis",
            "gpus_per_node": 4,
            "container": {
                "runtime": "pyxis",
                "image": "nvcr.io#nvidia/tritonserver:25.12-trtllm-python-py3",
                "mounts": ["/models:/models:ro"],
            },
        },
    ),
    "disaggregated": (
        {
            "name": "split",
            "model": {"path": "/models/llama", "synthetic": None, "family": "llama"},
            "engine": {"backend": "tensorrtllm", "tensor_parallel": 2, "dtype": "float16"},
            "serve": {
                "mode": "disaggregated",
                "disaggregated": {
                    "context": {"instances": [[0, 1]]},
                    "generation": {"instances": [[2, 3], [4, 5]]},
                },
            },
            "companion": {"benchmark": None},
        },
        {
            "name": "apptainer",
            "gpus_per_node": 8,
            "gpu_request": "none",
            "container": {
                "runtime": "apptainer",
                "image": "/images/triton.sif",
                "tensorrt_llm_version": "0.16.0",
            },
        },
    ),
    "orchestrator": (
        {
            "name": "two-copies",
            "model": {"tokenizer": "/models/llama"},
            "engine": {
                "backend": "tensorrtllm",
                "directory": "/engines/llama tp2",
                "tensor_parallel": 2,
            },
            "repository": {
                "models": [
                    {"name": "tensorrt_llm", "gpu_device_ids": [0, 1]},
                    {"name": "tensorrt_llm_2", "gpu_device_ids": [2, 3]},
                ],
            },
            "serve": {"mode": "orchestrator"},
            "companion": {
                "benchmark": None,
                "request": {
                    "lora": {"directory": "/adapters/luo tuo"},
                    "context_logits": True,
                    "generation_logits": True,
                },
            },
        },
        {
            "name": "bare",
            "gpus_per_node": 4,
            "gpu_request": "gpus",
            "gpu_type": "h100",
            "qos": "long",
            "reservation": "june",
            "constraint": "nvlink&ib",
            "exclusive": True,
            "container": {"tensorrt_llm_version": "0.16.0", "all_models": "/opt/all models"},
        },
    ),
    "local": (
        {
            "name": "tiny-llama",
            "engine": {"tensor_parallel": 2, "max_num_tokens": 64},
            "repository": {"accumulate_tokens": True, "max_queue_size": 3, "bls_instances": 4},
            "serve": {"proxy": "none"},
        },
        {"name": "local", "scheduler": "local", "triton": {"server": "pytriton"}},
    ),
}

_SPLIT = CASES["disaggregated"][0]
_TWO_COPIES = CASES["orchestrator"][0]
_IN_IMAGE = {"tensorrt_llm_version": "0.16.0", "all_models": "/opt/all models"}
_PYXIS = {"runtime": "pyxis", "image": "nvcr.io#nvidia/tritonserver:24.12-trtllm-python-py3"}

CASES |= {
    "pyxis-orchestrator": (
        _TWO_COPIES,
        {"name": "pyxis", "gpus_per_node": 4, "container": {**_PYXIS, **_IN_IMAGE, "scope": "global"}},
    ),
    "pyxis-disaggregated": (
        _SPLIT,
        {"name": "pyxis", "gpus_per_node": 8, "mpi": "mpirun", "container": {**_PYXIS, "scope": "step"}},
    ),
}


_ONE_GPU = {
    "name": "llama-8b",
    "model": {"path": "/models/Llama 3.1 8B", "synthetic": None},
    "engine": {"backend": "pytorch", "max_batch_size": 64, "max_num_tokens": 8192},
}
_SIXTEEN_RANKS = {
    "name": "llama-405b",
    "model": {"path": "/models/llama-405b", "synthetic": None},
    "engine": {
        "backend": "pytorch",
        "tensor_parallel": 16,
        "llm_api": {"kv_cache_config": {"dtype": "fp8"}, "cuda_graph_config": None},
    },
    "kv_cache": {"free_gpu_memory_fraction": 0.85},
    "serve": {"nodes": 2},
}
_EXPERTS = {
    "name": "qwen3-235b",
    "model": {"path": "/models/Qwen3-235B-A22B", "synthetic": None, "stage": "node"},
    "engine": {
        "backend": "pytorch",
        "tensor_parallel": 8,
        "moe_expert_parallel": 8,
        "llm_api": {"moe_config": {"backend": "CUTLASS"}, "enable_attention_dp": True},
    },
    "serve": {"instances": 2, "routing": "session"},
}
_SERVED_ENGINE = {
    "name": "llama-engine",
    "model": {"path": "/models/llama", "synthetic": None, "family": "llama"},
    "engine": {"backend": "tensorrtllm", "tensor_parallel": 2, "max_seq_len": 4096},
    "serve": {"frontend": "openai"},
}
_NEW_PYXIS = {"runtime": "pyxis", "image": "nvcr.io#nvidia/tensorrt-llm/release:1.2.0", "mounts": ["/models"]}
_NEW_APPTAINER = {"runtime": "apptainer", "image": "/images/trtllm.sif", "tensorrt_llm_version": "1.2.0"}
_SPLIT_SERVERS = {
    "name": "deepseek",
    "model": {"path": "/models/DeepSeek-V3", "synthetic": None},
    "engine": {"backend": "pytorch", "tensor_parallel": 4, "max_num_tokens": 8192},
    "serve": {
        "mode": "disaggregated",
        "disaggregated": {
            "context": {"servers": 2},
            "generation": {
                "tensor_parallel": 16,
                "moe_expert_parallel": 16,
                "max_num_tokens": 512,
                "llm_api": {"enable_attention_dp": True},
            },
            "kv_transfer": "UCX",
            "kv_transfer_tokens": 8192,
            "router": "load_balancing",
        },
    },
}
_FRONTENDS = {
    "one-gpu": _ONE_GPU,
    "sixteen-ranks": _SIXTEEN_RANKS,
    "experts": _EXPERTS,
    "engine": _SERVED_ENGINE,
    "disaggregated": _SPLIT_SERVERS,
}
for _name, _job in _FRONTENDS.items():
    _profile = {
        "name": "pyxis",
        "gpus_per_node": 8,
        "container": _NEW_PYXIS,
        "node_models_folder": "/local",
    }
    CASES[f"openai-{_name}-pyxis"] = (_job, _profile)

CASES["openai-one-gpu-apptainer"] = (
    _ONE_GPU,
    {"name": "apptainer", "gpus_per_node": 8, "container": _NEW_APPTAINER, "node_models_folder": "/local"},
)

_PHASES = {
    "context": {"partition": "h100", "gpu_type": "h100"},
    "generation": {"partition": "gb200", "gpus_per_node": 4, "gpu_type": "gb200"},
}
CASES |= {
    # The serve job is heterogeneous, with a component for each phase.
    "openai-heterogeneous": (
        _SPLIT_SERVERS,
        {
            "name": "pyxis",
            "partition": "batch",
            "account": "prompts",
            "gpus_per_node": 8,
            "gpu_request": "gpus",
            "exclusive": True,
            "companion": "overlap",
            "sbatch_options": ["--mail-type=FAIL"],
            "phases": _PHASES,
            "container": _NEW_PYXIS,
        },
    ),
}

_COMMANDS = (
    *("vllm-llama-3.1-8b", "vllm-llama-3.1-405b-two-nodes"),
    "sglang-llama-3.1-8b",
)
for _name in _COMMANDS:
    _job = read_job(jobs()[_name]).model_dump()
    CASES[_name] = (_job, {"name": "pyxis", "gpus_per_node": 8, "container": _NEW_PYXIS})

_job, _cluster = CASES["tensorrt-llm-two-nodes"]
CASES["tensorrt-llm-commands"] = (
    {
        "name": "falcon-40b",
        "model": {"path": "/models/it's Falcon", "synthetic": None},
        "engine": {"backend": "tensorrtllm", "tensor_parallel": 8, "max_batch_size": 64},
        "build": {
            "gpus": 4,
            "commands": [
                [
                    *("python3", "{examples}/falcon/convert_checkpoint.py", "--model_dir", "{model}"),
                    *("--tp_size", "{tensor_parallel}", "--output_dir", "{work}/checkpoint {{8}}"),
                ],
                [
                    *("trtllm-build", "--checkpoint_dir", "{work}/checkpoint {{8}}"),
                    *("--workers", "{world_size}", "--output_dir", "{output}"),
                ],
            ],
        },
        "serve": {"nodes": 2},
    },
    _cluster,
)
_job, _cluster = CASES["openai-one-gpu-pyxis"]
CASES["openai-gb200-pyxis"] = (_job, {**_cluster, "gpus_per_node": 4, "gpu": "gb200"})
_split, _cluster = CASES["openai-disaggregated-pyxis"]
_before = {"prologue": ["pip install '/shared/a b.whl'"], "wrapper": ["numactl", "-m", "0,1"]}
CASES["openai-prologue-pyxis"] = ({**_split, "serve": {**_split["serve"], **_before}}, _cluster)

_job, _cluster = CASES["openai-one-gpu-apptainer"]
RUNTIMES: dict[str, dict[str, Any]] = {
    "singularity": {
        "image": "/images/trtllm.sif",
        "gpu_options": ["--rocm"],
        "cache_folder": "/scratch/cache",
    },
    "shifter": {"image": "docker:nvcr.io/nvidia/tensorrt-llm/release:1.2.0", "mounts": ["/scratch:/data"]},
    "podman-hpc": {"image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.0", "options": ["--openmpi-pmix"]},
    "container-engine": {"image": "my trtllm", "tensorrt_llm_version": "1.2.0"},
}
for _name, _container in RUNTIMES.items():
    _profile = {"container": {"runtime": _name, "tensorrt_llm_version": "1.2.0", **_container}, "name": _name}
    CASES[f"openai-one-gpu-{_name}"] = (_job, {**_cluster, **_profile, "environment": {"UCX_TLS": "tcp"}})

BASES = {
    **{f"openai-one-gpu-{name}": "openai-one-gpu-apptainer" for name in RUNTIMES},
    "vllm-llama-3.1-8b": "openai-one-gpu-pyxis",
    **{name: "vllm-llama-3.1-8b" for name in _COMMANDS[1:]},
    "pytorch-triton-two-nodes": "openai-sixteen-ranks-pyxis",
    "tensorrt-llm-two-nodes": "sandbox-two-ranks",
    "tensorrt-llm-commands": "tensorrt-llm-two-nodes",
    "pyxis-orchestrator": "tensorrt-llm-two-nodes",
    "sandbox-instances": "sandbox-two-ranks",
    "renewed": "sandbox-two-ranks",
    "local-proxy": "sandbox-two-ranks",
    "local": "local-proxy",
    "pyxis-large-instances": "sandbox-two-ranks",
    "pyxis-two-nodes": "sandbox-two-ranks",
    "apptainer-overlap-keeps-running": "pyxis-large-instances",
    "disaggregated": "pyxis-disaggregated",
    "orchestrator": "pyxis-orchestrator",
    "openai-sixteen-ranks-pyxis": "openai-one-gpu-pyxis",
    "openai-gb200-pyxis": "openai-one-gpu-pyxis",
    "openai-experts-pyxis": "openai-sixteen-ranks-pyxis",
    "openai-disaggregated-pyxis": "openai-sixteen-ranks-pyxis",
    "openai-heterogeneous": "openai-disaggregated-pyxis",
    "openai-prologue-pyxis": "openai-disaggregated-pyxis",
    "openai-engine-pyxis": "openai-one-gpu-pyxis",
    "openai-one-gpu-apptainer": "openai-one-gpu-pyxis",
    "pyxis-disaggregated": "pyxis-orchestrator",
}
"""For each case that is kept as its difference from another case: that case, which may be derived, too."""

NODE_CHECKS = {"openai-heterogeneous": 2, "openai-disaggregated-pyxis": 1, "openai-engine-pyxis": 2}
"""Cases with the script of ``doctor --on-nodes``, on that many nodes."""


def plan_of(job: dict[str, Any], cluster: dict[str, Any], folder: str) -> Plan:
    made = JobFile.model_validate(job)
    facts = facts_of(made, with_job_image(ClusterProfile.model_validate(cluster), made.serve.image))
    return make_plan(facts, RunPaths(folder), python="/opt/trtllm-hpc/bin/python3")


def render_case(name: str) -> Files:
    job, cluster = CASES[name]
    plan = plan_of(job, cluster, _RUN)
    files = render_scripts(plan)
    files.update(
        {f"repository/{file}": text for file, text in render_repository(plan).items() if "pbtxt" in file}
    )
    files.update(render_configurations(plan))
    if name in NODE_CHECKS:
        files["doctor.sbatch"] = render_node_checks(node_check_plan(plan, NODE_CHECKS[name]))["doctor.sbatch"]
    if isinstance(plan.repository, RepositoryRecipe):
        files["repository.json"] = json.dumps(plan.repository.as_json(), indent=2, ensure_ascii=False) + "\n"
    return files


def recorded_outcomes() -> Files:
    return outcomes.recorded() | upstream_outcomes.recorded()


def write_golden() -> None:
    # All of it before anything is removed: rendering may fail.
    rendered, recorded = {name: render_case(name) for name in CASES}, recorded_outcomes()
    shutil.rmtree(GOLDEN)
    for name, files in rendered.items():
        base = BASES.get(name)
        write_case(GOLDEN, name, files, (base, rendered[base]) if base else None)
    write_case(GOLDEN, OUTCOMES, recorded, None)


def write_whole(folder: Path) -> None:
    for name in CASES:
        write_case(folder, name, render_case(name), None)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_whole(Path(sys.argv[1]))
    else:
        write_golden()
