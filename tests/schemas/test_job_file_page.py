"""``docs/reference/job-file.md`` has every key of the job file, and what each becomes."""

from __future__ import annotations

import re

import pytest

from tools.job_file_page import PAGE
from trtllm_hpc.config.job import JobDocument
from trtllm_hpc.config.validate import all_keys

SECTIONS = dict(re.findall(r"(?ms)^## (\S+)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8")))
ALSO = {"serve.disaggregated.generation": "serve.disaggregated.context"}
"""Sections with the keys of another."""


def row(key: str) -> str:
    """The row of a key, whose section is a heading of the page."""
    path, _, name = key.rpartition(".")
    [line] = re.findall(rf"(?m)^\| `{name}` \|.*$", SECTIONS[ALSO.get(path, path) or "Sections"])
    return str(line)


def test_every_key_has_one_row() -> None:
    keys = [*all_keys(JobDocument)]
    assert "companion.benchmark.workload.kind" in keys
    assert [key for key in keys if not row(key)] == []


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        (
            "engine.tensor_parallel",
            ["| `1` |", "| all |", "LLM API: `tensor_parallel_size`, `--tp_size`<br>"],
        ),
        ("engine.max_batch_size", ["integer ≥ 1 or null", "`8` (reference), else `null`"]),
        ("engine.tokens_per_block", ["| tensorrtllm, python, reference |", "build: `--tokens_per_block`"]),
        ("engine.quantization.method", ["`fp8`, ", "| tensorrtllm, python |"]),
        ("engine.directory", ["| tensorrtllm, python, reference |"]),
        ("engine.llm_api", ["| pytorch, tensorrtllm (openai) |"]),
        ("repository.instances", ["| tensorrtllm (triton), python |"]),
        ("repository.models", ["| tensorrtllm (triton) |"]),
        ("repository.parameters", ["| tensorrtllm (triton), python |"]),
        ("repository.decoupled", ["LLM API: `triton_config.decoupled`", "Triton: `decoupled_mode`"]),
        ("serve.disaggregated.generation", ["[as `context`](#servedisaggregatedcontext)"]),
        ("companion.request.lora", ["[section](#companionrequestlora)"]),
    ],
)
def test_a_row_has_type_default_backends_and_what_the_key_becomes(key: str, parts: list[str]) -> None:
    assert [part for part in parts if part not in row(key)] == []
