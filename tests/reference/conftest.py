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

from . import clients, oracle, servers
from .oracle import Oracle

Generate = Callable[[list[int], int, int | None], list[int]]
Greedy = Callable[[servers.World, list[int], int, int | None], list[int]]
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
def served(engines: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What the servers load, for each world size; longer answers on GPUs, and other weights in bfloat16."""
    folder = tmp_path_factory.mktemp("served")
    if not oracle.ON_GPU and oracle.DTYPE == "float32":
        return engines
    source = save_model(oracle.make_model(), folder / "source")
    limits = (*LIMITS[:-1], str(oracle.MAX_SEQ_LEN))
    options = (*limits, "--model", str(source), "--dtype", oracle.DTYPE)
    return {size: build_engine(folder / f"tp{size}", *options, tensor_parallel=size) for size in engines}


@pytest.fixture(scope="session")
def tokenizer(engines: dict[int, Path]) -> ModelTokenizer:
    return ModelTokenizer(engines[1] / "tokenizer")


@pytest.fixture(scope="session")
def repository(served: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository for two ranks."""
    return servers.write_repository(tmp_path_factory.mktemp("repository") / "tp2", served[2])


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the engine without a model."""
    folder = tmp_path_factory.mktemp("stand-in")
    engine = build_engine(folder / "engine", "--synthetic", "stand-in", *LIMITS, tensor_parallel=2)
    return servers.write_repository(folder / "tp2", engine)


@pytest.fixture(scope="session")
def alone(served: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.World]:
    """One rank, decoupled; its BLS model accumulates tokens."""
    options: dict[str, Any] = {"decoupled": True, "bls_instances": 2, "accumulate_tokens": "true"}
    folder = tmp_path_factory.mktemp("alone")
    repository = servers.write_repository(folder / "repository", served[1], **options)
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
def plain_model() -> Any:
    """The tiny model of the engines as transformers makes it, whole, in this process."""
    return synthetic.make_model(seed=0, dtype="float32", max_seq_len=512).eval()


@pytest.fixture(scope="session")
def greedy(plain_model: Any) -> Generate:
    """New tokens that transformers' own ``generate`` makes of a prompt, in this process."""
    return lambda prompt, count, end_id: oracle.generate(plain_model, prompt, count, eos_token_id=end_id)[0]


@pytest.fixture(scope="session")
def judge(request: pytest.FixtureRequest) -> Iterator[Oracle]:
    """Knows the right answers of ``alone`` and ``pair``."""
    made = Oracle(oracle.make_model().float())
    yield made
    request.config.stash[DEVIATIONS] = made


@pytest.fixture
def greedy_alone(judge: Oracle) -> Greedy:
    """New tokens of a prompt that an idle server answers, seen to be the right ones."""

    def ask(world: servers.World, prompt: list[int], count: int, end_id: int | None) -> list[int]:
        end = {} if end_id is None else {"end_id": end_id}
        inputs = clients.token_inputs(prompt, count, exclude_input_in_output=True, **end)
        found = clients.tokens(clients.ask_one(world, "tensorrt_llm", inputs))
        judge.check_greedy(prompt, found, count, end_id)
        return found

    return ask


DEVIATIONS = pytest.StashKey[Oracle]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how far the servers were from float32."""
    made = config.stash.get(DEVIATIONS, None)
    if made is not None:
        bounds = {kind: getattr(made.bounds, kind) for kind in made.seen}
        shown = ", ".join(
            f"{kind} {value:.2g} (at most {bounds[kind]:g})" for kind, value in made.seen.items()
        )
        terminalreporter.write_line(f"largest deviations in {oracle.DTYPE}: {shown or 'none measured'}")
