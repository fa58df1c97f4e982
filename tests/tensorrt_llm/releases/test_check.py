"""Command lines judged by the releases: the seeds' own among them.

S0 to S4 are upstream's documents that this project began with: S0 Llama on
several instances, S1 disaggregated serving, S2 the backend's README, S3 Llama
end to end (r24.04), S4 in-flight batching of 0.5 to 0.7.
"""

from __future__ import annotations

import shlex

import pytest

from tests.jobs.seeds import GUIDES, LORA
from trtllm_hpc.tensorrt_llm.releases import release_of_version
from trtllm_hpc.tensorrt_llm.releases.check import Checked, UnknownProgram, check_words


def check(version: str, line: str, family: str | None = None) -> Checked:
    release = release_of_version(version)
    assert release is not None
    return check_words(release, shlex.split(line), family)


def refused(version: str, line: str, family: str | None = None) -> dict[str, str]:
    """Words that are refused, with what is said of them."""
    checked = check(version, line, family)
    return {
        remark.value: f"{remark.message} | {remark.hint}"
        for remark in checked.remarks
        if remark.code == "refused"
    }


def guide(job: str, program: str) -> str:
    """The command of a guide that this job file follows."""
    return next(f"{program} {each.words}" for each in GUIDES if (each.job, each.program) == (job, program))


S0_CONVERT = guide("llama2-7b-multi-instance", "convert_checkpoint.py")
S0_BUILD = guide("llama2-7b-multi-instance", "trtllm-build")
S2_CONVERT = guide("readme-gpt2-tp4", "convert_checkpoint.py")
S2_BUILD = guide("readme-gpt2-tp4", "trtllm-build")
S3_BUILD = guide("llama3-8b-end-to-end", "trtllm-build")
S4_LLAMA = guide("ifb-llama-7b", "build.py")
S4_GPT = guide("ifb-gpt", "build.py")
S4_LORA = f"build.py {LORA}"
S0_LAUNCH = (
    "python3 scripts/launch_triton_server.py --world_size 2 --model_repo=llama_ifb/ "
    "--http_port 8000 --grpc_port 8001 --metrics_port 8004"
)
S0_TEST = (
    "python3 tools/inflight_batcher_llm/end_to_end_test.py "
    "--dataset ci/L0_backend_trtllm/simple_data.json --max-input-len 500 -u localhost:8080"
)
S0_BENCHMARK = (
    "python3 tools/inflight_batcher_llm/benchmark_core_model.py --max-input-len 500 "
    "dataset --dataset ci/L0_backend_trtllm/simple_data.json --tokenizer-dir $HF_LLAMA_MODEL "
    "--tesnorrt-llm-model-name tensorrtllm --tensorrt-llm-model-name tensorrtllm_2"
)
S1_LAUNCH = (
    "python3 scripts/launch_triton_server.py --world_size 3 "
    "--tensorrt_llm_model_name context,generation --multi-model --disable-spawn-processes"
)
S1_CLIENT = 'python3 inflight_batcher_llm/client/end_to_end_grpc_client.py -S -p "Machine learning is"'
S2_BENCHMARK = (
    "python3 benchmark_core_model.py -i grpc --request_rate 10 token_norm_dist --input_mean 128 "
    "--input_stdev 5 --output_mean 20 --output_stdev 2 --num_requests 5000"
)
S2_BATCH = """python3 end_to_end_grpc_client.py -o 5 -p '["This is a test","I want you to"]' --batch-inputs"""


@pytest.mark.parametrize(
    ("version", "line", "family"),
    [
        ("0.16", S0_CONVERT, None),
        ("0.16", S0_BUILD, None),
        ("0.16", S0_LAUNCH, None),
        ("0.16", S0_TEST, None),
        ("0.16", S1_LAUNCH, None),
        ("0.16", S1_CLIENT, None),
        ("0.16", S2_CONVERT, "gpt"),
        ("0.16", S2_BUILD, None),
        ("0.13", S2_BUILD, None),
        ("1.2.1", S2_BUILD, None),
        ("0.16", S2_BATCH, None),
        ("0.5", S4_LLAMA, "llama"),
        ("0.7.1", S4_LLAMA, "llama"),
        ("0.7.1", S4_GPT, "gpt"),
        ("0.6", "hf_gpt_convert.py -p 8 -i gpt2 -o c --tensor-parallelism 4 --storage-type float16", None),
        ("0.9", "hf_lora_convert.py -i luotuo-lora-7b-0.1 -o weights --storage-type float16", None),
    ],
)
def test_what_upstreams_documents_type_is_accepted(version: str, line: str, family: str | None) -> None:
    checked = check(version, line, family)
    assert checked.accepted and checked.remarks == ()


