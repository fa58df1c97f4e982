"""Job files by release, family and engine keys, and what they lead to: build steps and notes, or findings.

``tests/golden/outcomes`` has the command lines, notes and findings whole, for
review. Sources are upstream's own examples at the tag of the release.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from tests.plan.made_steps import cluster, found, job, line, made_plan, notes, steps
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.files import jobs, read_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.runs.job_files import shipped_jobs
from trtllm_hpc.runtime.engine_cache.build_recipe import BuildStep

CASES = {
    "quantization": """
# quantize.py calibrates.
0.16.0 llama {quantization: {method: fp8, calibration_dataset: /cnn, calibration_size: 32}}
0.16.0 llama {quantization: {method: int8_sq, calibration_dataset: /cnn}}
0.16.0 llama {quantization: {method: int4_awq, calibration_dataset: /cnn}}
0.16.0 llama {quantization: {kv_cache: int8, calibration_dataset: /cnn}}
0.17.0 llama {quantization: {method: nvfp4, kv_cache: fp8, calibration_dataset: /cnn}}
# Samples that are downloaded are a note.
0.16.0 llama {quantization: {method: fp8}}
# Weights alone are quantized where they are read.
0.7.1 llama {quantization: {method: int8_wo}}
0.8.0 llama {quantization: {method: int4_wo}}
1.2.1 llama {quantization: {method: int8_wo}}
0.16.0 llama {quantization: {method: int8_wo, kv_cache: int8}}
0.16.0 llama {quantization: {method: int8_wo, kv_cache: fp8}}
# build.py quantizes weights alone.
0.7.1 llama {quantization: {method: fp8}}
0.7.1 llama {quantization: {method: int8_wo, kv_cache: int8}}
# GPTQ's weights by the name of the day.
0.9.0 llama {quantization: {method: int4_gptq, checkpoint: /models/gptq}}
0.10.0 llama {quantization: {method: int4_gptq, checkpoint: /models/gptq}}
0.11.0 llama {quantization: {method: int4_gptq, checkpoint: /models/gptq}}
0.16.0 llama {quantization: {method: int4_gptq}}
# Qwen's are the model itself: examples/qwen/README.md, 'INT4-GPTQ'.
0.16.0 qwen {quantization: {method: int4_gptq}}
1.2.1 qwen {quantization: {method: int4_gptq, checkpoint: /models/gptq}}
# A method that came later.
0.11.0 llama {quantization: {method: fp8_rowwise}}
0.16.0 llama {quantization: {method: nvfp4}}
# GPUs that have it.
0.16.0 llama {quantization: {method: fp8}, site: {compute_capability: '8.0'}}
0.17.0 llama {quantization: {method: nvfp4}, site: {compute_capability: '9.0'}}
""",
    "steps": """
# The steps of LLaMA, and of GPT, whose programs changed a release later.
0.5.0 llama {inflight_batching: true}
0.7.1 llama {}
0.16.0 llama {tensor_parallel: 2}
0.19.0 llama {}
1.2.1 llama {}
0.8.0 gpt {}
# A profile may say where the examples are.
0.19.0 llama {site: {container: {examples: /shared/examples, python: /usr/bin/python3.12}}}
# The answer's length alone, or prompt and answer together.
0.7.1 llama {max_input_len: 1024, max_seq_len: 1536}
0.11.0 llama {max_input_len: 1024, max_seq_len: 1536}
# The release's own prompt length leaves no room for an answer.
0.10.0 llama {max_seq_len: 1024}
# A paged cache, and the logits.
0.7.1 llama {kv_cache_type: paged}
0.13.0 llama {kv_cache_type: paged, max_batch_size: 7}
1.2.1 llama {kv_cache_type: paged}
0.7.1 llama {gather_context_logits: true}
1.2.1 llama {gather_context_logits: true}
# Defaults that changed silently are written out.
0.9.0 llama {}
0.13.0 llama {}
# The attention plugin has the model's type. A type that nobody knows is a note before 0.15.
0.9.0 llama {dtype: bfloat16}
0.15.0 llama {dtype: auto}
# An engine keeps the GPUs of a node that its ranks see; from 1.2 on the checkpoint does.
0.16.0 llama {tensor_parallel: 8, site: {gpus_per_node: 4}}
0.16.0 llama {tensor_parallel: 4, pipeline_parallel: 2, site: {gpus_per_node: 4}}
1.2.0 llama {tensor_parallel: 8, site: {gpus_per_node: 4}}
# GPT's build.py knows one parallelism only.
0.7.1 gpt {tensor_parallel: 2, pipeline_parallel: 2}
# Workers convert and build.
0.16.0 llama {workers: 8, tensor_parallel: 8}
# Commands of the job file, for any other family: examples/falcon/README.md of 0.16.
0.16.0 - {tensor_parallel: 2, build: {commands: [[$CONVERT], [$BUILD]]}}
0.16.0 - {directory: /e, workers: 2, paged_context_fmha: true, build: {commands: [[$BUILD]]}}
0.16.0 - {build: {commands: [[convert, '--out={work}', '{modl}', '{'], [trtllm-build]]}}
0.16.0 falcon {build: {commands: [[$BUILD]]}, phases: {$CONTEXT, generation: {$TWO, max_batch_size: 2}}}
0.19.0 - {build: {commands: [[python3, '{examples}/models/contrib/mpt/convert_checkpoint.py', '{output}']]}}
reference - {build: {commands: [[$BUILD]]}}
# V1 batching is one switch less: 'remove --use_inflight_batching'.
0.7.1 llama {inflight_batching: false, repository: {batching_strategy: V1}}
""",
    "keys": """
