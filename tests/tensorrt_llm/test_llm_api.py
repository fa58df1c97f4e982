"""What ``trtllm-serve`` and the LLM API's configuration take, release by release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.tensorrt_llm.outcomes import REFUSED, TAKEN, findings, known, of_1_2_1, verdict
from trtllm_hpc.tensorrt_llm.llm_api import FRONT, SERVER, has_key_facts, serve_options, unknown_keys
from trtllm_hpc.tensorrt_llm.releases.data_files import UNRELEASED, parsed, read_data
from trtllm_hpc.tensorrt_llm.releases.programs import Program, ProgramOption, load_program, newest_program
from trtllm_hpc.tensorrt_llm.releases.release import releases

VERSIONS = [release.version for release in releases()]
TO_COME = UNRELEASED


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
    assert set(serve_options(known(version))) == names


def test_a_release_without_the_server_has_no_options() -> None:
    assert serve_options(known("0.16.0")) == {}


def test_an_option_that_stayed_goes_by_the_name_that_most_releases_have() -> None:
    for release in (*map(known, VERSIONS[VERSIONS.index("0.20.0") :]), None):
        names = set(serve_options(release))
        assert {"--tp_size", "--pp_size", "--ep_size", "--extra_llm_api_options"} <= names, release
    assert serve_options(known("1.2.1"))["--tp_size"].aliases == ("--tensor_parallel_size",)
    assert serve_options(known("1.1.0"))["--tp_size"].aliases == ()


def test_newer_images_have_what_no_release_has() -> None:
    newest = serve_options(None)
    assert {"--grpc", "--served_model_name"} <= set(newest) - set(serve_options(known(VERSIONS[-1])))
    assert newest["--backend"].choices == ("pytorch", "_autodeploy")
    assert newest["--max_seq_len"].type == "int" and newest["--port"].default == 8000


def test_the_front_of_disaggregated_serving_has_options_of_its_own() -> None:
    def front(command: Program | None) -> Mapping[str, ProgramOption]:
        assert command is not None
        return command.subcommands["disaggregated"].options

    of_1_1 = front(load_program("1.1.0", SERVER, "llama"))
    assert of_1_1["--config_file"].aliases == ("-c",) and of_1_1["--request_timeout"].default == 180
    assert "--metrics-log-interval" not in front(load_program("0.20.0", SERVER, "llama"))
    before = load_program("0.18.2", SERVER, "llama")
    assert before is not None and before.subcommands == {}
    assert "--schedule_style" in front(newest_program(SERVER))


@pytest.mark.parametrize(("version", "aliased"), [("0.19.0", False), ("1.1.0", False), ("1.2.0", True)])
def test_the_file_option_has_a_shorter_name_in_new_releases(version: str, aliased: bool) -> None:
    assert ("--config" in serve_options(known(version))["--extra_llm_api_options"].aliases) == aliased
    assert "--config" in serve_options(None)["--extra_llm_api_options"].aliases


def test_the_verdicts_on_values_are_upstream_s() -> None:
    assert all(findings(line) for line in of_1_2_1(REFUSED))
    assert not any(findings(line) for line in of_1_2_1(TAKEN))


@pytest.mark.parametrize("odd", [None, [], [[1]], {}, "x", -1, 2**70, True, {"batch_sizes": [[1], {}, "a"]}])
def test_values_of_odd_types_do_not_end_the_check(odd: Any) -> None:
    for section in read_data("llm_api")["section"]:
        head, _, key = section.partition(".")
        verdict(known("1.2.1"), {head: {key: odd} if key else odd} if head else {"model": odd})
    for configuration in (
        {"cuda_graph_config": {"batch_sizes": odd, "max_batch_size": odd}},
        {"cuda_graph_config": {"batch_sizes": [odd], "max_batch_size": 8}},
        {"speculative_config": {"decoding_type": odd}, "kv_cache_config": {"max_attention_window": odd}},
    ):
        verdict(known("1.2.1"), configuration)


def test_the_keys_are_known_from_0_20_on() -> None:
    assert not has_key_facts(known("0.19.0")) and has_key_facts(known("0.20.0")) and has_key_facts(None)


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
        if name.partition(".")[0] == FRONT:
            continue  # of another file
        above, _, key = name.rpartition(".")
        inner: Mapping[str, Any] = {key: {"zzz": 1}}
        for part in reversed(above.split(".") if above else []):
            inner = {part: inner}
        assert f"{name}.zzz" in [key.path for key in unknown_keys(None, inner)], name
