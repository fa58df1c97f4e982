"""Every key of the engine in every release: rendered in options that exist, or refused with a release."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.plan.made_steps import cluster, job, options, planned
from trtllm_hpc.backends import shared_rules
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.engine import Engine
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines import build_rules
from trtllm_hpc.engines.command_lines import RAW_ROLES
from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.engines.toolchain import NoToolchain, find_toolchain, folders
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.runtime.engine_cache.recipe import BuildStep, Placeholder
from trtllm_hpc.tensorrt_llm.releases.commands import Command
from trtllm_hpc.tensorrt_llm.releases.families import Family, families
from trtllm_hpc.tensorrt_llm.releases.release import Release, releases

CALIBRATION: Mapping[str, Any] = {"calibration_dataset": "/data/calibration"}
TARGETS: Mapping[str, Any] = {"target_modules": ["attn_q", "attn_k"]}


def lora(**keys: Any) -> Mapping[str, Any]:
    return {"max_lora_rank": 8, "lora": keys}


def quantized(method: str | None, **keys: Any) -> Mapping[str, Any]:
    return {"quantization": {"method": method, **keys}}


def drafted(mode: str, **keys: Any) -> Mapping[str, Any]:
    return {"speculative": {"mode": mode, **keys}}


_RULES = (*build_rules.OF_PROGRAMS, *build_rules.OF_KEYS)
SAMPLES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "tensor_parallel": ({"tensor_parallel": 4},),
    "pipeline_parallel": ({"pipeline_parallel": 2},),
    "context_parallel": ({"context_parallel": 2},),
    "moe_tensor_parallel": (
        {"tensor_parallel": 4, "moe_tensor_parallel": 2, "moe_expert_parallel": 2},
        {"tensor_parallel": 4, "moe_tensor_parallel": 4},
    ),
    "moe_expert_parallel": ({"tensor_parallel": 4, "moe_expert_parallel": 4},),
    "dtype": tuple({"dtype": each} for each in ("auto", "float32", "float16", "bfloat16")),
    "max_batch_size": ({"max_batch_size": 32},),
    "max_input_len": ({"max_input_len": 512},),
    "max_seq_len": ({"max_seq_len": 4096}, {"max_input_len": 512, "max_seq_len": 1024}),
    "max_num_tokens": ({"max_num_tokens": 4096},),
    "opt_num_tokens": ({"opt_num_tokens": 64},),
    "max_beam_width": ({"max_beam_width": 2},),
    "max_prompt_embedding_table_size": ({"max_prompt_embedding_table_size": 64},),
    "tokens_per_block": ({"tokens_per_block": 64},),
    "max_lora_rank": (lora(**TARGETS),),
    "lora.target_modules": (lora(**TARGETS),),
    "lora.adapters": (lora(**TARGETS, adapters=["/adapters/a"]),),
    "lora.storage_type": (lora(**TARGETS, adapters=["/adapters/a"], storage_type="bfloat16"),),
    "lora.directories": (lora(directories=["/adapters/a"]),),
    "lora.checkpoint_source": (lora(**TARGETS, checkpoint_source="nemo"),),
    "kv_cache_type": tuple({"kv_cache_type": each} for each in ("paged", "continuous", "disabled")),
    "plugins": tuple(
        {"plugins": {name: value}}
        for name in ("gpt_attention", "gemm")
        for value in ("auto", "float16", "bfloat16", "fp8", "enable", "disable")
    ) + tuple(
        {"plugins": {name: "auto"}}
        for name in ("lookup", "rmsnorm", "layernorm", "moe", "nccl", "mamba_conv1d", "bert_attention",
                     "gemm_swiglu", "fp8_rowwise_gemm", "low_latency_gemm", "dora")
    ),
    "hidden_act": ({"hidden_act": "gelu"},),
    "quantization.method": tuple(
        quantized(each, **CALIBRATION)
        for each in ("fp8", "fp8_rowwise", "nvfp4", "int8_sq", "int4_awq", "w4a8_awq", "int8_wo", "int4_wo",
                     "full_prec")
    ),
    "quantization.kv_cache": tuple(
        quantized(method, kv_cache=kind) for method in (None, "fp8", "int8_wo") for kind in ("int8", "fp8")
    ),
    "quantization.tool": tuple(
        quantized(method, tool=each)
        for method in ("int8_sq", "int8_wo", "fp8", "int4_awq") for each in ("convert", "quantize")
    ),
    "quantization.calibration_dataset": (quantized("fp8", **CALIBRATION),),
    "quantization.calibration_size": (quantized("fp8", calibration_size=32),),
    "quantization.batch_size": (quantized("fp8", batch_size=8),),
    "quantization.awq_block_size": (quantized("int4_awq", awq_block_size=64),),
    "quantization.group_size": (quantized("int4_gptq", group_size=64, checkpoint="/models/gptq"),),
    "quantization.smoothquant": (quantized("int8_sq", tool="convert", smoothquant=0.8),),
    "quantization.per_token": (quantized("int8_sq", tool="convert", per_token=True),),
    "quantization.per_channel": (quantized("int8_sq", tool="convert", per_channel=True),),
    "quantization.auto_formats": (quantized("auto", auto_formats=["fp8", "int4_awq"], auto_bits=5.0),),
    "quantization.auto_bits": (quantized("auto", auto_formats=["int8_sq"], auto_bits=8.5),),
    "quantization.checkpoint": tuple(
        quantized(each, tool="convert", checkpoint="/models/quantized")
        for each in ("int4_gptq", "fp8", "int4_awq", "int8_sq", "w4a8_qserve_per_group")
    ),
    "speculative.mode": (
        drafted("draft_tokens_external", max_draft_len=10),
        drafted("lookahead", max_draft_len=83),
    ),
    "speculative.max_draft_len": (drafted("lookahead", max_draft_len=83),),
    "workers": ({"workers": 8},),
    **{
        key: ({key: True}, {key: False})
        for key in ("gather_context_logits", "gather_generation_logits", "inflight_batching",
                    "remove_input_padding", "context_fmha", "context_fmha_fp32_acc", "paged_context_fmha",
                    "fp8_context_fmha", "multi_block_mode", "custom_all_reduce", "fused_mlp",
                    "reduce_fusion", "multiple_profiles", "weight_streaming", "weight_sparsity",
                    "strongly_typed", "embedding_sharing", "parallel_embedding")
    },
}  # fmt: skip
"""Values of each key, with what it needs beside it."""

ELSEWHERE = {
    "backend": "not an option of a program",
    "tensorrt_llm_version": "the release itself",
    "directory": "nothing is built",
    "encoder_decoder": "not built by keys",
    "llm_api": "for backends without these programs",
    **dict.fromkeys(
        ("enable_chunked_prefill", "capacity_scheduler_policy"), "for the server, not for the build"
    ),
    **{f"options.{role}": "test_raw_options.py" for role in (*RAW_ROLES, "lora")},
}

pytestmark = pytest.mark.thorough  # tests/golden/outcomes has the words of each release, and what it refuses

SITE = cluster()
RELEASE = re.compile(r"\b(" + "|".join(re.escape(release.version) for release in releases()) + r")\b")


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        section = next(
            (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None
        )
        if section is None:
            yield prefix + name
        else:
            yield from _keys(section, f"{prefix}{name}.")


def test_every_key_has_samples() -> None:
    assert set(_keys(Engine)) == set(SAMPLES) | set(ELSEWHERE)


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.version)
@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_every_key_is_rendered_or_refused_with_a_release(release: Release, family: str) -> None:
    for key, samples in SAMPLES.items():
        for sample in samples:
            repository = (
                {"batching_strategy": "V1"} if key in ("kv_cache_type", "remove_input_padding") else {}
            )
            made = job(
                release.version, family, engine={"max_input_len": 512, **sample}, repository=repository
            )
            refused = _refused(made)
            if refused:
                message = refused[0].message
                assert RELEASE.search(message), f"{key} {sample}: {message}"
                assert refused[0].hint
            else:
                _exists(made, release, family)


@pytest.mark.parametrize("family", families().values(), ids=lambda family: family.name)
def test_every_family_has_a_toolchain_or_a_release_that_has_one(family: Family) -> None:
    found = 0
    for release in releases():
        made = job(release.version, family.name)
        try:
            toolchain = find_toolchain(made, release, family)
        except NoToolchain as error:
            assert len(RELEASE.findall(error.message)) >= 2, error.message
            continue
        found += 1
        for command in toolchain.programs.values():
            assert set(folders(command)) <= set(command.options)
    assert found


def _refused(made: JobFile) -> list[Diagnostic]:
    """What the rules of releases say; those of other things would only take time."""
    facts = EngineFacts(made, SITE, "exact")
    return [problem for rule in (shared_rules.release_is_known, *_RULES) for problem in rule(facts)]


def _exists(made: JobFile, release: Release, family: str, where: ClusterProfile = SITE) -> None:
    """Every option is in the release's list, and takes the value."""
    for step in planned(made, where):
        for words in step.commands:
            if Placeholder("run", "/runtime.pyz") in words:
                continue  # a program of ours
            command = _command(step, words, release, family)
            for name, values in options(words).items():
                option = command.find(name)
                assert option is not None, f"{command.name} {release.version} has no {name}"
                assert bool(values) == (option.form != "flag"), f"{name} {values}"
                assert option.form == "list" or len(values) <= 1
                assert not option.choices or set(values) <= set(option.choices), f"{name} {values}"
                assert option.ignored is None


def _command(step: BuildStep, words: tuple[Any, ...], release: Release, family: str) -> Command:
    if words[0] == "env":
        words = words[2:]  # QServe's
    name = words[0] if step.name == "build" and words[0] == "trtllm-build" else words[1].rpartition("/")[2]
    command = release.command(name, family)
    assert command is not None, f"{release.version} has no {name}"
    return command


EVERY_SAMPLE = [sample for samples in SAMPLES.values() for sample in samples]


@settings(max_examples=300)
@given(
    release=st.sampled_from(releases()),
    family=st.sampled_from(sorted(families())),
    parts=st.lists(st.sampled_from(EVERY_SAMPLE), max_size=5),
    gpus=st.sampled_from([0, 4, 8]),
)
@pytest.mark.long
def test_what_is_not_refused_is_rendered(
    release: Release, family: str, parts: list[Mapping[str, Any]], gpus: int
) -> None:
    """Any keys together: a job file that loads has a plan, in options that its programs have."""
    engine = {key: value for part in parts for key, value in part.items()}
    made = job(release.version, family, engine=engine)
    if _refused(made):
        return
    _exists(made, release, families()[family].examples, cluster(gpus_per_node=gpus))