# Keys and backends that came later or were dropped, and names of no release.
0.9.0 llama {context_parallel: 2}
0.11.0 llama {plugins: {fp8_rowwise_gemm: auto}}
0.16.0 llama {plugins: {gem: auto}}
0.18.2 llama {backend: pytorch}
0.16.0 lama {}
0.7.1 qwen {}
# Keys and each other.
0.16.0 llama {tensor_parallel: 8, moe_tensor_parallel: 2, moe_expert_parallel: 2}
0.16.0 llama {kv_cache_type: continuous}
0.16.0 llama {kv_cache: {enable_block_reuse: true}}
0.16.0 llama {enable_chunked_prefill: true}
0.7.1 llama {repository: {batching_strategy: inflight_fused_batching}}
# Engines that were built for it; from 0.17 on the cache is reused by default.
0.19.0 llama {kv_cache_type: continuous, repository: {batching_strategy: V1}}
1.2.1 llama {kv_cache: {enable_block_reuse: true}, enable_chunked_prefill: true}
1.2.1 llama {paged_context_fmha: false, kv_cache: {enable_block_reuse: true}}
""",
    "llm-api": """
# Keys that it would lose without a word.
1.0.0 llama {backend: pytorch, kv_cache_type: paged}
1.0.0 llama {backend: pytorch, paged_context_fmha: true}
1.0.0 llama {backend: pytorch, directory: /engines/one}
1.0.0 llama {backend: pytorch, tensor_parallel: 2, max_batch_size: 8, max_num_tokens: 4096}
# What the plan decides.
1.2.1 llama {backend: pytorch, llm_api: {tensor_parallel_size: 4}}
# Keys and values are those of the release. Triton's model makes the objects in another way.
1.2.1 llama {backend: pytorch, llm_api: {kv_cache_config: {dtype: fp8}, cuda_graph_config: {}}}
1.2.1 llama {backend: pytorch, llm_api: {kv_cache_config: {dtyp: fp8}}}
0.21.0 llama {backend: pytorch, llm_api: {cuda_graph_config: {enable_padding: true}}}
1.2.1 llama {backend: pytorch, llm_api: {$DRAFTED}}
1.2.1 llama {backend: pytorch, llm_api: {$DRAFTED}, serve: {frontend: triton}}
1.3.0 llama {backend: pytorch, llm_api: {kv_cache_config: {dtype: fp8}, colour: blue}}
1.2.1 llama {backend: pytorch, llm_api: {moe_config: {backend: TRITON}}}
# An engine is served by the backend for engines.
0.20.0 llama {serve: {frontend: openai}}
1.2.1 llama {serve: {frontend: openai}}
# Chunks of prompts are whole blocks of the KV cache.
1.2.1 llama {backend: pytorch, max_num_tokens: 1160, llm_api: {enable_chunked_prefill: true}}
1.2.1 llama {backend: pytorch, max_num_tokens: 20, enable_chunked_prefill: true}
1.2.1 llama {backend: pytorch, max_num_tokens: 96, llm_api: {$BLOCKS_OF_64}}
1.2.1 llama {backend: pytorch, phases: {context: {max_num_tokens: 1160, max_seq_len: 4096, $CHUNKS}}}
1.2.1 llama {backend: pytorch, $CHUNKS}
# A checkpoint is loaded as it is.
1.2.1 llama {backend: pytorch, quantization: {method: fp8}}
""",
    "serving": """
