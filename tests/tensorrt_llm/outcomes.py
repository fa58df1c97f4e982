"""Configurations of the LLM API, with what is said of each.

``tests/golden/outcomes`` has the sentences whole, for review. ``refused`` and
``taken`` are upstream's own verdicts: ``update_llm_args_with_extra_dict`` and
``TorchLlmArgs`` of 1.3.0rc3, run with stubs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

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
newer {scheduler_config: {waiting_queue_policy: fcfs}, cache_transceiver_config: {transceiver_runtime: CPP}}
# In main of October 2025 there are none of these, so not in 1.1.0.
1.1.0 {cache_transceiver_config: {kv_transfer_sender_future_timeout_ms: 1000}}
1.2.0 {cache_transceiver_config: {kv_transfer_sender_future_timeout_ms: 1000}}
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
# What may hold anything is not looked at.
1.2.0 {model_kwargs: {whatever: {it: is}}, env_overrides: {whatever: {it: is}}, lora_config: {whatever: 1}}
1.2.1 {cp_config: {whatever: 1}}
# A value begins with the release that has it.
1.1.0 {moe_config: {backend: AUTO}, cache_transceiver_config: {backend: MOONCAKE}}
1.2.0 {moe_config: {backend: AUTO}, cache_transceiver_config: {backend: MOONCAKE}}
1.1.0 {sparse_attention_config: {algorithm: skip_softmax, threshold_scale_factor: 1000}}
"""

REFUSED = """
{speculative_config: null}
{sparse_attention_config: null}
{moe_config: null}
{kv_cache_config: null}
{speculative_config: {max_draft_len: 3}}
{speculative_config: {decoding_type: Draft_Target}}
{speculative_config: {decoding_type: PARD}}
{speculative_config: {decoding_type: eagle3}}
{speculative_config: {decoding_type: Tomorrow}}
{speculative_config: {decoding_type: Eagle3, max_draft_len: 3}}
{speculative_config: {decoding_type: Eagle, max_draft_len: 3}}
{speculative_config: {decoding_type: DraftTarget, max_draft_len: 3}}
{speculative_config: {decoding_type: Eagle3, speculative_model_dir: /d}}
{speculative_config: {decoding_type: NGram, max_matching_ngram_size: 2}}
{speculative_config: {decoding_type: NGram, max_draft_len: 3}}
{speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 0}}
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
{kv_cache_config: {mamba_ssm_cache_dtype: fp8}}
{scheduler_config: {capacity_scheduler_policy: max_utilization}}
{scheduler_config: {dynamic_batch_config: {enable_batch_size_tuning: true, \
enable_max_num_tokens_tuning: true}}}
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


def recorded() -> dict[str, str]:
    """Return files of ``tests/golden/outcomes``."""
    values = "\n".join(
        ["# Upstream refuses these.", *of_1_2_1(REFUSED), "# Upstream takes these.", *of_1_2_1(TAKEN)]
    )
    tables = {"llm-api-keys": KEYS, "llm-api-values": values}
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
    if not case.startswith("#"):
        yield from findings(case) or ["  taken"]


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
