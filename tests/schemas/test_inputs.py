"""The schemas of job files and profiles refuse an editor's typical mistakes, and nothing that loads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.cli.typed import types as types
from tests.config.values import nested
from tests.render.cases import CASES
from trtllm_hpc.cli.init import schema
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.files import jobs, profiles, read_tree
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.layers import RELATIVE_PATHS
from trtllm_hpc.config.validate import all_keys

JOB, CLUSTER = (Draft202012Validator(schema(name)) for name in ("job", "cluster"))
TIME = re.compile(r"_(seconds|minutes)(_|$)")
VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 3, 0.5, -0.5, 1.5, 5000, 10**9, "", "a", "1", "2h", "/a", "a b", "auto", "float16",
    [], [1], [[1]], ["a"], ["/a"], ["-a"], [0.5], [None], {}, {"a": 1}, {"a": "auto"}, {"a": {"b": None}},
)  # fmt: skip


def content(path: Path) -> Any:
    tree, wrong = read_tree(path, "file")
    assert tree is not None and not wrong
    return tree.data


def complaints(validator: Draft202012Validator, value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def test_shipped_files_are_valid() -> None:
    for path in jobs().values():
        assert complaints(JOB, content(path)) == [], path
    for path in profiles().values():
        assert complaints(CLUSTER, content(path)) == [], path


def test_the_files_of_the_golden_scripts_are_valid() -> None:
    for name, (job, cluster) in CASES.items():
        assert complaints(JOB, job) + complaints(CLUSTER, cluster) == [], name


@pytest.mark.parametrize(("model", "validator"), [(JobFile, JOB), (ClusterProfile, CLUSTER)])
def test_they_accept_and_refuse_what_the_models_do(
    model: type[JobFile] | type[ClusterProfile], validator: Draft202012Validator
) -> None:
    # The loader makes paths absolute; and nothing in a profile is wrong with job_defaults, but in a job file.
    # There null removes the value of a file that it extends.
    apart = {".".join(path) for path in RELATIVE_PATHS} | {"job_defaults"}
    different = []
    for key in set(all_keys(model)) - apart:
        for value in VALUES:
            file = nested([(key, value)])
            try:
                model.model_validate(file)
                is_accepted = True
            except ValidationError:
                is_accepted = False
            is_removed = model is JobFile and (value is None or value == {"a": None})
            if validator.is_valid(file) != is_accepted and not is_removed:
                different.append(f"{key}: {value}")
    assert different == []


@pytest.mark.parametrize("path", RELATIVE_PATHS, ids=".".join)
def test_paths_that_the_loader_makes_absolute_may_be_relative(path: tuple[str, ...]) -> None:
    assert complaints(JOB, nested([(".".join(path), "../here")])) == []
    assert complaints(JOB, nested([(".".join(path), 1)])) != []


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"egnine": {}}, "$"),
        ({"engine": {"tensor_paralel": 2}}, "$.engine"),
        ({"engine": {"tensor_parallel": "2"}}, "$.engine.tensor_parallel"),
        ({"engine": {"backend": "tensorrt-llm"}}, "$.engine.backend"),
        ({"engine": {"plugins": {"GEMM": "auto"}}}, "$.engine.plugins"),
        ({"name": "two words"}, "$.name"),
    ],
)
def test_mistakes_in_a_job_file_are_found_at_their_place(wrong: dict[str, Any], where: str) -> None:
    [complaint] = complaints(JOB, {"name": "demo", **wrong})
    assert complaint.startswith(f"{where}: ")


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"partitoin": "gpu"}, "$"),
        ({"compute_capability": 9.0}, "$.compute_capability"),
        ({"container": {"mounts": ["/a:/a,/b:/b"]}}, "$.container.mounts[0]"),
        ({"sbatch_options": ["mail-type=FAIL"]}, "$.sbatch_options[0]"),
        ({"job_defaults": {"serve": {"dor": "none"}}}, "$.job_defaults.serve"),
    ],
)
def test_mistakes_in_a_profile_are_found_at_their_place(wrong: dict[str, Any], where: str) -> None:
    [complaint] = complaints(CLUSTER, {"name": "here", **wrong})
    assert complaint.startswith(f"{where}: ")


def test_defaults_for_jobs_may_be_any_part_of_a_job_file() -> None:
    part = {"model": {"path": "llama"}, "engine": {"tensor_parallel": 2}}
    assert complaints(CLUSTER, {"name": "here", "job_defaults": part}) == []
    assert complaints(JOB, part) != []


@pytest.mark.parametrize(
    ("kind", "options"),
    [("job", ()), ("job", ("--backend", "tensorrtllm")), ("cluster", ())],
)
def test_what_init_writes_names_its_schema_and_is_valid(
    types: Types, home: Path, kind: str, options: tuple[str, ...]
) -> None:
    types("init", kind, "made.yaml", *options)
    path = home / "made.yaml"
    named = re.match(r"# yaml-language-server: \$schema=file://(/\S+)\n", path.read_text())
    assert named is not None
    shipped = json.loads(Path(unquote(named[1])).read_text(encoding="utf-8"))
    assert json.loads(types("schema", kind).output)["title"] == shipped["title"]
    assert complaints(JOB if kind == "job" else CLUSTER, content(path)) == []
