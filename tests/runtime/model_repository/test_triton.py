"""A real tritonserver loads what was rendered, and values arrive as they were written."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.reference.servers import World, start
from tests.runtime.model_repository.jobs import make_recipe
from tests.runtime.model_repository.python_models import SOURCES
from tests.runtime.model_repository.upstream import write_all_models
from trtllm_hpc.runtime.model_repository.writer import render_models, write_repository

pytestmark = pytest.mark.triton

ENGINES = ('/engines/a, b: c; "d" e', "/engines/\\n zwei ü {0, 0}, {1}")
TOKENIZER = "/models/it's ${HOME} a\u2028b"
CHOICES = '{0, 0, 0}, {0, 1}; "x": y'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two copies of ``tensorrt_llm``, as orchestrator mode has them, with Python models behind."""
    folder = tmp_path_factory.mktemp("repository")
    recipe = make_recipe(
        "0.16.0",
        engine={"backend": "python"},
        serve={"mode": "orchestrator"},
        model={"tokenizer": TOKENIZER},
        repository={
            "parameters": {"tensorrt_llm": {"medusa_choices": CHOICES}},
            "decoupled": False,
            "models": [
                {"name": "tensorrt_llm", "gpu_device_ids": [0, 1], "engine": ENGINES[0]},
                {"name": "tensorrt_llm_2", "gpu_device_ids": [2, 3], "engine": ENGINES[1]},
            ],
        },
    )
    models = render_models(recipe, write_all_models(folder, "0.16.0", SOURCES))
    write_repository(models, folder / "models")
    with start(folder / "world", folder / "models", 1) as running:
        yield running


def config(world: World, model: str) -> dict[str, Any]:
    with urllib.request.urlopen(world.url(f"models/{model}/config"), timeout=10) as answer:
        return dict(json.load(answer))


def expected_text(copy: int) -> str:
    return f"hello|{ENGINES[copy]}|{TOKENIZER}"


@pytest.mark.parametrize(
    ("model", "copy"),
    [("ensemble", 0), ("ensemble_2", 1), ("tensorrt_llm_bls", 0), ("tensorrt_llm_bls_2", 1)],
)
def test_each_copy_answers_through_its_own_pipeline(world: World, model: str, copy: int) -> None:
    status, answer = world.generate({"text_input": "hello", "max_tokens": 4}, model)
    assert (status, answer.get("text_output")) == (200, expected_text(copy)), answer


def test_parameters_arrive_unharmed(world: World) -> None:
    loaded = config(world, "tensorrt_llm")
    values = {key: value["string_value"] for key, value in loaded["parameters"].items()}
    assert values["gpt_model_path"] == ENGINES[0]
    assert values["gpu_device_ids"] == "0,1"
    assert values["medusa_choices"] == CHOICES
    assert "decoding_mode" not in values
    assert loaded["max_batch_size"] == 64


def test_an_empty_parameter_is_there_and_empty(world: World) -> None:
    assert config(world, "preprocessing")["parameters"]["visual_model_path"] == {"string_value": ""}
