"""LoRA adapters of the companion: those that no engine of the job would take are refused."""

from __future__ import annotations

import pytest

from tests.config.files import JOB, Folder
from tests.validation.test_release_rules import trt

BENCHMARK = "companion:\n  benchmark:\n    workload:\n      lora: [{directory: /a}]\n"
REQUEST = "companion:\n  request:\n    lora: {directory: /a}\n"
NAMED = "companion: {request: {lora: {adapter: luotuo}}}\n"
BUILDS = "  max_lora_rank: 8\n  lora: {target_modules: [attn_q], adapters: [/hf/luotuo]STORAGE}\n"


@pytest.mark.parametrize(
    ("job", "code", "field", "words"),
    [
        (JOB + BENCHMARK, "conflict", "companion.benchmark.workload.lora", "max_lora_rank 0"),
        (JOB + REQUEST, "conflict", "companion.request.lora", "max_lora_rank 0"),
        (trt("0.14.0", BUILDS.replace("STORAGE", "") + BENCHMARK), "release",
         "companion.benchmark.workload.lora", "ensemble of TensorRT-LLM 0.14.0 lacks its inputs"),
        (trt("0.8.0", BUILDS.replace("STORAGE", "") + BENCHMARK.replace("workload", "model: tensorrt_llm\n"
         "    workload")), "release", "companion.benchmark.workload.lora", "which came with 0.9.0"),
        (trt("0.16.0", BENCHMARK), "conflict", "companion.benchmark.workload.lora", "max_lora_rank 0"),
        (JOB + "engine: {max_lora_rank: 8}\n" + NAMED, "missing", "companion.request.lora", "converts none"),
        (trt("0.16.0", BUILDS.replace("STORAGE", "") + NAMED.replace("luotuo", "other")), "missing",
         "companion.request.lora", "it converts luotuo"),
        (trt("0.16.0", BUILDS.replace("STORAGE", ", storage_type: float32") + NAMED), "conflict",
         "companion.request.lora", "stores it as float32"),
        (JOB + "engine: {max_lora_rank: 8}\ncompanion: {request: {lora: {}}}\n", "conflict",
         "companion.request.lora", "neither or both"),
        (JOB + "engine: {max_lora_rank: 8}\ncompanion:\n  request: {lora: {directory: /a}}\n"
         "  benchmark: {workload: {lora: [{directory: /b}]}}\n", "conflict",
         "companion.benchmark.workload.lora", "task id 1 is another adapter"),
    ],
)  # fmt: skip
def test_a_refusal(files: Folder, job: str, code: str, field: str, words: str) -> None:
    found = files.diagnostic(job)
    assert (found.code, found.field) == (code, field)
    assert words in found.message and found.hint


@pytest.mark.parametrize(
    "job",
    [
        JOB + "engine: {max_lora_rank: 8}\n" + BENCHMARK,
        JOB + "engine: {directory: /engines/with-lora}\n" + BENCHMARK,
        JOB + BENCHMARK.replace("  benchmark", "  enabled: false\n  benchmark"),
        trt("0.16.0", BUILDS.replace("STORAGE", "") + NAMED),
        trt(
            "0.9.0",
            BUILDS.replace("STORAGE", "")
            + BENCHMARK.replace("workload", "model: tensorrt_llm\n    workload"),
        ),
        JOB + "engine: {max_lora_rank: 8}\ncompanion:\n  request: {lora: {directory: /a}}\n"
        "  benchmark: {workload: {lora: [{directory: /a}, {directory: /b}]}}\n",
    ],
)
def test_what_the_engine_takes_is_no_mistake(files: Folder, job: str) -> None:
    files.load(job)