def test_the_readmes_benchmark_parses_in_no_release() -> None:
    """S2 and S4: the options are written with ``_`` and stand in the wrong place."""
    for version in ("0.6", "0.16", "1.2.1"):
        found = refused(version, S2_BENCHMARK)
        assert found["--request_rate"].endswith("write --request-rate")
        assert found["token_norm_dist"].endswith("write token-norm-dist")
        assert found["--input_mean"].endswith("write --input-mean")
        assert "before" in found["--num_requests"] and "--num-requests" in found["--num_requests"]
        assert "demands" in found["--max-input-len"]


def test_a_benchmark_written_as_the_program_wants_it_is_accepted() -> None:
    line = (
        "benchmark_core_model.py -i grpc --max-input-len 300 --request-rate -1 --num-requests 20 "
        "token-norm-dist --input-mean 128 --input-stdev 5 --output-mean 20 --output-stdev 2"
    )
    assert check("0.16", line).remarks == ()


def test_two_model_names_behind_the_sub_command_are_refused() -> None:
    """S0: one of them misspelt besides."""
    found = refused("0.16", S0_BENCHMARK)
    assert "did you mean --tensorrt-llm-model-name?" in found["--tesnorrt-llm-model-name"]
    assert "write --tensorrt-llm-model-name before dataset" in found["--tensorrt-llm-model-name"]


def test_the_readmes_kv_cache_type_needs_0_13() -> None:
    assert set(refused("0.11", S2_BUILD)) == {"--kv_cache_type"}
    assert "it came with 0.13.0" in refused("0.11", S2_BUILD)["--kv_cache_type"]


def test_the_tp_size_of_the_build_is_ignored() -> None:
    """S3 on r24.04, which is 0.9.0."""
    checked = check("0.9", S3_BUILD)
    assert checked.accepted
    assert [(remark.code, remark.value) for remark in checked.remarks] == [("ignored", "--tp_size=1")]


def test_an_old_build_names_what_each_release_took_away() -> None:
    found = refused("0.16", S3_BUILD)
    assert set(found) == {"--tp_size", "--max_output_len", "--context_fmha_fp32_acc", "--multi_block_mode"}
    for said in found.values():
        assert "0.12.0 dropped it, the last with it is 0.11.0" in said
    assert "--max_seq_len" in found["--max_output_len"]


def test_the_lora_build_of_the_guide_fits_no_release() -> None:
    """S4: 0.7.1 has not yet these two for LLaMA, and 0.8 builds LLaMA in another way."""
    assert set(refused("0.7.1", S4_LORA)) == {"--lora_target_modules", "--max_lora_rank"}
    (said,) = refused("0.8", S4_LORA).values()
    assert "the last with it is 0.7.1" in said
    assert "convert_checkpoint.py and trtllm-build" in said


def test_a_program_that_is_yet_to_come() -> None:
    (said,) = refused("0.6", S2_BUILD).values()
    assert "it came with 0.7.0" in said and "this release has build.py" in said


@pytest.mark.parametrize(
    ("words", "judgement", "sentence"),
    [
        ("--paged_kv_cache maybe", "refused", "takes enable, disable, not 'maybe'"),
        ("--gather_context_logits=1", "refused", "takes no value"),
        ("--gather_context_logits 1", "refused", "takes no word here"),
        ("--max_batch_size", "refused", "needs a value"),
        ("--max_batch_size --workers 2", "refused", "needs a value"),
        ("--lora_target_modules attn_q nothing", "refused", "not 'nothing'"),
        ("--lora_target_modules --workers 2", "refused", "needs one of"),
        ("--max_ba 8", "note", "taken as --max_batch_size"),
        ("--max_ 8", "refused", "may be the beginning of"),
        ("--max_bach_size 8", "refused", "no such option in any release"),
        ("engine", "refused", "takes no word here"),
        ("--max_batch_size many", "refused", "needs a number, not 'many'"),
        ("--max_batch_size 1,2", "refused", "needs a number, not '1,2'"),
        ("--max_batch_size [1]", "refused", "needs a number, not '[1]'"),
        ("--max_batch_size true", "refused", "needs a number, not 'true'"),
    ],
)
def test_a_word_that_the_program_would_stumble_over(words: str, judgement: str, sentence: str) -> None:
    (remark,) = check("0.16", f"trtllm-build --checkpoint_dir c {words}").remarks
    assert remark.code == judgement
    assert sentence in remark.message


