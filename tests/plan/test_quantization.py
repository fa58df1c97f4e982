"""Quantization: which program does it in which release, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.plan.made_steps import cluster, found, job, notes, options, planned, steps
from trtllm_hpc.runtime.engine_cache.recipe import Placeholder


def made(release: str, **quantization: Any) -> Any:
    return job(release, engine={"dtype": "float16", "quantization": quantization})


def said(release: str, **quantization: Any) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Options by step."""
    return {step.name: options(step.commands[0]) for step in steps(made(release, **quantization))}


@pytest.mark.parametrize("method", ["fp8", "int8_sq", "int4_awq", "w4a8_awq", "full_prec"])
def test_calibrated_methods_by_quantize_py(method: str) -> None:
    words = said("0.16.0", method=method, calibration_dataset="/data/cnn", calibration_size=32, batch_size=4)
    assert list(words) == ["quantize", "build"]
    wanted = {
        "--qformat": (method,),
        "--calib_dataset": ("/data/cnn",),
        "--calib_size": ("32",),
        "--batch_size": ("4",),
        "--tp_size": ("1",),
    }
    assert {name: words["quantize"][name] for name in wanted} == wanted


@pytest.mark.parametrize(("method", "precision"), [("int8_wo", "int8"), ("int4_wo", "int4")])
@pytest.mark.parametrize(
    ("release", "step"), [("0.7.1", "build"), ("0.8.0", "convert"), ("1.2.1", "convert")]
)
def test_weight_only_where_the_weights_are_read(method: str, precision: str, release: str, step: str) -> None:
    words = said(release, method=method)[step]
    assert words["--use_weight_only"] == () and words["--weight_only_precision"] == (precision,)


def test_weight_only_by_quantize_py_where_asked() -> None:
    assert said("0.16.0", method="int8_wo", tool="quantize")["quantize"]["--qformat"] == ("int8_wo",)


def test_smoothquant_by_convert() -> None:
    words = said("0.16.0", method="int8_sq", tool="convert", per_token=True, per_channel=True)["convert"]
    assert (words["--smoothquant"], words["--per_token"], words["--per_channel"]) == (("0.5",), (), ())
    words = said("0.16.0", method="int8_sq", tool="convert", smoothquant=0.8)["convert"]
    assert words["--smoothquant"] == ("0.8",)


def test_auto_names_formats_and_bits_and_no_format() -> None:
    words = said("0.16.0", method="auto", auto_formats=["fp8", "int4_awq"], auto_bits=5.0)["quantize"]
    assert (words["--autoq_format"], words["--auto_quantize_bits"]) == (("fp8,int4_awq",), ("5",))
    assert "--qformat" not in words


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_the_cache_alone(kind: str) -> None:
    words = said("0.16.0", kv_cache=kind)["quantize"]
    assert (words["--kv_cache_dtype"], words["--qformat"]) == ((kind,), ("full_prec",))
    assert f"--{kind}_kv_cache" in said("0.16.0", method="int8_wo", kv_cache=kind)["convert"]


@pytest.mark.parametrize(
    ("method", "file", "flags"),
    [
        ("fp8", "--quantized_fp8_model_path", {"--enable_fp8"}),
        ("int4_awq", "--quant_ckpt_path", {"--use_weight_only", "--per_group", "--weight_only_precision"}),
    ],
)
def test_build_py_reads_what_quantize_py_wrote(method: str, file: str, flags: set[str]) -> None:
    """examples/llama/README.md of 0.7.0, 'FP8 Post-Training Quantization' and 'AWQ'."""
    quantize, build = steps(made("0.7.1", method=method))
    assert options(quantize.commands[0])["--export_path"] == ("<output>",)
    words = build.commands[0]
    assert words[words.index(file) + 1] == Placeholder("quantize", "/llama_tp1_rank0.npz")
    assert flags <= set(options(words)) and build.inputs == ("model", "quantize")


