"""The key: the same for the same engine, another for any other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.engine_cache.builds import keys_of, make_model, recipe, with_arguments
from trtllm_hpc.errors import BuildFailed
from trtllm_hpc.runtime.engine_cache.build_recipe import BuildRecipe, FolderArgument
from trtllm_hpc.runtime.engine_cache.keys import step_keys


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


def test_no_folder_name_is_part_of_the_key(tmp_path: Path, model: Path) -> None:
    here = recipe(tmp_path / "engines", model)
    shutil.copytree(model, tmp_path / "far" / "copy")
    there = recipe(Path("/other/engines"), tmp_path / "far" / "copy", about={}, wait_seconds=1.0)
    assert keys_of(here) == keys_of(there)
    assert str(tmp_path) not in json.dumps(keys_of(here)["convert"].document)


CHANGES: dict[str, Callable[[BuildRecipe], BuildRecipe]] = {
    "an option": lambda made: with_arguments(made, "build", "--max_beam_width", "2"),
    "the order of arguments": lambda made: with_arguments(made, "build", "--a", "--b"),
    "the GPU": lambda made: replace(made, compute_capability="8.0"),
    "the version": lambda made: replace(
        made, steps=(made.steps[0], replace(made.steps[1], identity={"tensorrt_llm": "0.17.0"}))
    ),
    "the directory": lambda made: replace(
        made, steps=(made.steps[0], replace(made.steps[1], directory="/a"))
    ),
    "a place's suffix": lambda made: with_arguments(made, "build", FolderArgument("convert", "/encoder")),
    "a word that looks like a place": lambda made: with_arguments(made, "build", '{"place": "convert"}'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_to_the_build_spares_the_conversion(tmp_path: Path, model: Path, change: str) -> None:
    before = keys_of(recipe(tmp_path, model))
    after = keys_of(CHANGES[change](recipe(tmp_path, model)))
    assert after["convert"] == before["convert"]
    assert after["build"].digest != before["build"].digest


def test_what_the_conversion_reads_changes_both(tmp_path: Path, model: Path) -> None:
    before = keys_of(recipe(tmp_path, model))
    for changed in (
        recipe(tmp_path, make_model(tmp_path / "other", config__json="{}")),
        with_arguments(recipe(tmp_path, model), "convert", "--dtype", "float16"),
    ):
        after = keys_of(changed)
        assert all(after[step].digest != before[step].digest for step in ("convert", "build"))


def test_further_folders_count_by_their_content(tmp_path: Path, model: Path) -> None:
    def with_adapter(folder: Path) -> BuildRecipe:
        made = with_arguments(recipe(tmp_path, model), "build", "--lora_dir", str(folder))
        build = replace(made.steps[1], inputs=("convert", str(folder)))
        return replace(made, steps=(made.steps[0], build))

    one = make_model(tmp_path / "one")
    same = make_model(tmp_path / "same")
    other = make_model(tmp_path / "other", adapter_config__json="{}")
    assert keys_of(with_adapter(one)) == keys_of(with_adapter(same))
    assert keys_of(with_adapter(one)) != keys_of(with_adapter(other))


def test_an_edited_script_gives_another_key(tmp_path: Path, model: Path) -> None:
    made = recipe(tmp_path, model)
    planned = step_keys(made, compute_capability="9.0")
    edited = step_keys(made, compute_capability="9.0", edited_script="0" * 64)
    assert not {key.digest for key in planned} & {key.digest for key in edited}


@pytest.mark.parametrize(
    "text", [None, "", "[]", '{"format": 1}', '{"format": 99}', '{"format": 1, "steps": [{}]}']
)
def test_a_damaged_recipe_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "build.json").write_text(text)
    with pytest.raises(BuildFailed, match=r"build\.json"):
        BuildRecipe.read(tmp_path / "build.json")
