"""What the steps of a build are made of, release by release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plan.made_steps import cluster, found, job, line, notes, options, steps
from trtllm_hpc.runtime.__main__ import main as runtime
from trtllm_hpc.runtime.engine_cache.recipe import Placeholder

LLAMA_8B = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}


def told(release: str, **engine: Any) -> dict[str, tuple[str, ...]]:
    """Options of the build."""
    return options(steps(job(release, engine=engine))[-1].commands[0])


@pytest.mark.parametrize(
    ("release", "family", "names"),
    [
        ("0.5.0", "llama", ["build"]),
        ("0.7.1", "llama", ["build"]),
        ("0.8.0", "llama", ["convert", "build"]),
        ("1.2.1", "llama", ["convert", "build"]),
        # GPT's change a release later.
        ("0.8.0", "gpt", ["prepare", "build"]),
        ("0.9.0", "gpt", ["convert", "build"]),
    ],
)
def test_a_family_s_steps(release: str, family: str, names: list[str]) -> None:
    assert [step.name for step in steps(job(release, family))] == names


def test_steps_read_each_other_and_name_no_folder_of_this_run() -> None:
    convert, build = steps(job("0.16.0", engine={"tensor_parallel": 2}))
    assert convert.inputs == ("model",) and build.inputs == ("convert",)
    assert Placeholder("model") in convert.commands[0] and Placeholder("output") in convert.commands[0]
    assert Placeholder("convert") in build.commands[0] and Placeholder("output") in build.commands[0]
    assert (convert.on_gpu, build.on_gpu) == (False, True)
    assert build.identity["tensorrt_llm"] == "0.16.0" and build.identity["tensorrt"] == "10.7.0"
    assert build.identity["layout"]["tensor_parallel"] == 2
    assert not any(isinstance(word, str) and word.startswith("/models") for word in convert.commands[0])


@pytest.mark.parametrize(
    ("release", "script"),
    [
        ("0.7.1", "/tensorrtllm_backend/tensorrt_llm/examples/llama/build.py"),
        ("0.16.0", "/tensorrtllm_backend/tensorrt_llm/examples/llama/convert_checkpoint.py"),
        ("0.18.2", "/app/examples/llama/convert_checkpoint.py"),
        ("0.19.0", "/app/examples/models/core/llama/convert_checkpoint.py"),
    ],
)
def test_programs_lie_where_the_release_has_them(release: str, script: str) -> None:
    assert steps(job(release))[0].commands[0][:2] == ("python3", script)


def test_a_profile_may_say_where_the_examples_are() -> None:
    where = cluster(container={"examples": "/shared/examples", "python": "/usr/bin/python3.12"})
    words = steps(job("0.19.0"), where)[0].commands[0]
    assert words[:2] == ("/usr/bin/python3.12", "/shared/examples/models/core/llama/convert_checkpoint.py")


@pytest.mark.parametrize(
    ("release", "option", "value"),
    [
        ("0.7.1", "--max_output_len", ("512",)),
        ("0.10.0", "--max_output_len", ("512",)),
        ("0.11.0", "--max_seq_len", ("1536",)),
        ("1.2.1", "--max_seq_len", ("1536",)),
    ],
)
def test_prompt_and_answer_together_or_the_answer_alone(
    release: str, option: str, value: tuple[str, ...]
) -> None:
    words = told(release, max_input_len=1024, max_seq_len=1536)
    assert words[option] == value
    assert len({"--max_output_len", "--max_seq_len"} & set(words)) == 1


def test_a_prompt_of_the_release_s_own_length_must_leave_room_for_an_answer() -> None:
    [problem] = found(job("0.10.0", engine={"max_seq_len": 1024}))
    assert problem.field == "engine.max_seq_len"
    assert "1024 tokens" in problem.message and "0.10.0" in problem.message


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("0.7.1", {"--paged_kv_cache": ()}),
        ("0.8.0", {"--paged_kv_cache": ("enable",)}),
        ("0.12.0", {"--paged_kv_cache": ("enable",)}),
        ("0.13.0", {"--kv_cache_type": ("paged",)}),
        ("1.2.1", {"--kv_cache_type": ("paged",)}),
    ],
)
def test_a_paged_cache_in_each_release_s_words(release: str, words: dict[str, tuple[str, ...]]) -> None:
    found_words = told(release, kv_cache="paged")
    assert {name: found_words[name] for name in words} == words
    assert len({"--paged_kv_cache", "--kv_cache_type"} & set(found_words)) == 1


@pytest.mark.parametrize(
    ("release", "batch"), [("0.9.0", "1"), ("0.11.0", "256"), ("0.13.0", "256"), ("0.14.0", "2048")]
)
def test_a_default_that_changed_silently_is_written_out(release: str, batch: str) -> None:
    assert told(release)["--max_batch_size"] == (batch,)
    assert told(release, max_batch_size=7)["--max_batch_size"] == ("7",)


def test_a_raw_option_is_not_written_out_a_second_time() -> None:
    raw = {"build": ["--use_fp8_context_fmha=enable", "--log_level", "verbose"]}
    made = job("0.16.0", engine={"options": {"build": ["--paged_state", "disable"]}})
    assert line(steps(made)[1].commands[0]).count("--paged_state") == 1
    assert found(job("0.16.0", engine={"options": raw}))  # the first has a key of its own


@pytest.mark.parametrize(
    ("release", "dtype", "plugin"),
    [("0.9.0", "bfloat16", "bfloat16"), ("0.9.0", "float16", "float16"), ("0.16.0", "bfloat16", "auto")],
)
def test_the_attention_plugin_has_the_model_s_type(release: str, dtype: str, plugin: str) -> None:
    """Before 0.11 its own default is float16 whatever the model is."""
    assert told(release, dtype=dtype)["--gpt_attention_plugin"] == (plugin,)


def test_auto_is_the_checkpoint_s_own_type_where_a_release_wants_it_told() -> None:
    made = job("0.9.0")
    convert, build = steps(made, config=LLAMA_8B)
    assert options(convert.commands[0])["--dtype"] == ("bfloat16",)
    assert options(build.commands[0])["--gpt_attention_plugin"] == ("bfloat16",)
    assert notes(made, LLAMA_8B) == ()
    assert options(steps(job("0.15.0"), config=LLAMA_8B)[0].commands[0])["--dtype"] == ("auto",)


def test_a_type_that_nobody_can_tell_is_a_note() -> None:
    [note] = notes(job("0.9.0"))
    assert "engine.dtype" in note and "float16" in note and "0.9.0" in note
    assert notes(job("0.15.0")) == ()


@pytest.mark.parametrize(
    ("release", "parallel", "told_gpus"),
    [
        ("0.16.0", {"tensor_parallel": 8}, ("4",)),
        ("0.16.0", {"tensor_parallel": 4, "pipeline_parallel": 2}, ("4",)),
        ("0.16.0", {"tensor_parallel": 2}, ("2",)),
        ("0.16.0", {}, None),
        ("1.2.0", {"tensor_parallel": 8}, None),
        ("0.7.1", {"tensor_parallel": 8}, ("4",)),
    ],
)
def test_an_engine_is_told_the_gpus_of_a_node_that_its_ranks_will_see(
    release: str, parallel: dict[str, int], told_gpus: tuple[str, ...] | None
) -> None:
    made = steps(job(release, engine=parallel), cluster(gpus_per_node=4))
    assert options(made[-1].commands[0]).get("--gpus_per_node") == told_gpus


@pytest.mark.parametrize(("gpus", "told_gpus"), [(4, "4"), (8, None), (0, None)])
def test_from_1_2_on_the_checkpoint_is_told_since_the_build_has_no_option(
    gpus: int, told_gpus: str | None
) -> None:
    made = job("1.2.1", engine={"tensor_parallel": 8, "dtype": "float16"})
    further = steps(made, cluster(gpus_per_node=gpus))[0].commands[1:]
    expected = () if told_gpus is None else (f"python3 <run/runtime.pyz> gpus-per-node {told_gpus} <output>",)
    assert tuple(map(line, further)) == expected
    assert len(steps(job("1.2.1", engine={"dtype": "float16"}))[0].commands) == 1
    two = steps(job("1.2.1", "t5", engine={"tensor_parallel": 2, "dtype": "float16"}))[0].commands[1]
    assert line(two).endswith("gpus-per-node 2 <output/encoder> <output/decoder>")


def test_a_checkpoint_s_mapping_keeps_what_else_it_says(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"dtype": "float16", "mapping": {"tp_size": 8, "gpus_per_node": 8}}))
    runtime([f"--run={tmp_path}", "gpus-per-node", "4", str(tmp_path)])
    mapping = {"tp_size": 8, "gpus_per_node": 4}
    assert json.loads(config.read_text()) == {"dtype": "float16", "mapping": mapping}


def test_without_gpus_in_the_profile_nothing_is_said_of_them() -> None:
    made = steps(job("0.16.0", engine={"tensor_parallel": 8}), cluster(gpus_per_node=0))
    assert "--gpus_per_node" not in options(made[-1].commands[0])


def test_a_world_of_build_py_is_all_its_ranks() -> None:
    words = told("0.7.1", tensor_parallel=4, pipeline_parallel=2)
    assert (words["--world_size"], words["--tp_size"], words["--pp_size"]) == (("8",), ("4",), ("2",))


def test_gpt_s_build_py_knows_one_parallelism_only() -> None:
    assert found(job("0.7.1", "gpt", engine={"tensor_parallel": 4})) == []
    [problem] = found(job("0.7.1", "gpt", engine={"tensor_parallel": 2, "pipeline_parallel": 2}))
    assert problem.field == "engine.pipeline_parallel" and "0.9.0" in problem.message
    _, build = steps(job("0.7.1", "gpt", engine={"tensor_parallel": 4}))
    assert Placeholder("prepare", "/4-gpu") in build.commands[0]


@pytest.mark.parametrize(
    ("release", "word"),
    [
        ("0.6.0", "--gather_all_token_logits"),
        ("0.8.0", "--gather_context_logits"),
        ("1.2.1", "--gather_context_logits"),
    ],
)
def test_logits_in_each_release_s_words(release: str, word: str) -> None:
    assert word in told(release, gather_context_logits=True)


def test_a_release_that_gathers_both_says_so() -> None:
    made = job("0.7.1", engine={"gather_context_logits": True, "dtype": "float16"})
    [note] = notes(made)
    assert "both" in note and "0.7.1" in note


def test_workers_convert_and_build() -> None:
    convert, build = steps(job("0.16.0", engine={"workers": 8, "tensor_parallel": 8}))
    assert options(convert.commands[0])["--workers"] == options(build.commands[0])["--workers"] == ("8",)
    assert "--parallel_build" in told("0.7.1", workers=8, tensor_parallel=8)
    assert "--parallel_build" not in told("0.7.1", workers=1)


def test_families_with_options_of_their_own_names() -> None:
    convert, _ = steps(job("0.16.0", "gemma", engine={"tensor_parallel": 2}))
    words = line(convert.commands[0])
    assert "--model-dir <model> --ckpt-type hf --world-size 2" in words
    assert "--output-model-dir <output>" in words


def test_a_program_s_required_option_is_asked_for() -> None:
    [problem] = [each for each in found(job("0.7.1", "chatglm")) if each.field.endswith(".build_py")]
    assert "--model_name" in problem.message and "chatglm2_6b" in (problem.hint or "")
    raw = {"build_py": ["--model_name", "chatglm2_6b"]}
    assert found(job("0.7.1", "chatglm", engine={"options": raw})) == []