@pytest.mark.parametrize(
    ("release", "family", "method", "program", "file"),
    [
        ("0.5.0", "llama", "fp8", "llama/quantize.py", "llama_tp1_rank0.npz"),
        ("0.5.0", "gptj", "fp8", "gptj/quantize.py", "gptj_tp1_rank0.npz"),
        ("0.5.0", "falcon", "fp8", "falcon/quantize.py", "falcon_tp1_rank0.npz"),
        ("0.7.1", "gptj", "fp8", "quantization/quantize.py", "gptj_tp1_rank0.npz"),
        ("0.6.0", "falcon", "int4_awq", "quantization/quantize.py", "falcon_tp1_rank0.npz"),
        ("0.7.0", "baichuan", "fp8", "quantization/quantize.py", "baichuan_tp1_rank0.npz"),
        ("0.7.1", "mistral", "fp8", "quantization/quantize.py", "llama_tp1_rank0.npz"),
    ],
)
def test_the_file_is_named_after_the_family(
    release: str, family: str, method: str, program: str, file: str
) -> None:
    made = job(release, family, engine={"dtype": "float16", "quantization": {"method": method}})
    quantize, build = planned(made)
    assert str(quantize.commands[0][1]).endswith(f"/examples/{program}")
    assert Placeholder("quantize", f"/{file}") in build.commands[0]


@pytest.mark.parametrize(
    ("release", "family", "method", "first"),
    [
        ("0.7.1", "gpt", "fp8", "0.9.0"),
        ("0.7.1", "mixtral", "fp8", "0.10.0"),
        ("0.6.1", "mistral", "fp8", "0.7.0"),
        ("0.7.1", "chatglm", "int4_awq", "0.8.0"),
        ("0.5.0", "mpt", "fp8", "0.6.0"),
    ],
)
def test_a_build_py_that_reads_nothing_of_quantize_py_s(
    release: str, family: str, method: str, first: str
) -> None:
    problems = found(job(release, family, engine={"quantization": {"method": method}}))
    [problem] = [each for each in problems if each.field == "engine.quantization.method"]
    assert f"{release} cannot do {method} for {family}" in problem.message
    assert problem.message.endswith(f"the first release that can is {first}")


@pytest.mark.parametrize(
    ("release", "family", "program", "option", "written"),
    [
        ("0.5.0", "llama", "llama/hf_llama_convert.py", "--ft_model_dir", "fp16"),
        ("0.7.1", "mistral", "llama/hf_llama_convert.py", "--ft_model_dir", "fp16"),
        ("0.6.0", "internlm", "internlm/hf_internlm_convert.py", "--ft_model_dir", "fp16"),
        ("0.7.0", "baichuan", "baichuan/hf_baichuan_convert.py", "--bin_model_dir", "fp16"),
        ("0.6.1", "bloom", "bloom/hf_bloom_convert.py", "--bin_model_dir", "float16"),
    ],
)
def test_scales_are_computed_before_build_py_which_reads_them_in_the_model_s_place(
    release: str, family: str, program: str, option: str, written: str
) -> None:
    """The READMEs of these examples, 'SmoothQuant': this option instead of --model_dir."""
    wanted = {"method": "int8_sq", "smoothquant": 0.8, "per_token": True, "per_channel": True}
    engine = {"dtype": "float16", "tensor_parallel": 2, "quantization": wanted}
    prepare, build = planned(job(release, family, engine=engine))
    assert str(prepare.commands[0][1]).endswith(f"/examples/{program}")
    words = options(prepare.commands[0])
    assert (words["--in-file"], words["--out-dir"]) == (("<model>",), ("<output>",))
    assert (words["--smoothquant"], words["--tensor-parallelism"]) == (("0.8",), ("2",))
    assert words["--storage-type"] == (written,)
    words = options(build.commands[0])
    assert words[option] == ("<prepare/2-gpu>",) and "--model_dir" not in words
    assert {"--use_smooth_quant", "--per_token", "--per_channel"} <= set(words) and build.inputs == (
        "prepare",
    )


def test_qwen_s_build_py_reads_them_beside_the_model() -> None:
    """examples/qwen/README.md, 'SmoothQuant'."""
    wanted = {"dtype": "float16", "max_input_len": 512, "quantization": {"method": "int8_sq"}}
    prepare, build = planned(job("0.8.0", "qwen", engine=wanted))
    assert options(prepare.commands[0])["--max_input_len"] == ("512",)
    words = options(build.commands[0])
    assert (words["--hf_model_dir"], words["--ft_dir_path"]) == (("<model>",), ("<prepare/1-gpu>",))
    assert build.inputs == ("model", "prepare")


