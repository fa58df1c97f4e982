"""Models that do not fit together are refused, each with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.model_repository.jobs import make_recipe
from tests.runtime.model_repository.upstream import write_all_models
from trtllm_hpc.runtime.model_repository.recipe import ModelEdits, RepositoryRecipe
from trtllm_hpc.runtime.model_repository.writer import CONFIG, RepositoryInvalid, render_models

VERSION = "0.16.0"
GROUP = "inflight_batcher_llm"


@pytest.fixture
def all_models(tmp_path: Path) -> Path:
    return write_all_models(tmp_path, VERSION)


def change(all_models: Path, model: str, old: str, new: str, group: str = GROUP) -> None:
    file = all_models / group / model / "config.pbtxt"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def problems(all_models: Path, recipe: RepositoryRecipe | None = None) -> list[tuple[str, str]]:
    with pytest.raises(RepositoryInvalid) as caught:
        render_models(recipe or make_recipe(VERSION), all_models)
    return [
        (problem.file.removesuffix("/config.pbtxt"), problem.message) for problem in caught.value.diagnostics
    ]


def edited(name: str, edits: ModelEdits) -> RepositoryRecipe:
    """The recipe with other edits of one model."""
    recipe = make_recipe(VERSION)
    models = tuple(replace(it, edits=edits) if it.name == name else it for it in recipe.models)
    return replace(recipe, models=models)


def test_a_step_names_a_model_that_is_not_there(all_models: Path) -> None:
    edits = ModelEdits(max_batch_size=64, models={"tensorrt_llm": "tensorrt_llm_9"})
    found = problems(all_models, edited("ensemble", edits))
    assert found[0][0] == "ensemble"
    assert found[0][1].startswith(
        "its step tensorrt_llm_9 names the model 'tensorrt_llm_9', and the repository has"
    )


def test_an_ensemble_takes_no_larger_batches_than_its_steps(all_models: Path) -> None:
    sentence = "takes batches of 64, but postprocessing only of 4."
    assert problems(all_models, edited("postprocessing", ModelEdits(max_batch_size=4))) == [
        ("ensemble", sentence)
    ]


def test_a_python_model_has_its_source(all_models: Path) -> None:
    (all_models / GROUP / "preprocessing" / "1" / "model.py").unlink()
    sentence = "has the backend python, but its template lacks 1/model.py."
    assert problems(all_models) == [("preprocessing", sentence)]


def test_a_parameter_names_a_model_that_is_there(all_models: Path) -> None:
    recipe = make_recipe(
        VERSION,
        repository={"parameters": {"tensorrt_llm_bls": {"tensorrt_llm_draft_model_name": "draft"}}},
    )
    found = problems(all_models, recipe)
    assert [model for model, _ in found] == ["tensorrt_llm_bls"]
    assert "tensorrt_llm_draft_model_name names the model 'draft'" in found[0][1]


def test_a_missing_template_is_reported_with_the_present_ones(all_models: Path) -> None:
    recipe = make_recipe(
        VERSION,
        serve={
            "mode": "disaggregated",
            "disaggregated": {"context": {"instances": [[0]]}, "generation": {"instances": [[1]]}},
        },
    )
    (all_models / "disaggregated_serving" / "disaggregated_serving_bls" / "config.pbtxt").unlink()
    found = problems(all_models, recipe)
    assert found[0][0] == "disaggregated_serving_bls"
    assert f"{GROUP}/tensorrt_llm" in found[0][1]


def test_an_unknown_placeholder_must_be_set(all_models: Path) -> None:
    change(all_models, "tensorrt_llm", '"${max_beam_width}"', '"${brand_new}"')
    recipe = make_recipe(VERSION)
    found = problems(all_models, recipe)
    assert found == [("tensorrt_llm", "nothing defines ${brand_new} (string_value).")]
    recipe = make_recipe(VERSION, repository={"parameters": {"tensorrt_llm": {"brand_new": 7}}})
    assert '"7"' in str(render_models(recipe, all_models)["tensorrt_llm"][CONFIG])


def test_a_value_for_a_placeholder_that_no_template_has_is_reported(all_models: Path) -> None:
    recipe = make_recipe(VERSION, repository={"parameters": {"tensorrt_llm": {"brand_new": 7}}})
    sentence = "its template has no ${brand_new}, which the job file sets."
    assert problems(all_models, recipe) == [("tensorrt_llm", sentence)]
