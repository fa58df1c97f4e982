"""``runtime repository`` from the zipapp, in Pythons that have no protobuf or another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.compiled import with_compiled
from tests.runtime.model_repository.jobs import make_recipe
from tests.runtime.model_repository.upstream import write_all_models
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.render.run_folder import protobuf_files, runtime_zipapp
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.runtime.model_repository.writer import CONFIG, render_models

VERSION = "0.16.0"
ISOLATED = ("-I", "-S")
"""No environment variable, no site-packages: what a container without protobuf gives us."""


@pytest.fixture(scope="module")
def zipapp() -> bytes:
    return with_compiled(runtime_zipapp(protobuf_files()))


@pytest.fixture
def paths(tmp_path: Path, zipapp: bytes) -> RunPaths:
    """A run folder as the job finds it."""
    paths = RunPaths(tmp_path / "a run, with: names")
    paths.make_folders()
    paths.runtime.write_bytes(zipapp)
    write_recipe(paths, make_recipe(VERSION))
    write_all_models(tmp_path, VERSION)
    return paths


def write_recipe(paths: RunPaths, recipe: RepositoryRecipe) -> None:
    paths.repository_recipe.write_text(json.dumps(recipe.as_json()), encoding="utf-8")


def make(paths: RunPaths, *options: str, search: Path | None = None) -> subprocess.CompletedProcess[str]:
    arguments = ["repository", f"--all-models={paths.folder.parent / 'all_models'}"]
    environment = {"PATH": os.environ["PATH"]} | ({"PYTHONPATH": str(search)} if search is not None else {})
    return subprocess.run(
        [sys.executable, *options, str(paths.runtime), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )


def test_it_writes_what_would_be_written_before_submission(paths: RunPaths) -> None:
    answer = make(paths, *ISOLATED)
    assert (answer.returncode, answer.stderr) == (0, "")
    expected = render_models(make_recipe(VERSION), paths.folder.parent / "all_models")
    assert {folder.name for folder in paths.repository.iterdir()} == set(expected)
    for name, model in expected.items():
        folder = paths.repository / name
        assert (folder / "config.pbtxt").read_text(encoding="utf-8") == model[CONFIG]
        assert (folder / "1").is_dir()
        assert (folder / "1" / "model.py").is_file() == (name != "ensemble")
    assert (paths.repository / "tensorrt_llm_bls" / "1" / "lib" / "decode.py").is_file()
    assert not list(paths.repository.rglob("__pycache__"))
    assert not [path for path in paths.folder.iterdir() if path.name.startswith(".")]


def test_another_protobuf_in_the_container_is_left_alone(paths: RunPaths, tmp_path: Path) -> None:
    """A google package that is imported at every start, with a compiled part of another version."""
    site = tmp_path / "site"
    for package in ("google", "google/protobuf", "google/_upb"):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text("", encoding="utf-8")
    (site / "google/protobuf/__init__.py").write_text("__version__ = '3.5.0'\n", encoding="utf-8")
    (site / "google/_upb/_message.py").write_text("raise SystemError('of 3.5')\n", encoding="utf-8")
    (site / "sitecustomize.py").write_text("import google.protobuf\n", encoding="utf-8")
    answer = make(paths, search=site)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert (paths.repository / "ensemble" / "config.pbtxt").is_file()


def test_errors_have_no_traceback(paths: RunPaths) -> None:
    config = paths.folder.parent / "all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("${max_beam_width}", "${brand_new}"), encoding="utf-8")
    answer = make(paths, *ISOLATED)
    assert answer.returncode == ExitCode.START
    assert answer.stderr.startswith("error: repository: The model repository has 1 problem.\n")
    assert "nothing defines ${brand_new} (string_value)." in answer.stderr
    assert "next: set repository.parameters.tensorrt_llm.brand_new" in answer.stderr
    assert not any(paths.repository.iterdir())


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda paths: paths.repository_recipe.unlink(), "repository.json is missing"),
        (lambda paths: paths.repository_recipe.write_text("{"), "repository.json cannot be read"),
        (lambda paths: paths.runtime.write_bytes(runtime_zipapp()), "protobuf"),
    ],
    ids=["no recipe", "half a recipe", "nothing vendored"],
)
def test_an_incomplete_run_folder_is_an_error(paths: RunPaths, prepare: object, message: str) -> None:
    assert callable(prepare)
    prepare(paths)
    answer = make(paths, *ISOLATED)
    assert answer.returncode == ExitCode.START
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr
