"""Encoder-decoder models: two engines from one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plan.made_steps import cluster, found, job, options, steps
from trtllm_hpc.backends import facts_of
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.resolve import make_plan
from trtllm_hpc.runtime.engine_cache.recipe import Placeholder
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.tensorrt_llm.releases import releases
from trtllm_hpc.tensorrt_llm.releases.families import find_family

T5 = {
    "dtype": "float16",
    "max_batch_size": 8,
    "max_encoder_input_len": 1024,
    "max_seq_len": 201,
    "max_beam_width": 1,
    "plugins": {"gemm": "float16", "bert_attention": "float16", "gpt_attention": "float16"},
}
"""docs/encoder_decoder.md of tensorrtllm_backend v0.16.0: INPUT_LEN=1024, OUTPUT_LEN=201."""


def engines(release: str, family: str = "t5", **engine: Any) -> list[dict[str, tuple[str, ...]]]:
    build = steps(job(release, family, engine={**T5, **engine}))[-1]
    return [options(words) for words in build.commands]


def test_both_are_built_by_one_step_from_one_conversion() -> None:
    convert, build = steps(job("0.16.0", "t5", engine=T5))
    assert options(convert.commands[0])["--model_type"] == ("t5",)
    script = "/tensorrtllm_backend/tensorrt_llm/examples/enc_dec/convert_checkpoint.py"
    assert convert.commands[0][1] == script
    for part, words in zip(("encoder", "decoder"), build.commands, strict=True):
        assert Placeholder("convert", f"/{part}") in words and Placeholder("output", f"/{part}") in words


def test_the_words_of_upstream_s_guide() -> None:
    encoder, decoder = engines("0.16.0")
    both = {
        "--moe_plugin": ("disable",),
        "--max_beam_width": ("1",),
        "--max_batch_size": ("8",),
        "--gemm_plugin": ("float16",),
        "--bert_attention_plugin": ("float16",),
        "--gpt_attention_plugin": ("float16",),
        "--context_fmha": ("disable",),
    }
    of_encoder = {"--kv_cache_type": ("disabled",), "--max_input_len": ("1024",)}
    of_decoder = {"--max_encoder_input_len": ("1024",), "--max_seq_len": ("201",), "--max_input_len": ("1",)}
    assert encoder == encoder | both | of_encoder
    assert decoder == decoder | both | of_decoder
    assert not {"--max_seq_len", "--max_encoder_input_len"} & set(encoder)
    assert "--kv_cache_type" not in decoder


def test_bart_keeps_fused_attention() -> None:
    for words in engines("0.16.0", "bart"):
        assert "--context_fmha" not in words
    convert = steps(job("0.16.0", "bart", engine=T5))[0]
    assert options(convert.commands[0])["--model_type"] == ("bart",)


def test_before_0_13_the_encoder_s_cache_is_switched_off_in_other_words() -> None:
    encoder, decoder = engines("0.12.0", kv_cache="paged")
    assert encoder["--paged_kv_cache"] == ("disable",)
    assert decoder["--paged_kv_cache"] == ("enable",)


def test_the_prompt_s_length_stands_for_the_encoder_s_too() -> None:
    encoder, decoder = engines("0.16.0", max_encoder_input_len=None, max_input_len=512, max_seq_len=1024)
    assert encoder["--max_input_len"] == decoder["--max_encoder_input_len"] == ("512",)
    assert decoder["--max_input_len"] == ("1",)


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.version)
def test_every_option_exists_or_the_release_is_refused(release: Any) -> None:
    made = job(release.version, "t5", engine=T5)
    if found(made):
        assert any(release.version in problem.message for problem in found(made))
        return
    command = release.command("trtllm-build", "t5")
    for words in steps(made)[-1].commands:
        for name, values in options(words).items():
            option = command.options[name]
            assert not option.choices or set(values) <= set(option.choices)


@pytest.mark.parametrize("release", ["0.7.1", "0.9.0"])
def test_older_releases_are_refused_with_the_first_that_can(release: str) -> None:
    problems = [each for each in found(job(release, "t5")) if each.field == "engine.encoder_decoder"]
    assert problems and release in problems[0].message


def test_0_10_builds_two_engines_and_serves_none() -> None:
    """Its templates and its backend know no ``encoder_model_path`` (model_instance_state.cc of v0.10.0)."""
    [problem] = found(job("0.10.0", "t5", engine=T5))
    assert problem.field == "engine.encoder_decoder"
    assert "0.10.0" in problem.message and "encoder_engine_dir since 0.11.0" in problem.message
    assert found(job("0.11.0", "t5", engine=T5)) == []


def test_triton_s_python_backend_loads_decoders_only() -> None:
    """``ModelType.DECODER_ONLY`` stands in the model.py of every release."""
    [problem] = found(job("0.16.0", "t5", engine={**T5, "backend": "python"}))
    assert problem.field == "engine.backend" and "encoder" in problem.message


def test_an_answer_need_not_be_longer_than_the_prompt() -> None:
    """The prompt is the encoder's; ``max_seq_len`` is the decoder's."""
    lengths: dict[str, Any] = {"max_encoder_input_len": None, "max_input_len": 2048, "max_seq_len": 201}
    encoder, decoder = engines("0.16.0", encoder_decoder=True, **lengths)
    assert encoder["--max_input_len"] == decoder["--max_encoder_input_len"] == ("2048",)
    assert decoder["--max_seq_len"] == ("201",)


@pytest.mark.parametrize("stated", [False, True])
def test_the_server_is_told_of_both_engines(tmp_path: Path, stated: bool) -> None:
    made = job("0.16.0", "t5", engine={**T5, "encoder_decoder": stated})
    profile = cluster(container={"all_models": "/all_models", "examples": "/examples"})
    plan = make_plan(facts_of(made, profile), RunPaths(tmp_path / "one"), "python3")
    assert isinstance(plan.repository, RepositoryRecipe)
    [values] = [model.values for model in plan.repository.models if model.name == "tensorrt_llm"]
    assert values["engine_dir"] == f"{tmp_path}/one/engine/decoder"
    assert values["encoder_engine_dir"] == f"{tmp_path}/one/engine/encoder"
    assert values["cross_kv_cache_fraction"] == 0.5


def test_what_does_not_go_with_it() -> None:
    engine = {**T5, "context_fmha": True, "paged_context_fmha": True}
    problems = found(job("0.16.0", "t5", engine=engine, repository={"chunked_context": True}))
    assert {each.field for each in problems} == {"engine.context_fmha", "repository.chunked_context"}
    [problem] = found(job("0.16.0", "llama", engine={"encoder_decoder": True}))
    assert problem.field == "engine.encoder_decoder" and "llama" in problem.message


@pytest.mark.parametrize(
    ("family", "reads", "guide"),
    [("whisper", "audio", "docs/whisper.md"), ("mllama", "images", "docs/multimodal.md")],
)
@pytest.mark.parametrize("release", ["0.5.0", "0.16.0", "1.2.1"])
def test_an_encoder_of_audio_or_images_is_refused_by_name(
    release: str, family: str, reads: str, guide: str
) -> None:
    """One engine alone would be rendered, and Triton's models take text."""
    [problem] = found(job(release, family))
    assert problem.field == "model.family" and problem.message.startswith(f"{family} reads {reads}:")
    assert guide in (problem.hint or "")


def test_their_architectures_are_known() -> None:
    for architecture, name in (
        ("WhisperForConditionalGeneration", "whisper"),
        ("MllamaForConditionalGeneration", "mllama"),
    ):
        family = find_family(None, {"architectures": [architecture]})
        assert family is not None and family.name == name