@pytest.mark.parametrize(
    ("release", "family", "option"),
    [
        ("0.7.1", "llama", "--ft_model_dir"),
        ("0.6.0", "gptj", "--ft_model_dir"),
        ("0.5.0", "gpt", "--model_dir"),
    ],
)
def test_scales_of_an_int8_cache(release: str, family: str, option: str) -> None:
    """'INT8 KV cache' of the same READMEs: with weight-only quantization, too."""
    wanted = {"dtype": "float16", "quantization": {"method": "int8_wo", "kv_cache": "int8"}}
    prepare, build = planned(job(release, family, engine=wanted))
    assert "--calibrate-kv-cache" in options(prepare.commands[0])
    words = options(build.commands[0])
    assert words[option] == ("<prepare/1-gpu>",) and {"--int8_kv_cache", "--use_weight_only"} <= set(words)


def test_scales_of_the_cache_beside_what_quantize_py_wrote() -> None:
    """examples/llama/README.md and examples/gptj/README.md, 'INT8 KV cache + AWQ'."""
    quantize, prepare, build = steps(made("0.7.1", method="int4_awq", kv_cache="int8"))
    assert (quantize.name, prepare.name) == ("quantize", "prepare")
    words = options(build.commands[0])
    assert words["--model_dir"] == ("<model>",) and words["--ft_model_dir"] == ("<prepare/1-gpu>",)
    assert words["--quant_ckpt_path"] == ("<quantize/llama_tp1_rank0.npz>",)
    assert build.inputs == ("model", "prepare", "quantize")


def test_scales_that_somebody_has_computed_stand_in_the_model_s_place() -> None:
    wanted = made("0.7.1", method="int8_sq", checkpoint="/models/sq0.5/1-gpu", per_token=True)
    [step] = steps(wanted)
    words = options(step.commands[0])
    assert words["--ft_model_dir"] == ("/models/sq0.5/1-gpu",) and "--use_smooth_quant" in words
    assert "--model_dir" not in words and step.inputs == ("/models/sq0.5/1-gpu",)
    assert notes(wanted) == ()


@pytest.mark.parametrize(
    ("release", "family", "wanted", "key"),
    [
        ("0.7.1", "chatglm", {"method": "int8_sq"}, "method"),
        ("0.6.0", "opt", {"kv_cache": "int8"}, "kv_cache"),
    ],
)
def test_scales_that_no_known_program_computes(
    release: str, family: str, wanted: Mapping[str, str], key: str
) -> None:
    problems = found(job(release, family, engine={"dtype": "float16", "quantization": wanted}))
    [problem] = [each for each in problems if each.field == f"engine.quantization.{key}"]
    assert f"no program of TensorRT-LLM {release} is known that computes int8 scales" in problem.message
    assert "the first release that builds this engine is 0.8.0" in (problem.hint or "")


@pytest.mark.parametrize(
    ("release", "family", "names"),
    [
        ("0.7.1", "mpt", ("--in_file", "--out_dir", "--tensor_parallelism", "--storage_type")),
        ("0.5.0", "opt", ("-in_file", "-saved_dir", "-infer_gpu_num", "-weight_data_type")),
    ],
)
def test_families_whose_build_py_reads_no_others(release: str, family: str, names: tuple[str, ...]) -> None:
    prepare, build = planned(job(release, family, engine={"dtype": "float16", "tensor_parallel": 4}))
    words = options(prepare.commands[0])
    written = "fp16" if family == "opt" else "float16"
    assert [words[name] for name in names] == [("<model>",), ("<output>",), ("4",), (written,)]
    assert options(build.commands[0])["--model_dir"] == ("<prepare/4-gpu>",) and build.inputs == ("prepare",)


def test_gpt_s_are_computed_on_the_way() -> None:
    wanted = {"quantization": {"method": "int8_sq", "smoothquant": 0.5}}
    prepare, build = steps(job("0.7.1", "gpt", engine=wanted))
    assert options(prepare.commands[0])["--smoothquant"] == ("0.5",)
    assert "--use_smooth_quant" in options(build.commands[0])


