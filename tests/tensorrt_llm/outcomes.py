"""Configurations of the LLM API and jobs that leave the engine path, with what is said of each.

``tests/golden/outcomes`` has the sentences whole, for review. ``refused`` and
``taken`` are upstream's own verdicts: ``update_llm_args_with_extra_dict`` and
``TorchLlmArgs`` of 1.3.0rc3, run with stubs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.tree import Source, parse
from trtllm_hpc.config.validate import validate
from trtllm_hpc.engines.migration import migrate
from trtllm_hpc.tensorrt_llm.llm_api import unknown_keys, wrong_values
from trtllm_hpc.tensorrt_llm.releases.release import Release, release_of_version

NEWER = "newer"
"""Stands for images that are newer than every release."""

KEYS = """
# Misspelled, or in the wrong section.
1.2.1 {kv_cache_config: {dtyp: fp8}, max_batch_sise: 1, zzz: 1}
1.2.1 {enable_block_reuse: true}
1.2.1 {speculative_config: {decoding_type: MTP, max_matching_ngram_size: 3}}
# Of other releases.
1.0.0 {use_cuda_graph: true}
0.21.0 {cuda_graph_config: {}}
1.1.0 {env_overrides: {}}
1.2.1 {kv_cache_free_gpu_memory_fraction: 0.9}
1.2.1 {telemetry_config: {}}
# In main of 7 February 2026 (1.3.0rc3) there are none of these, so not in 1.2.1.
1.2.1 {use_cute_dsl_blockscaling_mm: true}
1.2.1 {use_cute_dsl_blockscaling_bmm: true}
1.2.1 {scheduler_config: {waiting_queue_policy: fcfs}}
1.2.1 {cache_transceiver_config: {transceiver_runtime: CPP}}
newer {use_cute_dsl_blockscaling_mm: true, use_cute_dsl_blockscaling_bmm: true}
newer {scheduler_config: {waiting_queue_policy: fcfs}, cache_transceiver_config: {transceiver_runtime: CPP}}
# In main of October 2025 there are none of these, so not in 1.1.0.
1.1.0 {cache_transceiver_config: {kv_transfer_sender_future_timeout_ms: 1000}}
1.1.0 {sparse_attention_config: {algorithm: rocket, kt_cache_dtype: bfloat16}}
1.1.0 {sparse_attention_config: {algorithm: rocket, seq_len_threshold: 4096}}
1.1.0 {sparse_attention_config: {algorithm: dsa, skip_indexer_for_short_seqs: true}}
1.2.0 {cache_transceiver_config: {kv_transfer_sender_future_timeout_ms: 1000}}
1.2.0 {sparse_attention_config: {algorithm: rocket, kt_cache_dtype: bfloat16, seq_len_threshold: 4096}}
1.2.0 {sparse_attention_config: {algorithm: dsa, skip_indexer_for_short_seqs: true}}
# A key that came back, one that ended, one that never was, and a release whose keys are not known.
0.21.0 {speculative_config: {decoding_type: Eagle, max_draft_len: 3, speculative_model: m}}
1.0.0 {speculative_config: {decoding_type: Eagle, max_draft_len: 3, speculative_model: m}}
1.2.0 {speculative_config: {decoding_type: Eagle, max_draft_len: 3, speculative_model: m}}
1.2.1 {fail_fast_on_attention_window_too_large: true}
newer {fail_fast_on_attention_window_too_large: true}
0.20.0 {quant_config: {quant_algo: FP8}}
1.2.1 {quant_config: {quant_algo: FP8}}
newer {quant_config: {quant_algo: FP8}}
0.19.0 {zzz: 1, kv_cache_config: null}
# A variant has keys of its own; of one that is not known, every variant's keys are taken.
1.2.0 {speculative_config: {decoding_type: Eagle, eagle3_one_model: true}}
1.2.0 {speculative_config: {decoding_type: Eagle3, eagle3_one_model: true}}
1.2.0 {speculative_config: {decoding_type: NGram, eagle3_one_model: true}}
newer {speculative_config: {decoding_type: Tomorrow, eagle3_one_model: true}}
newer {speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 2}}
newer {sparse_attention_config: {algorithm: dsa, index_topk: 64}}
# What may hold anything is not looked at.
1.2.0 {model_kwargs: {whatever: {it: is}}, env_overrides: {whatever: {it: is}}, lora_config: {whatever: 1}}
1.2.1 {cp_config: {whatever: 1}}
newer {cp_config: {whatever: 1}}
# A value begins with the release that has it.
1.1.0 {moe_config: {backend: AUTO}, cache_transceiver_config: {backend: MOONCAKE}}
1.2.0 {moe_config: {backend: AUTO}, cache_transceiver_config: {backend: MOONCAKE}}
1.1.0 {sparse_attention_config: {algorithm: skip_softmax, threshold_scale_factor: 1000}}
"""

REFUSED = """
{speculative_config: null}
{sparse_attention_config: null}
{moe_config: null}
{lora_config: null}
{attention_dp_config: null}
{nvfp4_gemm_config: null}
{kv_cache_config: null}
{scheduler_config: null}
{cp_config: null}
{speculative_config: {max_draft_len: 3}}
{speculative_config: {decoding_type: Draft_Target}}
{speculative_config: {decoding_type: User_Provided}}
{speculative_config: {decoding_type: PARD}}
{speculative_config: {decoding_type: Medusa}}
{speculative_config: {decoding_type: Lookahead}}
{speculative_config: {decoding_type: eagle3}}
{speculative_config: {decoding_type: Tomorrow}}
{speculative_config: {decoding_type: Eagle3, max_draft_len: 3}}
{speculative_config: {decoding_type: Eagle, max_draft_len: 3}}
{speculative_config: {decoding_type: DraftTarget, max_draft_len: 3}}
{speculative_config: {decoding_type: Eagle3, speculative_model_dir: /d}}
{speculative_config: {decoding_type: NGram, max_matching_ngram_size: 2}}
{speculative_config: {decoding_type: NGram, max_draft_len: 3}}
{speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 0}}
{speculative_config: {decoding_type: SaveState}}
{sparse_attention_config: {topk: 64}}
{kv_cache_config: {max_attention_window: [0]}}
{kv_cache_config: {max_attention_window: []}}
{kv_cache_config: {free_gpu_memory_fraction: 1.5}}
{kv_cache_config: {free_gpu_memory_fraction: null}}
{cuda_graph_config: {batch_sizes: [1, 2, 4], max_batch_size: 8}}
{moe_config: {backend: TENSORRT}}
{cache_transceiver_config: {backend: TCP}}
{stream_interval: 0}
{batch_wait_max_tokens_ratio: 2}
{guided_decoding_backend: outlines}
{allreduce_strategy: RING}
{load_format: safetensors}
{kv_cache_config: {mamba_ssm_cache_dtype: fp8}}
{scheduler_config: {capacity_scheduler_policy: max_utilization}}
{scheduler_config: {dynamic_batch_config: {$TUNING}}}
{kv_connector_config: {connector_module: m, connector_scheduler_class: S}}
"""

TAKEN = """
{cuda_graph_config: null}
{cache_transceiver_config: null}
{speculative_config: {decoding_type: DraftTarget, max_draft_len: 3, speculative_model: /d}}
{speculative_config: {decoding_type: UserProvided, drafter: x}}
{speculative_config: {decoding_type: Eagle, max_draft_len: 3, speculative_model_dir: /d}}
{speculative_config: {decoding_type: NGram, max_draft_len: 3, max_matching_ngram_size: 2}}
{speculative_config: {decoding_type: MTP}}
{speculative_config: {decoding_type: AUTO}}
{kv_cache_config: {max_attention_window: [4096, 1024], free_gpu_memory_fraction: 0}}
{cuda_graph_config: {max_batch_size: 161, enable_padding: true}}
{cuda_graph_config: {batch_sizes: [1, 2, 384]}}
{moe_config: {backend: AUTO}}
{guided_decoding_backend: null, load_format: DUMMY, batch_wait_max_tokens_ratio: 1}
{scheduler_config: {capacity_scheduler_policy: STATIC_BATCH, dynamic_batch_config: null}}
{sparse_attention_config: {algorithm: skip_softmax, threshold_scale_factor: 1000}}
"""

MIGRATED = """
# The other backend; what means the same stays.
{engine: {tensorrt_llm_version: 0.16.0, tensor_parallel: 4, max_seq_len: 4096}}
{engine: {tensorrt_llm_version: 1.1.0}}
# A key with another name in the LLM API.
{engine: {quantization: {kv_cache: fp8}}}
{engine: {tokens_per_block: 64}}
{engine: {max_lora_rank: 8}}
{repository: {guided_decoding_backend: xgrammar}}
# What has no counterpart.
{engine: {quantization: {method: int8_sq}}}
{engine: {quantization: {kv_cache: int8}}}
{engine: {speculative: {mode: draft_tokens_external, max_draft_len: 4}}}
{engine: {speculative: {mode: medusa, heads: 4}}}
{engine: {directory: /engines/one}}
{engine: {encoder_decoder: true}}
{engine: {gather_context_logits: true}}
{repository: {parameters: {tensorrt_llm: {a: 1}}}}
{repository: {instances: 2}}
# What has nothing to decide.
{engine: {plugins: {gemm: auto}}}
{engine: {kv_cache_type: paged}}
{engine: {options: {build: [--strip_plan]}}}
{engine: {gather_context_logits: false}}
{repository: {instances: 1}}
{build: {cpus: 8}}
{serve: {mode: leader}}
# A checkpoint is quantized as the engine was.
{engine: {quantization: {$FP8, kv_cache: int8, calibration_size: 64, per_token: true}}, build: {gpus: 2}}
# Copies of a model become servers behind one door; so do phases on GPUs that are named.
{repository: {models: [{$COPY_A}, {$COPY_B}]}, serve: {mode: orchestrator}}
{serve: {mode: disaggregated, disaggregated: {context: {instances: [[0]]}, generation: {$TWO}}}}
"""

SHORT = {
    "TUNING": "enable_batch_size_tuning: true, enable_max_num_tokens_tuning: true",
    "FP8": "method: fp8_rowwise",
    "COPY_A": "name: a, gpu_device_ids: [0]",
    "COPY_B": "name: b, gpu_device_ids: [1]",
    "TWO": "instances: [[1], [2]], max_batch_size: 256, engine: /engines/two",
}
"""What stands for some keys, after a dollar sign."""


def recorded() -> dict[str, str]:
    """Return files of ``tests/golden/outcomes``."""
    values = "\n".join(
        ["# Upstream refuses these.", *of_1_2_1(REFUSED), "# Upstream takes these.", *of_1_2_1(TAKEN)]
    )
    tables = {"llm-api-keys": KEYS, "llm-api-values": values, "migration": MIGRATED}
    return {
        f"{name}.txt": "".join(f"{line}\n" for case in cases.strip().splitlines() for line in _outcome(case))
        for name, cases in tables.items()
    }


def of_1_2_1(configurations: str) -> list[str]:
    """Return lines with the version before each."""
    return [f"1.2.1 {line}" for line in configurations.strip().splitlines()]


def _outcome(case: str) -> Iterator[str]:
    """Yield the case and, indented, what is said of it; a comment as it is."""
    yield case
    text = re.sub(r"\$([A-Z0-9_]+)", lambda short: SHORT[short[1]], case)
    if case.startswith("{"):
        yield from _migration(yaml.safe_load(text))
    elif not case.startswith("#"):
        yield from findings(text) or ["  taken"]


def findings(case: str) -> list[str]:
    """Return what is wrong with a line ``VERSION {configuration}``."""
    version, configuration = case.split(" ", 1)
    return verdict(None if version == NEWER else known(version), yaml.safe_load(configuration))


def verdict(release: Release | None, configuration: dict[str, Any]) -> list[str]:
    """Return the keys and values that a release does not take."""
    keys = [
        f"  unknown {key.path}: {key.message}; suggested: {key.suggestion}"
        for key in unknown_keys(release, configuration)
    ]
    wrong = [] if release is None else wrong_values(release, configuration)
    return keys + [f"  wrong {path}: {message}; {remedy}" for path, message, remedy in wrong]


def known(version: str) -> Release:
    """Return a release that is known here."""
    release = release_of_version(version)
    assert release is not None
    return release


def _migration(sections: dict[str, dict[str, object]]) -> Iterator[str]:
    engine = {"backend": "tensorrtllm", **sections.pop("engine", {})}
    old = yaml.safe_dump({"name": "chat", "model": {"path": "/m"}, "engine": engine, **sections})
    done = migrate(old, read_job(old))
    read_job(done.text)
    new = {name: keys for name, keys in yaml.safe_load(done.text).items() if name not in ("name", "model")}
    yield f"  becomes {yaml.safe_dump(new, default_flow_style=True, width=1000).strip()}"
    for change in done.changes:
        now, instead = (f"; {word}" if word else "" for word in (change.now, change.instead))
        yield f"  {change.kind} {change.key}{now}: {change.why}{instead}"


def read_job(text: str) -> JobFile:
    """Return the job file that a text is."""
    tree, wrong = parse(text, Source("job.yaml", folder="/"))
    assert tree is not None and not wrong
    job, wrong = validate(JobFile, tree)
    assert job is not None, wrong
    return job
