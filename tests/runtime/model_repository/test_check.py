"""Models that do not fit together are refused, each with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.model_repository.jobs import make_recipe
from tests.runtime.model_repository.upstream import write_all_models
from trtllm_hpc.runtime.model_repository.check import RepositoryInvalid
from trtllm_hpc.runtime.model_repository.recipe import ModelEdits, RepositoryRecipe
from trtllm_hpc.runtime.model_repository.repository import CONFIG, render_models

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
    assert found[0][1].startswith("a step names the model 'tensorrt_llm_9', and the repository has")


def test_a_step_names_tensors_that_the_model_does_not_have(all_models: Path) -> None:
    change(all_models, "ensemble", 'key: "input_ids"', 'key: "input_words"')
    assert problems(all_models) == [
        ("ensemble", "its step tensorrt_llm names an input input_words, which that model does not have."),
        ("ensemble", "its step tensorrt_llm gives no value for the input input_ids, which that model needs."),
    ]


def test_an_output_cannot_be_used_as_an_input(all_models: Path) -> None:
    change(all_models, "ensemble", 'output_map { key: "output_ids"', 'output_map { key: "input_ids"')
    found = problems(all_models)
    assert (
        "ensemble",
        "its step tensorrt_llm names an output input_ids, which that model does not have.",
    ) in found


def test_a_tensor_has_a_producer(all_models: Path) -> None:
    change(
        all_models, "ensemble", 'value: "_TOKENS_BATCH" }\n      output', 'value: "_TOKENS" }\n      output'
    )
    where = "the input TOKENS_BATCH of its step postprocessing"
    sentence = f"{where} is the tensor _TOKENS_BATCH, which nothing produces."
    assert problems(all_models) == [("ensemble", sentence)]


def test_a_tensor_has_one_producer(all_models: Path) -> None:
    change(
        all_models,
        "ensemble",
        'value: "_REQUEST_INPUT_LEN" }\n      output',
        'value: "_INPUT_ID" }\n      output',
    )
    assert ("ensemble", "the tensor _INPUT_ID has 2 producers.") in problems(all_models)


def test_an_output_of_the_ensemble_has_a_producer(all_models: Path) -> None:
    change(all_models, "ensemble", 'output_map { key: "OUTPUT" value: "text_output" }', "")
    sentence = "the output text_output is the tensor text_output, which nothing produces."
    assert problems(all_models) == [("ensemble", sentence)]


def test_data_types_agree_along_the_way(all_models: Path) -> None:
    change(
        all_models,
        "tensorrt_llm",
        'name: "input_ids"\n    data_type: TYPE_INT32',
        'name: "input_ids"\n    data_type: TYPE_INT64',
    )
    sentence = (
        "the input input_ids of its step tensorrt_llm is TYPE_INT64, but its tensor _INPUT_ID is TYPE_INT32."
    )
    assert problems(all_models) == [("ensemble", sentence)]


def test_an_ensemble_takes_no_larger_batches_than_its_steps(all_models: Path) -> None:
    sentence = "takes batches of 64, but its step postprocessing only of 4."
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


def test_two_models_do_not_share_a_name(all_models: Path) -> None:
    recipe = make_recipe(VERSION)
    twice = RepositoryRecipe(recipe.release, (*recipe.models, recipe.models[0]))
    assert problems(all_models, twice) == [("ensemble", "is the name of 2 models.")]


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


def test_a_folder_without_templates_is_refused(tmp_path: Path) -> None:
    assert "has no model templates" in problems(tmp_path)[0][1]


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


def test_everything_is_reported_at_once(all_models: Path) -> None:
    change(all_models, "tensorrt_llm", '"${max_beam_width}"', '"${brand_new}"')
    change(all_models, "preprocessing", '"${tokenizer_dir}"', '"${other_new}"')
    change(all_models, "postprocessing", "max_batch_size:", "max_batchsize:")
    assert {model for model, _ in problems(all_models)} == {"tensorrt_llm", "preprocessing", "postprocessing"}
