"""The settings and files in docs/how-to/workloads.md are valid."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any, get_args

import pytest
from ruamel.yaml import YAML

from trtllm_hpc.bench.workload import request
from trtllm_hpc.bench.workload.request import Vocabulary
from trtllm_hpc.config.benchmark import Benchmark, Workload
from trtllm_hpc.validation.benchmark_rules import settings_problems

from .helpers import build

TEXT = (Path(__file__).parents[3] / "docs" / "how-to" / "workloads.md").read_text(encoding="utf-8")
BLOCKS = [
    (info, textwrap.dedent(indent + block))
    for indent, info, block in re.findall(r"^( *)```(\S.*)\n((?:.*\n)*?) *```$", TEXT, re.MULTILINE)
]
SETTINGS = [block for info, block in BLOCKS if info == "yaml"]
FILES = [(info.rpartition(".")[2].rstrip("}"), block) for info, block in BLOCKS if " " in info]
KINDS = get_args(Workload.model_fields["kind"].annotation)


def benchmark(block: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(block)["companion"]["benchmark"]
    return found


@pytest.mark.parametrize("block", SETTINGS)
def test_settings_are_valid(block: str) -> None:
    assert settings_problems(Benchmark.model_validate(benchmark(block))) == []


def test_every_kind_has_an_example() -> None:
    assert list(dict.fromkeys(benchmark(block)["workload"]["kind"] for block in SETTINGS)) == list(KINDS)


@pytest.mark.parametrize(("kind", "content"), FILES)
def test_files_are_read(kind: str, content: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(content)
    large = Vocabulary(range(3, 32_000), 32_000)
    ids = kind.endswith("-ids")
    built = build(2, kind=kind.removesuffix("-ids"), path=file, token_ids=ids, vocabulary=large)
    assert sum(request.turn in (None, 1) for request in built.requests) == 2 and built.notes == []


def test_files_of_every_kind_have_an_example() -> None:
    assert [kind for kind, _ in FILES] == [
        *["dataset"] * 2,
        "dataset-ids",
        *["dataset"] * 2,
        *["trace"] * 2,
        *["conversations"] * 2,
    ]


def test_every_source_of_token_counts_is_described() -> None:
    sources = {value for name, value in vars(request).items() if name.startswith("BY_")}
    table = TEXT.split("## Who counts tokens")[1]
    assert set(re.findall(r"^\| `([a-z ]+)` \|", table, re.MULTILINE)) == sources