# An orchestrator's copies of a model, each with GPUs of its own.
0.16.0 llama {tensor_parallel: 2, copies: [{$ONE}, {name: tensorrt_llm_2, gpu_device_ids: [2, 3]}]}
0.16.0 llama {tensor_parallel: 2, serve: {mode: orchestrator}}
0.16.0 llama {tensor_parallel: 2, repository: {models: [{$ONE}]}}
0.16.0 llama {tensor_parallel: 2, copies: [{$ONE}, {name: b, gpu_device_ids: [1, 2]}]}
0.16.0 llama {tensor_parallel: 2, serve: {mode: orchestrator, nodes: 2}, repository: {models: [{$ONE}]}}
reference - {tensor_parallel: 2, serve: {mode: orchestrator}, repository: {models: [{$ONE}]}}
# Phases with Triton.
0.16.0 llama {tensor_parallel: 2, phases: {$CONTEXT, generation: {$TWO}}}
0.12.0 llama {tensor_parallel: 2, phases: {$CONTEXT, generation: {$TWO}}}
0.16.0 llama {tensor_parallel: 2, serve: {mode: disaggregated}}
0.16.0 llama {tensor_parallel: 2, serve: {disaggregated: {$CONTEXT, generation: {$TWO}}}}
0.16.0 llama {tensor_parallel: 2, phases: {$CONTEXT, generation: {instances: [[7, 8]]}}}
0.16.0 llama {tensor_parallel: 2, phases: {$CONTEXT, generation: {instances: [[2]], tensor_parallel: 2}}}
0.16.0 llama {tensor_parallel: 2, phases: {$CONTEXT, generation: {$FINISHED, max_batch_size: 2}}}
0.16.0 llama {phases: {context: {engine: /c, instances: [[0], [1, 2]]}, generation: {$FINISHED}}}
0.16.0 llama {tensor_parallel: 2, phases: {$CONTEXT, generation: {$TWO, moe_expert_parallel: 2}}}
# Phases of servers.
1.2.0 llama {backend: pytorch, phases: {generation: {llm_api: {kv_cache_confg: {dtype: fp8}}}}}
1.2.0 llama {backend: pytorch, tensor_parallel: 2, phases: {context: {instances: [[0, 1]]}}}
1.2.0 llama {backend: pytorch, phases: {generation: {engine: /e}}}
# Ways of the KV cache. From 1.3.0rc3 on, upstream makes the buffer as large as max_seq_len.
1.2.1 llama {backend: pytorch, phases: {context: {$CHUNKS}}}
1.3.0rc3 llama {backend: pytorch, phases: {context: {$CHUNKS}}}
1.2.1 llama {backend: pytorch, phases: {kv_transfer_tokens: 1000}}
# UCX needs the transceiver of C++ where that of Python is the default.
1.2.1 llama {backend: pytorch, max_num_tokens: 4096, phases: {kv_transfer: UCX}}
1.3.0rc3 llama {backend: pytorch, max_num_tokens: 4096, phases: {kv_transfer: UCX}}
1.4.0 llama {backend: pytorch, max_num_tokens: 4096, phases: {kv_transfer: UCX}}
# Both phases have a buffer for the longest prompt, of whole blocks of the KV cache.
1.4.0 llama {backend: pytorch, phases: {context: {}, generation: {}}}
1.2.1 llama {backend: pytorch, max_num_tokens: 4096, max_seq_len: 2000, phases: {context: {}}}
1.2.1 llama {backend: pytorch, phases: {context: {max_num_tokens: 1024}, generation: {max_num_tokens: 16}}}
1.2.1 llama {backend: pytorch, max_num_tokens: 4096, max_seq_len: 9000, $CHUNKS, phases: {context: {}}}
1.2.1 llama {backend: pytorch, llm_api: {kv_cache_config: {tokens_per_block: 64}}, phases: {context: {}}}
1.4.0 llama {backend: pytorch, phases: {kv_transfer_tokens: 8192}}
# Servers report their KV cache to a front that goes by it.
1.2.1 llama {backend: pytorch, phases: {router: kv_cache_aware}}
# Keys of the front that it does not have, and values that it has later.
1.2.0 llama {backend: pytorch, phases: {kv_transfer: UCX, front: {schedule_style: generation_first}}}
1.2.0 llama {backend: pytorch, phases: {kv_transfer: UCX, front: {otlp_config: {endpoint: x}}}}
1.2.0 llama {backend: pytorch, phases: {kv_transfer: UCX, front: {max_retry: 2}}}
1.2.0 llama {backend: pytorch, phases: {kv_transfer: UCX, front: {port: 8000}}}
1.2.0 llama {backend: pytorch, phases: {kv_transfer: UCX, router: conversation}}
1.2.0 llama {backend: pytorch, phases: {kv_transfer: UCX, router_args: {tokens_per_block: 64}}}
1.1.0 llama {backend: pytorch, phases: {kv_transfer: MOONCAKE, front: {max_retries: 2}}}
1.2.0 llama {backend: pytorch, phases: {kv_transfer: MOONCAKE, front: {max_retries: 2}}}
# Nodes of a phase's own kind, which are not counted together.
1.2.0 llama {backend: pytorch, tensor_parallel: 2, serve: {nodes: 2, $TWO_TO_GENERATE}, $NODES_OF_4}
1.2.0 llama {backend: pytorch, tensor_parallel: 2, serve: {nodes: 2, $TWO_TO_GENERATE}, $NODES_APART}
# Ranks over nodes, and instances behind a proxy.
reference - {tensor_parallel: 8, serve: {nodes: 3}}
reference - {tensor_parallel: 8, serve: {nodes: 1}, site: {gpus_per_node: 4}}
reference - {tensor_parallel: 6, serve: {nodes: 1}, site: {gpus_per_node: 4}}
reference - {tensor_parallel: 2, serve: {instances: 2, proxy: none}}
reference - {tensor_parallel: 2, serve: {instances: 3, nodes: 2}, site: {gpus_per_node: 4}}
reference - {tensor_parallel: 2, serve: {instances: 4, nodes: 1}, site: {gpus_per_node: 4}}
reference - {tensor_parallel: 2, serve: {instances: 2, nodes: 1, placement: spread}}
reference - {tensor_parallel: 2, serve: {tls: true, proxy: none}}
reference - {tensor_parallel: 2, serve: {idle_minutes: 60, proxy: none}}
""",
    "lora": """