@pytest.mark.parametrize(
    ("release", "option"),
    [
        ("0.9.0", "--ammo_quant_ckpt_path"),
        ("0.10.0", "--modelopt_quant_ckpt_path"),
        ("0.11.0", "--quant_ckpt_path"),
    ],
)
def test_gptq_s_weights_by_the_name_of_the_day(release: str, option: str) -> None:
    convert, _ = steps(made(release, method="int4_gptq", checkpoint="/models/gptq", group_size=64))
    words = options(convert.commands[0])
    assert words[option] == ("/models/gptq",) and words["--group_size"] == ("64",)
    assert words["--weight_only_precision"] == ("int4_gptq",) and "--per_group" in words
    assert convert.inputs == ("model", "/models/gptq")


@pytest.mark.parametrize("method", ["w4a8_qserve_per_group", "w4a8_qserve_per_channel"])
@pytest.mark.parametrize("release", ["0.15.0", "1.2.1"])
def test_qserve_s_weights_by_convert(release: str, method: str) -> None:
    """examples/llama/README.md, 'w4aINT8 quantization (QServe)'."""
    [problem] = found(made(release, method=method))
    assert problem.field == "engine.quantization.checkpoint" and problem.code == "missing"
    convert, _ = steps(made(release, method=method, checkpoint="/models/deepcompressor"))
    words = options(convert.commands[0])
    assert words["--quant_ckpt_path"] == ("/models/deepcompressor",) and words["--use_qserve"] == ()
    assert ("--per_group" in words) == (method == "w4a8_qserve_per_group")
    assert convert.commands[0][:2] == ("env", "TRTLLM_DISABLE_UNIFIED_CONVERTER=1")
    assert "/models/deepcompressor" in convert.inputs
    assert notes(made(release, method=method, checkpoint="/models/deepcompressor")) == ()


def test_nvfp4_by_quantize_py_or_as_it_is() -> None:
    words = said("0.17.0", method="nvfp4", kv_cache="fp8", calibration_dataset="/data/cnn")["quantize"]
    assert (words["--qformat"], words["--kv_cache_dtype"]) == (("nvfp4",), ("fp8",))
    wanted = {"method": "nvfp4", "tool": "convert"}
    assert "--use_nvfp4" in said("1.2.1", **wanted)["convert"] and notes(made("1.2.1", **wanted)) == ()


@pytest.mark.parametrize(
    ("release", "family", "method", "words"),
    [
        ("0.16.0", "llama", "nvfp4", "quantize.py has --qformat nvfp4 since 0.17.0"),
        ("0.7.1", "gpt", "nvfp4", "quantize.py has --qformat nvfp4 since 0.17.0"),
        ("0.14.0", "llama", "w4a8_qserve_per_group", "convert_checkpoint.py has --use_qserve since 0.15.0"),
        ("0.5.0", "llama", "w4a8_qserve_per_channel", "convert_checkpoint.py has --use_qserve since 0.15.0"),
        ("0.16.0", "qwen", "w4a8_qserve_per_group", "no release that is known here does"),
    ],
)
def test_newer_methods_are_refused_by_name_elsewhere(
    release: str, family: str, method: str, words: str
) -> None:
    wanted = {"method": method, "checkpoint": "/models/q"} if "qserve" in method else {"method": method}
    problems = found(job(release, family, engine={"dtype": "float16", "quantization": wanted}))
    [problem] = [each for each in problems if each.field == "engine.quantization.method"]
    assert words in problem.message and release in problem.message


@pytest.mark.parametrize("release", ["0.9.0", "0.16.0", "1.2.1"])
def test_qwen_s_gptq_weights_are_the_model_itself(release: str) -> None:
    """examples/qwen/README.md, 'INT4-GPTQ': there is no option for another place."""
    wanted: dict[str, Any] = {"method": "int4_gptq", "group_size": 128}
    convert, _ = steps(job(release, "qwen", engine={"dtype": "float16", "quantization": wanted}))
    words = options(convert.commands[0])
    assert words["--model_dir"] == ("<model>",) and words["--weight_only_precision"] == ("int4_gptq",)
    assert "--use_weight_only" in words and "--per_group" in words and convert.inputs == ("model",)
    elsewhere = {**wanted, "checkpoint": "/models/gptq"}
    [problem] = found(job(release, "qwen", engine={"dtype": "float16", "quantization": elsewhere}))
    assert problem.field == "engine.quantization.checkpoint"
    assert "set model.path to the folder of the quantized weights" in (problem.hint or "")


