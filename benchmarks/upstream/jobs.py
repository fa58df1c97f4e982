"""Job files of every kind that ``trtllm-serve`` and the LLM API's Triton model serve, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from tests.runs.checkpoints import CHECKPOINTS, checkpoint
from trtllm_hpc.config.cluster import gpus
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.runs.fitting_job import Goal, fitting_job
from trtllm_hpc.tensorrt_llm.llm_api import unknown_keys
from trtllm_hpc.tensorrt_llm.releases.release import release_of_version

PROFILES = ("pyxis", "apptainer", "bare")
_IMAGES = {"pyxis": "nvcr.io#nvidia/tensorrt-llm/release:", "apptainer": "/images/tensorrt-llm-release:"}
_SHIPPED = Path(__file__).parents[2]
_MODELS = ("/models/Llama-3.1-8B", "/models/DeepSeek R1", "/modèles/l'été", '/models/$(x) "y" #1')

Job = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A job file, and the cluster profile to render it for."""

    name: str
    job: Job
    profile: str


def cases(version: str, count: int, seed: int) -> list[Case]:
    """Return the shipped jobs that need no engine, then made ones: ``count`` in all, each on every profile.

    Args:
        version: TensorRT-LLM's, for ``engine.tensorrt_llm_version``.
    """
    found: list[Case] = []
    for name, job in islice(_jobs(version, random.Random(seed)), count):
        stated = merged(job, {"engine": {"tensorrt_llm_version": version}})
        found += [Case(name, stated, profile) for profile in PROFILES]
    return found


def fitting_cases(version: str, count: int, seed: int, folder: Path) -> list[Case]:
    """Return job files of ``init job --gpu``, on each profile.

    Args:
        version: TensorRT-LLM's.
        count: job files of ``init job``, drawn from all checkpoints, kinds of GPU and goals.
        folder: for the checkpoints.
    """
    made: dict[str, Job] = {}
    goals: tuple[Goal, ...] = ("latency", "throughput")
    here = {name: checkpoint(folder, name) for name in CHECKPOINTS}
    wanted = [(it, gpu, goal) for it in CHECKPOINTS for gpu in gpus() for goal in goals]
    for name, gpu, goal in random.Random(seed).sample(wanted, len(wanted)):
        if len(made) == count:
            break
        try:
            text, _ = fitting_job(here[name], "init-job", f"/models/{name}", gpu, goal)
        except ConfigError:  # such GPUs cannot hold or compute the checkpoint
            continue
        made[f"init job {name} {gpu} {goal}"] = _whole(text)
    stated = {"engine": {"tensorrt_llm_version": version}}
    return [Case(name, merged(job, stated), on) for name, job in made.items() for on in PROFILES]


def profile(name: str, version: str) -> dict[str, Any]:
    """Return a shipped profile with an image of that version."""
    text = (_SHIPPED / "slurm" / f"{name}.yaml").read_text()
    made: dict[str, Any] = yaml.safe_load(text)
    if "container" in made:
        made["container"]["image"] = f"{_IMAGES[name]}{version}"
    return made


def _shipped_jobs() -> Iterator[tuple[str, Job]]:
    for file in sorted((_SHIPPED / "jobs").glob("*.yaml")):
        job = _whole(file.read_text())
        if job.get("engine", {}).get("backend") == "pytorch":
            yield file.stem, job


def _whole(text: str) -> Job:
    """Return a job file together with the shipped one that it extends, of which ``null`` removes a key."""
    job: Job = yaml.safe_load(text)
    base = job.pop("extends", None)
    if base is None:
        return job
    whole = merged(_whole((_SHIPPED / "jobs" / f"{base}.yaml").read_text()), job)
    return _without_removed(whole, job)


def _without_removed(whole: Mapping[str, Any], job: Mapping[str, Any]) -> Job:
    return {
        key: _without_removed(value, job.get(key) or {}) if isinstance(value, dict) else value
        for key, value in whole.items()
        if value is not None or key not in job
    }


def shipped_count() -> int:
    """Return how many shipped job files need no engine."""
    return sum(1 for _ in _shipped_jobs())