# The companion's adapter, which the engine takes or not.
reference - {companion: {request: {lora: {directory: /a}}}}
0.14.0 llama {$LUOTUO, companion: {request: {lora: {directory: /a}}}}
0.16.0 llama {companion: {request: {lora: {directory: /a}}}}
reference - {max_lora_rank: 8, companion: {request: {lora: {directory: /a}}}}
0.16.0 llama {$LUOTUO, companion: {request: {lora: {adapter: other}}}}
0.16.0 llama {$LUOTUO, companion: {request: {lora: {adapter: luotuo}}}}
0.16.0 llama {$FLOAT32, companion: {request: {lora: {adapter: luotuo}}}}
0.16.0 llama {$LUOTUO, companion: {request: {lora: {}}}}
0.16.0 - {directory: /engines/with-lora, companion: {request: {lora: {directory: /a}}}}
reference - {companion: {enabled: false, request: {lora: {directory: /a}}}}
# No build.py of LLaMA takes the LoRA options of inflight_batching.md.
0.5.0 llama {inflight_batching: true, max_lora_rank: 8, lora: {target_modules: [attn_q, attn_k, attn_v]}}
# Of the engine.
0.16.0 llama {lora: {target_modules: [attn_q]}}
0.16.0 llama {max_lora_rank: 8, lora: {target_modules: [attn_q], adapters: [/a/x, /b/x]}}
""",
    "logits": """
# Logits that the companion requests, and the engine gathers or not.
reference - {companion: {request: {context_logits: true}}}
0.16.0 llama {companion: {request: {context_logits: true, generation_logits: true}}}
0.16.0 llama {gather_context_logits: true, companion: {request: {context_logits: true}}}
0.16.0 - {directory: /engines/with-logits, companion: {request: {generation_logits: true}}}
0.16.0 llama {companion: {enabled: false, request: {context_logits: true}}}
1.2.1 llama {backend: pytorch, companion: {request: {generation_logits: true}}}
1.2.1 llama {backend: pytorch, serve: {frontend: triton}, companion: {request: {generation_logits: true}}}
""",
    "reference": """
