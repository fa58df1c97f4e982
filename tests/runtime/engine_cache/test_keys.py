"""The key: the same for the same engine, another for any other."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.engine_cache.builds import keys_of, make_model, recipe, with_arguments
from trtllm_hpc.errors import BuildFailed
from trtllm_hpc.paths import read_json, write_json
from trtllm_hpc.runtime.engine_cache.build_recipe import BuildRecipe, BuildStep, FolderArgument
from trtllm_hpc.runtime.engine_cache.keys import CapabilityUnknown, digest_of, step_keys

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
places = st.builds(FolderArgument, st.sampled_from(["output", "run"]), st.text(max_size=5))
arguments = st.text(max_size=12) | places
steps = st.builds(
    BuildStep,
    st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    st.lists(st.lists(arguments, min_size=1, max_size=5).map(tuple), min_size=1, max_size=3).map(tuple),
    st.none() | st.text(),
    st.just(()),
    st.dictionaries(st.text(max_size=5), values, max_size=4),
)
recipes = st.builds(BuildRecipe, st.text(), st.lists(steps, min_size=1, max_size=1).map(tuple))


def shuffled(value: Any, order: random.Random) -> Any:
    """The same JSON value with every object's keys in another order."""
    if isinstance(value, list):
        return [shuffled(item, order) for item in value]
    if isinstance(value, dict):
        items = list(value.items())
        order.shuffle(items)
        return {key: shuffled(item, order) for key, item in items}
    return value


def digests(made: BuildRecipe) -> list[str]:
    return [key.digest for key in step_keys(made, compute_capability="9.0")]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipe") / "build.json"


@given(made=recipes, order=st.randoms(use_true_random=False))
def test_neither_a_file_nor_the_order_of_keys_changes_the_key(
    file: Path, made: BuildRecipe, order: random.Random
) -> None:
    made.write(file)
    write_json(file, shuffled(read_json(file), order))
    assert digests(BuildRecipe.read(file)) == digests(made)


@given(recipes, recipes)
@pytest.mark.long
def test_two_recipes_share_a_key_only_if_they_do_the_same(one: BuildRecipe, two: BuildRecipe) -> None:
    def doing(made: BuildRecipe) -> str:
        step = json.loads(json.dumps(asdict(made.steps[0])))
        for command in step["commands"]:
            if isinstance(command[0], str):
                command[0] = PurePosixPath(command[0]).name
        return digest_of(step)

    if digests(one) == digests(two):
        assert doing(one) == doing(two)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


def test_no_folder_name_is_part_of_the_key(tmp_path: Path, model: Path) -> None:
    here = recipe(tmp_path / "engines", model)
    shutil.copytree(model, tmp_path / "far" / "copy")
    there = recipe(Path("/other/engines"), tmp_path / "far" / "copy", about={}, wait_seconds=1.0)
    assert keys_of(here) == keys_of(there)
    assert str(tmp_path) not in json.dumps(keys_of(here)["convert"].document)


def test_a_program_counts_by_its_name(tmp_path: Path, model: Path) -> None:
    def with_python(python: str) -> BuildRecipe:
        made = recipe(tmp_path, model)
        convert = made.steps[0]
        command = (python, *convert.commands[0][1:])
        return replace(made, steps=(replace(convert, commands=(command,)), made.steps[1]))

    assert keys_of(with_python("/opt/a/bin/python3")) == keys_of(with_python("python3"))
    assert keys_of(with_python("/opt/a/bin/pypy")) != keys_of(with_python("python3"))


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


def test_every_change_gives_another_key(tmp_path: Path, model: Path) -> None:
    made = {keys_of(change(recipe(tmp_path, model)))["build"].digest for change in CHANGES.values()}
    assert len(made) == len(CHANGES)


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


def test_an_unknown_gpu_gives_no_key(tmp_path: Path, model: Path) -> None:
    with pytest.raises(CapabilityUnknown):
        step_keys(recipe(tmp_path, model), compute_capability=None)


@pytest.mark.parametrize(
    "text", [None, "", "[]", '{"format": 1}', '{"format": 99}', '{"format": 1, "steps": [{}]}']
)
def test_a_damaged_recipe_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "build.json").write_text(text)
    with pytest.raises(BuildFailed, match=r"build\.json"):
        BuildRecipe.read(tmp_path / "build.json")