def _jobs(version: str, rng: random.Random) -> Iterator[tuple[str, Job]]:
    yield from _shipped_jobs()
    # Every single choice at least once, then combinations.
    for key, choices in CHOICES.items():
        for place, choice in enumerate(choices):
            if _is_known(choice, version):
                yield _made(f"{key}-{place}", rng, [choice])
    for number in numbers():
        keys = rng.sample(sorted(CHOICES), rng.randint(3, 8))
        chosen = [rng.choice(CHOICES[key]) for key in keys]
        yield _made(f"made-{number}", rng, [choice for choice in chosen if _is_known(choice, version)])


def left_out(version: str) -> list[str]:
    """Return the choices that no job file has, since the release is said to lack one of their keys."""
    every = [(f"{subject}-{place}", it) for subject, its in CHOICES.items() for place, it in enumerate(its)]
    return [name for name, choice in every if not _is_known(choice, version)]


def _is_known(choice: Mapping[str, Any], version: str) -> bool:
    configuration = choice.get("engine", {}).get("llm_api", {})
    return not unknown_keys(release_of_version(version), configuration)


def _made(name: str, rng: random.Random, choices: Sequence[Mapping[str, Any]]) -> tuple[str, Job]:
    job: Job = {
        "name": name,
        "model": {"path": rng.choice(_MODELS)},
        "engine": {"backend": "pytorch"},
        "companion": {"enabled": False},
    }
    for choice in choices:
        job = merged(job, choice)
    if "disaggregated" in job.get("serve", {}):  # the ranks are those of its phases
        job["engine"] = {key: value for key, value in job["engine"].items() if "parallel" not in key}
    return name, job


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, mapping by mapping; where both have a value it is the second one's."""
    both = dict(first)
    for key, value in second.items():
        before = both.get(key)
        both[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return both


def _engine(**keys: Any) -> Job:
    return {"engine": keys}


def _kv_cache(**keys: Any) -> Job:
    return {"kv_cache": keys}


def _serve(**keys: Any) -> Job:
    return {"serve": keys}


def _api(**keys: Any) -> Job:
    return {"engine": {"llm_api": keys}}


def _speculative(kind: str, **keys: Any) -> Job:
    return _api(speculative_config={"decoding_type": kind, **keys})


def _phases(context: Job, generation: Job, **keys: Any) -> Job:
    return _serve(mode="disaggregated", disaggregated={"context": context, "generation": generation, **keys})


_LAYOUTS = [
    _engine(tensor_parallel=2),
    _engine(tensor_parallel=4, moe_expert_parallel=4),
    _engine(tensor_parallel=4, moe_expert_parallel=2, moe_tensor_parallel=2),
    _engine(tensor_parallel=8, pipeline_parallel=2, moe_expert_parallel=8),
    _engine(tensor_parallel=2, pipeline_parallel=2, llm_api={"pp_partition": [15, 17]}),
    _engine(tensor_parallel=2, context_parallel=2, llm_api={"cp_config": {"cp_type": "HELIX"}}),
    _engine(tensor_parallel=16),
]
_SIZES = [
    _engine(max_batch_size=64, max_num_tokens=4096, max_seq_len=8192),
    _engine(max_batch_size=1, max_num_tokens=8192, max_seq_len=131072, max_input_len=130000),
    _engine(max_beam_width=4, max_batch_size=16, dtype="float16"),
    _engine(dtype="bfloat16", max_input_len=2048),
]
_CACHES = [
    _kv_cache(free_gpu_memory_fraction=0.75, enable_block_reuse=False),
    _kv_cache(max_tokens=200_000, host_cache_size=2**34, enable_block_reuse=True),
    _kv_cache(max_attention_window=[4096, 4096, 32768], sink_token_length=4),
    _api(kv_cache_config={"dtype": "fp8", "tokens_per_block": 64, "event_buffer_max_size": 1024}),
    _api(kv_cache_config={"enable_partial_reuse": False, "copy_on_partial_reuse": False, "dtype": "auto"}),
    _api(kv_cache_config={"mamba_ssm_cache_dtype": "bfloat16", "secondary_offload_min_priority": 30}),
    _api(kv_cache_config={"use_kv_cache_manager_v2": True, "max_util_for_resume": 0.9, "use_uvm": True}),
    _api(kv_cache_config={"max_gpu_total_bytes": 2**36, "onboard_blocks": False, "dtype": "nvfp4"}),
]
_SCHEDULERS = [
    _engine(capacity_scheduler_policy="max_utilization"),
    _engine(capacity_scheduler_policy="guaranteed_no_evict", enable_chunked_prefill=True),
    _api(scheduler_config={"capacity_scheduler_policy": "STATIC_BATCH"}),
    _api(scheduler_config={"context_chunking_policy": "EQUAL_PROGRESS"}, enable_chunked_prefill=True),
    merged(
        _engine(capacity_scheduler_policy="max_utilization"),
        _api(
            scheduler_config={
                "dynamic_batch_config": {
                    "enable_batch_size_tuning": False,
                    "enable_max_num_tokens_tuning": True,
                    "dynamic_batch_moving_average_window": 64,
                }
            }
        ),
    ),
]
_SPECULATION = [
    _speculative("Eagle3", max_draft_len=3, speculative_model="/models/draft model"),
    _speculative("Eagle3", max_draft_len=4, speculative_model_dir="/models/draft", eagle3_one_model=False),
    _speculative("Eagle", max_draft_len=2, speculative_model_dir="/models/draft", max_concurrency=16),
    _speculative("MTP", num_nextn_predict_layers=3),
    _speculative("MTP", num_nextn_predict_layers=1, use_relaxed_acceptance_for_thinking=True, relaxed_topk=5),
    _speculative("NGram", max_draft_len=5, max_matching_ngram_size=3, is_public_pool=False),
    _speculative(
        "NGram", max_draft_len=4, max_matching_ngram_size=2, draft_len_schedule={"1": 4, "8": 2, "32": 0}
    ),
    _speculative("DraftTarget", max_draft_len=4, speculative_model="/models/draft"),
    _speculative("AUTO", acceptance_window=32, acceptance_length_threshold=1.5),
]
_EXPERTS = [
    *(_api(moe_config={"backend": name}) for name in ("CUTLASS", "TRTLLM", "DEEPGEMM", "WIDEEP", "CUTEDSL")),
    _api(moe_config={"backend": "CUTLASS", "max_num_tokens": 9216, "disable_finalize_fusion": True}),
    _api(moe_config={"use_low_precision_moe_combine": True}),
    _api(
        moe_config={
            "load_balancer": {
                "num_slots": 4,
                "initial_global_assignments": {"3": [0, 1, 2, 3]},
                "layer_updates_per_iter": 2,
            }
        }
    ),
]
_GRAPHS = [
    _api(cuda_graph_config={"enable_padding": True, "batch_sizes": [1, 2, 4, 8, 16, 24]}),
    _api(cuda_graph_config={"max_batch_size": 256, "enable_padding": True}),
    _api(cuda_graph_config={"max_batch_size": 48}),
    _api(cuda_graph_config=None),
    # Upstream sorts them so.
    _api(torch_compile_config={"enable_piecewise_cuda_graph": True, "capture_num_tokens": [8, 4, 2, 1]}),
    _api(torch_compile_config={"enable_fullgraph": False, "enable_inductor": True, "max_num_streams": 3}),
]
_ATTENTION = [
    _api(enable_attention_dp=True),
    _api(
        enable_attention_dp=True,
        enable_lm_head_tp_in_adp=True,
        attention_dp_config={"enable_balance": True, "batching_wait_iters": 0, "timeout_iters": 60},
    ),
    _api(attn_backend="FLASHINFER"),
    _api(sparse_attention_config={"algorithm": "dsa", "index_topk": 2048, "indexer_max_chunk_size": 32768}),
    _api(
        sparse_attention_config={"algorithm": "rocket", "prompt_budget": 4096, "kt_cache_dtype": "bfloat16"}
    ),
    _api(
        sparse_attention_config={"algorithm": "skip_softmax", "threshold_scale_factor": {"prefill": 1000.5}}
    ),
]
_ANSWERS = [
    _api(guided_decoding_backend="xgrammar", reasoning_parser="deepseek-r1"),
    _api(guided_decoding_backend="llguidance", num_postprocess_workers=4, stream_interval=10),
    _api(sampler_type="TorchSampler", gather_generation_logits=True, skip_tokenizer_init=False),
    _api(trust_remote_code=True, tokenizer_mode="slow", max_stats_len=10),
    {"model": {"tokenizer": "/models/tokenizer d'un autre"}},
    _api(
        lora_config={"lora_target_modules": ["attn_q", "attn_v"], "max_lora_rank": 16, "max_loras": 2},
        peft_cache_config={"host_cache_size": 2**31, "device_cache_percent": 0.05},
    ),
    _api(enable_lora=True, lora_config={"lora_dir": ["/models/an adapter"], "lora_ckpt_source": "hf"}),
]
_RUNTIME = [
    _api(print_iter_log=True, enable_iter_perf_stats=True, enable_iter_req_stats=True),
    _api(return_perf_metrics=True, perf_metrics_max_requests=500, iter_stats_max_iterations=100),
    _api(disable_overlap_scheduler=True, enable_autotuner=False, load_format="dummy"),
    _api(allreduce_strategy="MNNVL", enable_min_latency=True, force_dynamic_quantization=True),
    _api(batch_wait_timeout_ms=2.5, batch_wait_timeout_iters=3, batch_wait_max_tokens_ratio=0.5),
    _api(
        env_overrides={"NCCL_DEBUG": "INFO", "TLLM_LOG_LEVEL": "no"}, garbage_collection_gen0_threshold=5000
    ),
    _api(model_kwargs={"num_hidden_layers": 2, "rope_scaling": {"factor": 2.0}}, orchestrator_type="rpc"),
    _api(
        nvfp4_gemm_config={"allowed_backends": ["cutlass", "cutedsl"]}, otlp_traces_endpoint="http://x:1/a?b"
    ),
    _api(
        kv_connector_config={
            "connector_module": "a.module",
            "connector_scheduler_class": "Scheduler",
            "connector_worker_class": "Worker",
        }
    ),
]
_SERVERS = [
    _serve(instances=3),
    _serve(door="none", openai="none"),
    merged(_serve(instances=2, instances_per_gpu=2), _kv_cache(free_gpu_memory_fraction=0.8)),
    merged(_serve(frontend="triton"), {"repository": {"decoupled": True}}),
    _serve(frontend="triton", door="none"),
    _phases({"servers": 1}, {"servers": 2}, kv_transfer="UCX", kv_transfer_tokens=8192),
    _phases(
        {"servers": 1},
        {"servers": 1},
        kv_transfer="MOONCAKE",
        front={"max_retries": 2, "conditional_disagg_config": {"max_local_prefill_length": 64}},
    ),
    _phases(
        {"servers": 3}, {"servers": 1}, router="round_robin", kv_transfer="NIXL", kv_transfer_tokens=4096
    ),
    _phases(
        {"servers": 2, "tensor_parallel": 2, "max_batch_size": 4, "llm_api": {"cuda_graph_config": None}},
        {"servers": 2, "pipeline_parallel": 2, "max_num_tokens": 512, "max_seq_len": 8192},
        router="load_balancing",
        kv_transfer_tokens=8192,
    ),
    _phases(
        {"servers": 1, "tensor_parallel": 4, "moe_expert_parallel": 4},
        {
            "servers": 3,
            "tensor_parallel": 8,
            "moe_expert_parallel": 8,
            "llm_api": {"enable_attention_dp": True, "stream_interval": 20},
        },
        router="kv_cache_aware",
        kv_transfer="UCX",
        kv_transfer_tokens=16384,
        request_timeout_seconds=600,
    ),
]
CHOICES: Mapping[str, Sequence[Job]] = {
    "layout": _LAYOUTS,
    "sizes": _SIZES,
    "cache": _CACHES,
    "scheduler": _SCHEDULERS,
    "speculation": _SPECULATION,
    "experts": _EXPERTS,
    "graphs": _GRAPHS,
    "attention": _ATTENTION,
    "answers": _ANSWERS,
    "runtime": _RUNTIME,
    "servers": _SERVERS,
}
"""What a job file can say, by subject; a made job has a choice of several subjects."""