# Keys of other backends.
reference - {kv_cache_type: paged}
reference - {paged_context_fmha: true}
# Lengths, times and numbers that do not go together.
reference - {max_input_len: 512}
reference - {companion: {benchmark: {max_tokens: 512}}}
reference - {kv_cache: {max_tokens: 511}}
reference - {serve: {time_limit_minutes: 10}}
reference - {companion: {time_limit_minutes: 10}}
reference - {companion: {time_limit_minutes: 20}}
reference - {companion: {time_limit_minutes: 120, benchmark: {requests: 15000}}}
reference - {build: {gpus: 1}, site: {gpus_per_node: 0}}
reference - {companion: {enabled: false, time_limit_minutes: 1, request: {max_tokens: 9999}}}
""",
    "benchmark": """
# Settings of the benchmark that do not go together, or measure for too short a time.
reference - {$SMALL, benchmark: {workload: {prompts: [a], kind: normal}}}
reference - {$SMALL, benchmark: {workload: {prefixes: 2}}}
reference - {$SMALL, benchmark: {workload: {kind: dataset}}}
reference - {$SMALL, benchmark: {workload: {path: /a}}}
reference - {$SMALL, benchmark: {arrival: trace}}
reference - {$SMALL, benchmark: {concurrency: 2, concurrencies: [1, 2]}}
reference - {$SMALL, benchmark: {concurrency: 2, rates_per_second: [1, 2]}}
reference - {$SMALL, benchmark: {requests: 5, duration_seconds: 5}}
reference - {$SMALL, benchmark: {requests: null}}
reference - {$SMALL, benchmark: {warmup_requests: 1, warmup_seconds: 1}}
reference - {$SMALL, benchmark: {find_max: true}}
reference - {$SMALL, benchmark: {workload: {kind: normal, input_tokens: 257}}}
reference - {$SMALL, benchmark: {workload: {kind: normal, output_tokens: 512}}}
reference - {$SMALL, benchmark: {duration_seconds: 3600}}
reference - {$SMALL, benchmark: {rates_per_second: [4.0, 0.001]}}
reference - {$SMALL, benchmark: {requests: 9}}
reference - {$SMALL, benchmark: {rates_per_second: [4.0, 20.1]}}
reference - {$SMALL, benchmark: {duration_seconds: 2, rates_per_second: [20.0, 4.5]}}
reference - {$SMALL, benchmark: {find_max: true, slo: ttft<1s, requests: 5, rate_per_second: 0.5}}
# What may be long enough. A search makes windows that are long enough of whatever number.
reference - {$SMALL, benchmark: {requests: 10}}
reference - {$SMALL, benchmark: {workload: {kind: trace, path: /a}}}
reference - {$SMALL, benchmark: {find_max: true, slo: ttft<1s, requests: 5, rate_per_second: 3.0}}
""",
    "raw-options": """
# They are the last words of their program, and not written out a second time.
0.16.0 llama {options: {build: [--strip_plan, --visualize_network], convert: [--load_model_on_cpu]}}
0.16.0 llama {options: {build: [--paged_state, disable]}}
# An option with a key of its own.
0.16.0 llama {options: {build: [--context_fmha=enable, --log_level, verbose]}}
# A word that the release ignores is a note.
0.9.0 llama {options: {build: [--tp_size, '4']}}
# A list takes several words.
0.16.0 gpt {options: {convert: [--gpt_variant=gpt2, --nemo_rename_key, 'a:b', 'c:d']}}
""",
}
"""Lines ``RELEASE FAMILY {engine keys}`` by file.