def test_qwen_s_build_py_of_0_8_has_an_option_for_them() -> None:
    wanted: dict[str, Any] = {"method": "int4_gptq"}
    [problem] = found(job("0.8.0", "qwen", engine={"quantization": wanted}))
    assert problem.field == "engine.quantization.checkpoint" and problem.code == "missing"
    made = job("0.8.0", "qwen", engine={"quantization": {**wanted, "checkpoint": "/models/m"}})
    [step] = steps(made)
    assert options(step.commands[0])["--quant_ckpt_path"] == ("/models/m",)


@pytest.mark.parametrize("family", ["gptneox", "baichuan"])
def test_gptq_where_no_option_says_that_it_is_by_groups(family: str) -> None:
    """examples/gptneox/README.md and examples/baichuan/README.md."""
    wanted = {"method": "int4_gptq", "checkpoint": "/models/gptq"}
    convert, _ = steps(job("0.16.0", family, engine={"dtype": "float16", "quantization": wanted}))
    words = options(convert.commands[0])
    assert words["--quant_ckpt_path"] == ("/models/gptq",) and "--per_group" not in words


@pytest.mark.parametrize(
    ("release", "method", "since"),
    [("0.7.1", "w4a8_awq", "0.8.0"), ("0.11.0", "fp8_rowwise", "0.12.0")],
)
def test_a_method_that_came_later_is_refused_with_its_release(release: str, method: str, since: str) -> None:
    messages = [problem.message for problem in found(made(release, method=method))]
    assert any(release in message and since in message for message in messages)


def test_samples_that_are_downloaded_are_a_note_and_no_refusal() -> None:
    wanted = made("0.16.0", method="fp8")
    assert found(wanted) == []
    [note] = notes(wanted)
    assert "cnn_dailymail" in note and "engine.quantization.calibration_dataset" in note
    assert notes(made("0.16.0", method="fp8", calibration_dataset="/data/cnn")) == ()
    assert notes(made("0.16.0", method="int8_wo")) == ()
    [note] = notes(made("0.9.0", method="fp8"))
    assert "cache of Hugging Face" in note


@pytest.mark.parametrize(
    ("quantization", "key"),
    [
        ({"method": "auto", "auto_bits": 5.0}, "auto_formats"),
        ({"method": "auto", "auto_formats": ["fp8"]}, "auto_bits"),
        ({"method": "int4_gptq"}, "checkpoint"),
        ({"method": "fp8", "smoothquant": 0.5}, "smoothquant"),
        ({"method": "fp8", "awq_block_size": 64}, "awq_block_size"),
    ],
)
def test_keys_that_go_with_a_method(quantization: Mapping[str, Any], key: str) -> None:
    assert key in {problem.field.rpartition(".")[2] for problem in found(made("0.16.0", **quantization))}


@pytest.mark.parametrize(
    ("capability", "quantization", "refused"),
    [
        ("8.0", {"method": "fp8"}, True),
        ("8.9", {"method": "fp8"}, False),
        ("9.0", {"method": "w4a8_awq", "kv_cache": "fp8"}, False),
        ("8.6", {"kv_cache": "fp8"}, True),
        ("8.0", {"method": "int4_awq"}, False),
        (None, {"method": "fp8"}, False),
    ],
)
def test_fp8_needs_gpus_that_have_it(
    capability: str | None, quantization: Mapping[str, Any], refused: bool
) -> None:
    problems = found(made("0.16.0", **quantization), cluster(compute_capability=capability))
    assert bool(problems) is refused
    assert all("8.9" in problem.message and str(capability) in problem.message for problem in problems)


def test_nvfp4_needs_blackwell() -> None:
    wanted = made("0.17.0", method="nvfp4")
    [problem] = found(wanted, cluster(compute_capability="9.0"))
    assert "nvfp4 needs GPUs of compute capability 10.0" in problem.message
    assert found(wanted, cluster(compute_capability="10.0")) == []


def test_volta_is_gone_from_0_16_on() -> None:
    volta = cluster(compute_capability="7.0")
    assert found(made("0.15.0"), volta) == []
    [problem] = found(made("0.16.0"), volta)
    assert "0.16.0" in problem.message