@pytest.mark.parametrize(
    "words",
    [
        "--paged_kv_cache $KV",
        "--gemm_plugin <dtype>",
        "--lora_target_modules attn_q attn_v --workers 2",
        "--output_dir=a=b",
        "'--output_dir=my engines'",
        "--max_multimodal_len 576",
        "--workers -1",
        *(f"--max_batch_size {value}" for value in ("64", "-1", "1e3", "0.5", "$BATCH", "'<n>'")),
    ],
)
def test_words_that_only_look_wrong(words: str) -> None:
    assert check("0.16", f"trtllm-build --checkpoint_dir c {words}").remarks == ()


def test_a_missing_word_is_told() -> None:
    (remark,) = check("0.16", "python3 end_to_end_test.py --max-input-len 500").remarks
    assert (remark.value, remark.field, remark.code) == ("--dataset", "", "refused")


def test_the_folder_of_the_program_tells_the_family() -> None:
    for folder in ("tensorrt_llm/examples/enc_dec", "/app/examples/models/core/enc_dec"):
        assert check("0.16", f"{folder}/convert_checkpoint.py -i m -o c --nougat").remarks == ()
    assert refused("0.16", "examples/llama/convert_checkpoint.py --nougat")


def test_a_folder_that_is_not_known_is_not_taken_for_llama() -> None:
    (said,) = refused("0.16", "examples/no-such-model/convert_checkpoint.py --model_dir m").values()
    assert "no convert_checkpoint.py for no-such-model" in said


def test_what_runs_the_program_is_left_out() -> None:
    checked = check("0.16", "mpirun -n 4 --unknown python3 /x/launch_triton_server.py --world_size 4")
    assert checked.program == "launch_triton_server.py" and checked.remarks == ()


def test_a_line_without_upstreams_programs_is_no_line_to_check() -> None:
    with pytest.raises(UnknownProgram) as error:
        check("0.16", "tritonserver --model-repository r")
    assert "trtllm-build" in error.value.choices


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.18.2", "trtllm-serve /engines --tokenizer /model --tp_size 2 --port 8001"),
        (
            "1.0.0",
            "trtllm-serve /model --backend pytorch --tp_size 8 --ep_size 8 --extra_llm_api_options f.yaml",
        ),
        ("1.2.1", "trtllm-serve serve /model --host 0.0.0.0 --config=f.yaml --tensor_parallel_size 8"),
        ("1.2.1", "trtllm-llmapi-launch trtllm-serve /model --tp_size 16 --backend pytorch"),
        ("1.1.0", "trtllm-serve disaggregated -c front.yaml -t 600 -r 600 --metrics-log-interval 10"),
        ("1.0.0", "mpirun -n 3 trtllm-serve disaggregated_mpi_worker -c front.yaml"),
    ],
)
def test_the_openai_servers_of_the_releases(version: str, line: str) -> None:
    assert refused(version, line) == {}


def test_what_the_openai_server_refuses() -> None:
    assert refused("1.1.0", "trtllm-serve /model --config f.yaml") == {
        "--config": "TensorRT-LLM 1.1.0 spells it --extra_llm_api_options | write --extra_llm_api_options"
    }
    assert "came after 1.2.1" in refused("1.2.1", "trtllm-serve /model --grpc")["--grpc"]
    assert list(refused("1.2.1", "trtllm-serve /model --tp 8")) == ["--tp"], "Click takes no beginnings"
    assert list(refused("1.2.1", "trtllm-serve /model other --ep_size two")) == ["other", "--ep_size"]
    assert list(refused("1.2.1", "trtllm-serve disaggregated /model -c f.yaml")) == ["/model"]
