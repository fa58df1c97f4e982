"""What ``trtllm-serve`` and the LLM API's configuration take, release by release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from trtllm_hpc.tensorrt_llm import llm_api
from trtllm_hpc.tensorrt_llm.llm_api import (
    config_option,
    has_key_facts,
    serve_options,
    unknown_keys,
    wrong_values,
)
from trtllm_hpc.tensorrt_llm.releases import Release, release_of_version, releases
from trtllm_hpc.tensorrt_llm.releases.data_files import parsed, read_data
from trtllm_hpc.tensorrt_llm.releases.learned import LEARNED

VERSIONS = [release.version for release in releases()]
TO_COME = "1.3.0"


def release(version: str | None) -> Release | None:
    if version is None:
        return None
    found = release_of_version(version)
    assert found is not None
    return found


def unknown(version: str | None, configuration: Mapping[str, Any]) -> dict[str, tuple[str | None, str]]:
    """Each unknown key with what is suggested, and the message."""
    return {key.path: (key.suggestion, key.message) for key in unknown_keys(release(version), configuration)}


# The options of the page of 0.18.2, of both sides of the merge that trtllm_serve.toml names, and 3 of main.
_0_18 = {
    *("--tokenizer", "--host", "--port", "--backend", "--max_beam_width", "--max_batch_size"),
    *("--max_num_tokens", "--max_seq_len", "--tp_size", "--pp_size", "--kv_cache_free_gpu_memory_fraction"),
    "--trust_remote_code",
}
_0_20 = _0_18 | {
    *("--log_level", "--ep_size", "--cluster_size", "--gpus_per_node", "--num_postprocess_workers"),
    *("--extra_llm_api_options", "--reasoning_parser"),
}
_1_1 = _0_20 | {
    *("--metadata_server_config_file", "--server_role", "--fail_fast_on_attention_window_too_large"),
    *("--disagg_cluster_uri", "--enable_chunked_prefill", "--media_io_kwargs"),
}


@pytest.mark.parametrize(("version", "names"), [("0.18.2", _0_18), ("0.20.0", _0_20), ("1.1.0", _1_1)])
def test_the_options_are_those_that_were_read(version: str, names: set[str]) -> None:
    assert set(serve_options(release(version))) == names


def test_a_release_without_the_server_has_no_options() -> None:
    assert serve_options(release("0.16.0")) == {}


def test_an_option_that_stayed_goes_by_the_name_that_most_releases_have() -> None:
    for version in (*VERSIONS[VERSIONS.index("0.20.0") :], None):
        names = set(serve_options(release(version)))
        assert {"--tp_size", "--pp_size", "--ep_size", "--extra_llm_api_options"} <= names, version
    assert serve_options(release("1.2.1"))["--tp_size"].aliases == ("--tensor_parallel_size",)
    assert serve_options(release("1.1.0"))["--tp_size"].aliases == ()


def test_newer_images_have_what_no_release_has() -> None:
    newest = serve_options(None)
    assert {"--grpc", "--served_model_name"} <= set(newest) - set(serve_options(release(VERSIONS[-1])))
    assert newest["--backend"].choices == ("pytorch", "_autodeploy")
    assert newest["--max_seq_len"].type == "int" and newest["--port"].default == 8000


def test_the_front_of_disaggregated_serving_has_options_of_its_own() -> None:
    front = serve_options(release("1.1.0"), "disaggregated")
    assert front["--config_file"].aliases == ("-c",) and front["--request_timeout"].default == 180
    assert "--metrics-log-interval" not in serve_options(release("0.20.0"), "disaggregated")
    assert serve_options(release("0.18.2"), "disaggregated") == {}
    assert "--schedule_style" in serve_options(None, "disaggregated")
    with pytest.raises(KeyError):
        serve_options(None, "disagregated")


@pytest.mark.parametrize(
    ("version", "name"),
    [("0.19.0", "--extra_llm_api_options"), ("1.1.0", "--extra_llm_api_options"), ("1.2.0", "--config")],
)
def test_the_name_of_the_file_option(version: str, name: str) -> None:
    assert config_option(release(version)) == name
    assert config_option(None) == "--config"


def test_a_misspelled_key_is_told_with_the_one_that_was_meant() -> None:
    found = unknown("1.2.1", {"kv_cache_config": {"dtyp": "fp8"}, "max_batch_sise": 1, "zzz": 1})
    assert {path: said[0] for path, said in found.items()} == {
        "kv_cache_config.dtyp": "kv_cache_config.dtype",
        "max_batch_sise": "max_batch_size",
        "zzz": None,
    }
    assert found["zzz"][1] == "is not a key of the LLM API on PyTorch in any release known here"


def test_a_key_in_the_wrong_section_is_told_with_its_place() -> None:
    assert unknown("1.2.1", {"enable_block_reuse": True})["enable_block_reuse"][0] == (
        "kv_cache_config.enable_block_reuse"
    )
    wrong = {"speculative_config": {"decoding_type": "MTP", "max_matching_ngram_size": 3}}
    assert unknown("1.2.1", wrong)["speculative_config.max_matching_ngram_size"][0] == (
        "speculative_config.decoding_type: NGram"
    )


@pytest.mark.parametrize(
    ("version", "key", "suggestion", "said"),
    [
        ("1.0.0", "use_cuda_graph", "cuda_graph_config", "the last release with it is 0.21.0"),
        ("0.21.0", "cuda_graph_config", "use_cuda_graph", "it came with 1.0.0"),
        ("1.1.0", "env_overrides", None, "it came with 1.2.0"),
        (
            "1.2.1",
            "kv_cache_free_gpu_memory_fraction",
            "kv_cache_config.free_gpu_memory_fraction",
            "any release",
        ),
        ("1.2.1", "telemetry_config", None, "it came with 1.3.0"),
    ],
)
def test_a_key_of_other_releases_names_them(
    version: str, key: str, suggestion: str | None, said: str
) -> None:
    ((found, message),) = unknown(version, {key: True}).values()
    assert found == suggestion and said in message


def test_a_key_that_came_back_names_the_release() -> None:
    speculation = {"speculative_config": {"decoding_type": "Eagle", "speculative_model": "m"}}
    assert unknown("0.21.0", speculation) == {} == unknown("1.2.0", speculation)
    ((suggestion, message),) = unknown("1.0.0", speculation).values()
    assert suggestion == "speculative_config.speculative_model_dir" and "came with 1.2.0" in message


def test_a_variant_has_keys_of_its_own() -> None:
    eagle = {"decoding_type": "Eagle", "eagle3_one_model": True}
    assert unknown("1.2.0", {"speculative_config": eagle}) == {}
    assert unknown("1.2.0", {"speculative_config": {**eagle, "decoding_type": "Eagle3"}}) == {}
    assert list(unknown("1.2.0", {"speculative_config": {**eagle, "decoding_type": "NGram"}})) == [
        "speculative_config.eagle3_one_model"
    ]
    unheard = {"speculative_config": {**eagle, "decoding_type": "Tomorrow"}}
    assert unknown("1.2.0", unheard) == {}, "of a variant that is not known, every variant's keys are taken"


def test_what_may_hold_anything_is_not_looked_at() -> None:
    anything = {"whatever": {"it": "is"}}
    assert (
        unknown("1.2.0", {"model_kwargs": anything, "env_overrides": anything, "lora_config": anything}) == {}
    )
    assert unknown("1.2.1", {"cp_config": anything}) == {}, "a mapping of any keys up to 1.3.0rc3"
    assert list(unknown(None, {"cp_config": anything})) == ["cp_config.whatever"]


@pytest.mark.parametrize(
    ("first", "configuration"),
    [
        # Not in main of 7 February 2026 (1.3.0rc3), so not in 1.2.1.
        (TO_COME, {"use_cute_dsl_blockscaling_mm": True}),
        (TO_COME, {"use_cute_dsl_blockscaling_bmm": True}),
        (TO_COME, {"scheduler_config": {"waiting_queue_policy": "fcfs"}}),
        (TO_COME, {"cache_transceiver_config": {"transceiver_runtime": "CPP"}}),
        # Not in main of October 2025, so not in 1.1.0.
        ("1.2.0", {"cache_transceiver_config": {"kv_transfer_sender_future_timeout_ms": 1000}}),
        ("1.2.0", {"sparse_attention_config": {"algorithm": "rocket", "kt_cache_dtype": "bfloat16"}}),
        ("1.2.0", {"sparse_attention_config": {"algorithm": "rocket", "seq_len_threshold": 4096}}),
        ("1.2.0", {"sparse_attention_config": {"algorithm": "dsa", "skip_indexer_for_short_seqs": True}}),
    ],
)
def test_a_key_begins_with_the_release_that_has_it(first: str, configuration: dict[str, Any]) -> None:
    before = "1.1.0" if first == "1.2.0" else "1.2.1"
    ((_, message),) = unknown(before, configuration).values()
    assert f"came with {first}" in message
    assert unknown(None if first == TO_COME else first, configuration) == {}


def test_a_key_that_has_ended_is_refused_after_it() -> None:
    ended = {"fail_fast_on_attention_window_too_large": True}
    assert unknown("1.2.1", ended) == {}
    ((_, message),) = unknown(None, ended).values()
    assert "the last release with it is 1.2.1" in message


def test_no_release_takes_quant_config() -> None:
    for version in (*VERSIONS[VERSIONS.index("0.20.0") :], None):
        ((suggestion, message),) = unknown(version, {"quant_config": {"quant_algo": "FP8"}}).values()
        assert suggestion == "engine.quantization.method" and "in any release" in message


@pytest.mark.parametrize(
    "configuration",
    [
        {"speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 2}},
        {"sparse_attention_config": {"algorithm": "dsa", "index_topk": 64}},
    ],
)
def test_a_variant_that_has_not_ended_is_known_of_images_newer_than_all_releases(
    configuration: dict[str, Any],
) -> None:
    assert unknown(None, configuration) == {}


def wrong(version: str, **configuration: Any) -> dict[str, str]:
    """The path of each value that trtllm-serve refuses, with what to do."""
    known = release(version)
    assert known is not None
    return {path: remedy for path, _, remedy in wrong_values(known, configuration)}


# update_llm_args_with_extra_dict and TorchLlmArgs of 1.3.0rc3 (run with stubs) refuse these, and take those.
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(
        (section, {section: None})
        for section in (
            *("speculative_config", "sparse_attention_config", "moe_config", "lora_config"),
            *("attention_dp_config", "nvfp4_gemm_config", "kv_cache_config", "scheduler_config", "cp_config"),
        )
    ),
    ("speculative_config.decoding_type", {"speculative_config": {"max_draft_len": 3}}),
    *(
        ("speculative_config.decoding_type", {"speculative_config": {"decoding_type": each}})
        for each in ("Draft_Target", "User_Provided", "PARD", "Medusa", "Lookahead", "eagle3", "Tomorrow")
    ),
    *(
        (
            "speculative_config.speculative_model_dir",
            {"speculative_config": {"decoding_type": each, "max_draft_len": 3}},
        )
        for each in ("Eagle3", "Eagle", "DraftTarget")
    ),
    (
        "speculative_config.max_draft_len",
        {"speculative_config": {"decoding_type": "Eagle3", "speculative_model_dir": "/d"}},
    ),
    (
        "speculative_config.max_draft_len",
        {"speculative_config": {"decoding_type": "NGram", "max_matching_ngram_size": 2}},
    ),
    (
        "speculative_config.max_matching_ngram_size",
        {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 3}},
    ),
    (
        "speculative_config.num_nextn_predict_layers",
        {"speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 0}},
    ),
    ("speculative_config.output_directory", {"speculative_config": {"decoding_type": "SaveState"}}),
    ("sparse_attention_config.algorithm", {"sparse_attention_config": {"topk": 64}}),
    ("kv_cache_config.max_attention_window", {"kv_cache_config": {"max_attention_window": [0]}}),
    ("kv_cache_config.max_attention_window", {"kv_cache_config": {"max_attention_window": []}}),
    ("kv_cache_config.free_gpu_memory_fraction", {"kv_cache_config": {"free_gpu_memory_fraction": 1.5}}),
    ("kv_cache_config.free_gpu_memory_fraction", {"kv_cache_config": {"free_gpu_memory_fraction": None}}),
    (
        "cuda_graph_config.batch_sizes",
        {"cuda_graph_config": {"batch_sizes": [1, 2, 4], "max_batch_size": 8}},
    ),
    ("moe_config.backend", {"moe_config": {"backend": "TENSORRT"}}),
    ("cache_transceiver_config.backend", {"cache_transceiver_config": {"backend": "TCP"}}),
    ("stream_interval", {"stream_interval": 0}),
    ("batch_wait_max_tokens_ratio", {"batch_wait_max_tokens_ratio": 2}),
    ("guided_decoding_backend", {"guided_decoding_backend": "outlines"}),
    ("allreduce_strategy", {"allreduce_strategy": "RING"}),
    ("load_format", {"load_format": "safetensors"}),
    ("kv_cache_config.mamba_ssm_cache_dtype", {"kv_cache_config": {"mamba_ssm_cache_dtype": "fp8"}}),
    (
        "scheduler_config.capacity_scheduler_policy",
        {"scheduler_config": {"capacity_scheduler_policy": "max_utilization"}},
    ),
    (
        "scheduler_config.dynamic_batch_config.dynamic_batch_moving_average_window",
        {
            "scheduler_config": {
                "dynamic_batch_config": {
                    "enable_batch_size_tuning": True,
                    "enable_max_num_tokens_tuning": True,
                }
            }
        },
    ),
    (
        "kv_connector_config.connector_worker_class",
        {"kv_connector_config": {"connector_module": "m", "connector_scheduler_class": "S"}},
    ),
]
TAKEN: list[dict[str, Any]] = [
    {"cuda_graph_config": None},
    {"cache_transceiver_config": None},
    {"speculative_config": {"decoding_type": "DraftTarget", "max_draft_len": 3, "speculative_model": "/d"}},
    {"speculative_config": {"decoding_type": "UserProvided", "drafter": "x"}},
    {"speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "/d"}},
    {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 2}},
    {"speculative_config": {"decoding_type": "MTP"}},
    {"speculative_config": {"decoding_type": "AUTO"}},
    {"kv_cache_config": {"max_attention_window": [4096, 1024], "free_gpu_memory_fraction": 0}},
    {"cuda_graph_config": {"max_batch_size": 161, "enable_padding": True}},
    {"cuda_graph_config": {"batch_sizes": [1, 2, 384]}},
    {"moe_config": {"backend": "AUTO"}},
    {"guided_decoding_backend": None, "load_format": "DUMMY", "batch_wait_max_tokens_ratio": 1},
    {"scheduler_config": {"capacity_scheduler_policy": "STATIC_BATCH", "dynamic_batch_config": None}},
    {"sparse_attention_config": {"algorithm": "skip_softmax", "threshold_scale_factor": 1000}},
]


@pytest.mark.parametrize(("path", "configuration"), REFUSED)
def test_a_value_that_the_server_refuses_is_found(path: str, configuration: dict[str, Any]) -> None:
    assert list(wrong("1.2.1", **configuration)) == [path]


@pytest.mark.parametrize("configuration", TAKEN)
def test_a_value_that_the_server_takes_is_not_refused(configuration: dict[str, Any]) -> None:
    assert wrong("1.2.1", **configuration) == {} == unknown("1.2.1", configuration)


def test_a_value_begins_with_the_release_that_has_it() -> None:
    automatic, mooncake = {"backend": "AUTO"}, {"backend": "MOONCAKE"}
    assert list(wrong("1.1.0", moe_config=automatic)) == ["moe_config.backend"]
    assert list(wrong("1.1.0", cache_transceiver_config=mooncake)) == ["cache_transceiver_config.backend"]
    assert wrong("1.2.0", moe_config=automatic, cache_transceiver_config=mooncake) == {}
    assert "sparse_attention_config.algorithm" in wrong(
        "1.1.0", sparse_attention_config={"algorithm": "skip_softmax", "threshold_scale_factor": 1000}
    )


def test_a_release_whose_keys_are_not_known_refuses_no_value() -> None:
    assert wrong("0.19.0", kv_cache_config=None) == {}


def test_a_release_that_only_an_image_has_described_refuses_no_value() -> None:
    """Its keys are known then, but not its words."""
    release = release_of_version("1.2.1")
    assert release is not None and list(llm_api.wrong_values(release, {"moe_config": None}))
    described = replace(release, source=LEARNED)
    assert list(llm_api.wrong_values(described, {"moe_config": None})) == []


@pytest.mark.parametrize("odd", [None, [], [[1]], {}, "x", -1, 2**70, True, {"batch_sizes": [[1], {}, "a"]}])
def test_values_of_odd_types_do_not_end_the_check(odd: Any) -> None:
    for section in read_data("llm_api")["section"]:
        head, _, key = section.partition(".")
        wrong("1.2.1", **{head: {key: odd} if key else odd}) if head else wrong("1.2.1", model=odd)
    wrong("1.2.1", cuda_graph_config={"batch_sizes": odd, "max_batch_size": odd})
    wrong("1.2.1", cuda_graph_config={"batch_sizes": [odd], "max_batch_size": 8})
    wrong("1.2.1", speculative_config={"decoding_type": odd}, kv_cache_config={"max_attention_window": odd})


def test_a_release_whose_keys_are_not_known_refuses_none() -> None:
    assert not has_key_facts(release("0.19.0")) and has_key_facts(release("0.20.0")) and has_key_facts(None)
    assert unknown("0.19.0", {"zzz": 1}) == {}


def tables() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, section in read_data("llm_api")["section"].items():
        yield name, section
        for variant, table in section.get("variant", {}).items():
            yield f"{name}[{variant}]", table


def test_the_data_name_known_releases_and_where_they_were_read() -> None:
    data = read_data("llm_api")
    assert data["newer"]["source"] and all(said["source"] for said in data["read"].values())
    assert list(data["read"]) == VERSIONS[VERSIONS.index("0.20.0") :]
    for name, table in tables():
        since, until = table.get("since", {}), table.get("until", {})
        named = [
            *since.values(),
            *until.values(),
            *(each for gap in table.get("missing", {}).values() for each in gap),
        ]
        named += [*table.get("not_null", {}).values(), *table.get("required", {}).values()]
        named += [first for words in table.get("values", {}).values() for first in words.values()]
        named += [table[each] for each in ("first", "ended", "checked_since") if each in table]
        assert {*named} <= {
            *VERSIONS,
            TO_COME,
        }, name
        assert not set(table.get("keys", ())) & {*since, *until}, name
        assert all(parsed(since[key]) < parsed(until[key]) for key in set(since) & set(until)), name
        assert set(table.get("missing", {})) <= set(table.get("keys", ())), name


def test_a_section_is_below_a_key_of_the_section_above() -> None:
    for name in filter(None, read_data("llm_api")["section"]):
        above, _, key = name.rpartition(".")
        inner: Mapping[str, Any] = {key: {"zzz": 1}}
        for part in reversed(above.split(".") if above else []):
            inner = {part: inner}
        assert f"{name}.zzz" in unknown(None, inner), name