Among the keys are other sections, ``site`` for the profile, ``benchmark`` for the
companion's, and ``copies`` and ``phases`` for the modes of serving that take them.
"""

SHORT = {
    "CONVERT": "python3, '{examples}/falcon/convert_checkpoint.py', --model_dir, '{model}', "
    "--tp_size, '{tensor_parallel}', --output_dir, '{work}/checkpoint'",
    "BUILD": "trtllm-build, --checkpoint_dir, '{work}/checkpoint', --output_dir, '{output}'",
    "LORA": "max_lora_rank: 8, lora: {target_modules: [attn_q], adapters: [/adapters/a]}",
    "LUOTUO": "max_lora_rank: 8, lora: {target_modules: [attn_q], adapters: [/hf/luotuo]}",
    "FLOAT32": "max_lora_rank: 8, "
    "lora: {target_modules: [attn_q], adapters: [/hf/luotuo], storage_type: float32}",
    "DRAFTED": "speculative_config: {decoding_type: Draft_Target, max_draft_len: 3}",
    "CHUNKS": "llm_api: {enable_chunked_prefill: true}",
    "BLOCKS_OF_64": "enable_chunked_prefill: true, kv_cache_config: {tokens_per_block: 64}",
    "SMALL": "max_input_len: 256, max_seq_len: 512",
    "ONE": "name: tensorrt_llm, gpu_device_ids: [0, 1]",
    "CONTEXT": "context: {instances: [[0, 1]]}",
    "TWO": "instances: [[2, 3]]",
    "FINISHED": "instances: [[2]], engine: /e",
    "TWO_TO_GENERATE": "mode: disaggregated, disaggregated: {generation: {servers: 2}}",
    "NODES_OF_4": "site: {gpus_per_node: 4}",
    "NODES_APART": "site: {gpus_per_node: 4, "
    "phases: {context: {partition: a}, generation: {gpus_per_node: 2}}}",
}
"""Keys that several lines share, by what stands for them after a dollar sign."""
SECTIONS = ("kv_cache", "repository", "serve", "build", "companion")


def recorded() -> dict[str, str]:
    """Return the files of ``tests/golden/engine-builds``."""
    files = {
        name: [text for case in cases.strip().splitlines() for text in _outcome(case)]
        for name, cases in CASES.items()
    }
    shipped = [job.name for job in shipped_jobs() if job.backend in ("tensorrtllm", "pytorch")]
    files["shipped-jobs"] = [text for name in shipped for text in _outcome_of_shipped(name)]
    return {f"{name}.txt": "".join(f"{text}\n" for text in texts) for name, texts in files.items()}


def _outcome(case: str) -> Iterator[str]:
    """Yield the case and, indented, what it leads to; a comment as it is."""
    yield case
    if not case.startswith("#"):
        yield from _lead(*_files(case))


def _outcome_of_shipped(name: str) -> Iterator[str]:
    yield f"{name}.yaml"
    made = read_job(jobs()[name])
    release = made.engine.tensorrt_llm_version
    yield from _lead(made, cluster(container={"tensorrt_llm_version": release}))


def _lead(made: JobFile, site: ClusterProfile) -> Iterator[str]:
    """Yield findings, or build steps, servers and notes."""
    problems = found(made, site)
    for problem in problems:
        yield f"  {problem.code} {problem.field}: {problem.message}"
        yield f"    next: {problem.hint}"
    if problems:
        return
    if made.engine.backend in ("tensorrtllm", "python") and not made.engine.directory:
        for step in steps(made, site):
            yield from _step(step)
        yield from (f"  note: {note}" for note in notes(made))
    if made.frontend == "openai":
        yield from _servers(made_plan(made, site))
    elif made.engine.backend in ("reference", "pytorch"):
        yield "  accepted"


def _servers(plan: Plan) -> Iterator[str]:
    """Yield the command lines and configurations of servers that speak OpenAI's protocol, and the notes."""
    for server in plan.servers:
        yield f"  serves: {' '.join(server.spec.leader)}"
        configuration = yaml.safe_load(server.configuration or "{}")
        yield f"    configured: {yaml.safe_dump(configuration, default_flow_style=True, width=1000).strip()}"
    if plan.front is not None:
        yield f"  in front: {' '.join(plan.front.command)}"
    yield from (f"  note: {note}" for note in plan.notes)


def _files(case: str) -> tuple[JobFile, ClusterProfile]:
    """Return the job file and the profile that a line stands for."""
    release, family, text = case.split(" ", 2)
    keys = yaml.safe_load(re.sub(r"\$([A-Z0-9_]+)", lambda short: SHORT[short[1]], text))
    sections = {name: keys.pop(name) for name in SECTIONS if name in keys}
    site = cluster(**keys.pop("site", {}))
    if benchmark := keys.pop("benchmark", None):
        sections["companion"] = {"benchmark": benchmark}
    if copies := keys.pop("copies", None):
        sections |= {"serve": {"mode": "orchestrator"}, "repository": {"models": copies}}
    if phases := keys.pop("phases", None):
        sections["serve"] = {"mode": "disaggregated", "disaggregated": phases}
    if release == "reference":
        return JobFile.model_validate({"name": "x", "engine": keys, **sections}), site
    return job(release, family, engine={"dtype": "float16", **keys}, **sections), site


def _step(step: BuildStep) -> Iterator[str]:
    first, *others = map(line, step.commands)
    yield f"  {step.name} of {', '.join(step.inputs)}{' on a GPU' if step.on_gpu else ''}: {first}"
    yield from (f"    {command}" for command in others)
