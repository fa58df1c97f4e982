from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.plans import write_plan
from tests.runs.test_find import submit
from trtllm_hpc.cli.client import command
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.reference import build, synthetic
from trtllm_hpc.runtime.records import Endpoint

from . import servers
from .oracle import Oracle

AskRun = Callable[..., Result]

LIMITS = ("--max-batch-size", "8", "--max-input-len", "96", "--max-seq-len", "512")


def build_engine(output: Path, *options: str, tensor_parallel: int = 1) -> Path:
    arguments = ["--output", str(output), "--tensor-parallel", str(tensor_parallel), *options]
    assert build.main(arguments) == 0
    return output


def build_tiny(output: Path, *, tensor_parallel: int, seed: int = 0) -> Path:
    model = ("--synthetic", "tiny-llama", "--seed", str(seed))
    return build_engine(output, *LIMITS, *model, tensor_parallel=tensor_parallel)


def save_model(model: Any, folder: Path) -> Path:
    """A model as it is published, with the tokenizer of the synthetic ones."""
    model.save_pretrained(folder)
    synthetic.make_tokenizer(folder / "tokenizer")
    return shutil.copytree(folder / "tokenizer", folder, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """One engine of the same weights for each world size."""
    folder = tmp_path_factory.mktemp("engines")
    return {size: build_tiny(folder / f"tp{size}", tensor_parallel=size) for size in (1, 2)}


@pytest.fixture(scope="session")
def tokenizer(engines: dict[int, Path]) -> ModelTokenizer:
    return ModelTokenizer(engines[1] / "tokenizer")


@pytest.fixture(scope="session")
def repository(engines: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository for two ranks."""
    return servers.write_repository(tmp_path_factory.mktemp("repository") / "tp2", engines[2])


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the engine without a model."""
    folder = tmp_path_factory.mktemp("stand-in")
    engine = build_engine(folder / "engine", "--synthetic", "stand-in", *LIMITS, tensor_parallel=2)
    return servers.write_repository(folder / "tp2", engine)


@pytest.fixture(scope="session")
def alone(engines: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.World]:
    """One rank, decoupled; its BLS model accumulates tokens."""
    options: dict[str, Any] = {"decoupled": True, "bls_instances": 2, "accumulate_tokens": "true"}
    folder = tmp_path_factory.mktemp("alone")
    repository = servers.write_repository(folder / "repository", engines[1], **options)
    servers.add_recorded(repository)
    with servers.start(folder / "run", repository, 1) as world:
        yield world


@pytest.fixture(scope="session")
def pair(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.World]:
    """Two ranks that share the model; the tests leave them running."""
    with servers.start(tmp_path_factory.mktemp("pair") / "run", repository, 2) as world:
        yield world


@pytest.fixture(params=["alone", "pair"])
def world(request: pytest.FixtureRequest) -> servers.World:
    """One rank (decoupled), then two (not decoupled): a client gets the same from both."""
    served: servers.World = request.getfixturevalue(request.param)
    return served


@pytest.fixture
def endpoint(alone: servers.World) -> Endpoint:
    return alone.endpoint


@pytest.fixture
def run(tmp_path: Path, endpoint: Endpoint) -> RunPaths:
    """A run that ``alone`` serves."""
    paths = RunPaths(tmp_path / "runs" / "demo-1")
    paths.make_folders()
    write_plan(paths)
    endpoint.write(paths.endpoint)
    submit(paths, 0)
    return paths


@pytest.fixture
def ask_run(run: RunPaths) -> AskRun:
    """Type ``trtllm-hpc client`` and further words, with the folder of that run."""
    return lambda *words: CliRunner().invoke(command, ["--runs", str(run.folder.parent), *words])


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    """Knows the right answers of ``alone`` and ``pair``."""
    return Oracle()
