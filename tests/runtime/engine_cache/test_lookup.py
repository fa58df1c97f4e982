"""The lookup before a submission: found, missed and why, or unknown on this machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.engine_cache.builds import MakeRun, make_model, with_adapters, with_arguments
from trtllm_hpc.engine_cache.lookup import Hit, Miss, Unknown, lookup
from trtllm_hpc.runtime.engine_cache.recipe import Recipe


@pytest.fixture
def built(runs: MakeRun) -> Recipe:
    """The recipe of a build that is done."""
    run = runs()
    assert run.build(TRTLLM_HPC_JOB_ID="17")[0] == 0
    return run.recipe


def missed(made: Recipe) -> Miss:
    answer = lookup(made)
    assert isinstance(answer, Miss), answer
    return answer


def test_what_was_built_is_found(built: Recipe) -> None:
    answer = lookup(built)
    assert isinstance(answer, Hit)
    assert answer.manifest.job_id == "17" and answer.entry.is_complete()


def test_a_lookup_writes_nothing(built: Recipe, tmp_path: Path) -> None:
    elsewhere = replace(built, engines_folder=str(tmp_path / "other"))
    assert missed(elsewhere).nearest is None and missed(elsewhere).differences == ()
    assert not (tmp_path / "other").exists()


def test_a_miss_names_each_part_that_differs(built: Recipe) -> None:
    wanted = with_arguments(built, "build", "--max_batch_size", "128", "--gather_context_logits")
    wanted = replace(wanted, compute_capability="8.0")
    answer = missed(wanted)
    assert answer.nearest is not None and answer.nearest.name.startswith("build-")
    assert answer.differences == (
        "model: the same",
        "--max_batch_size (build): 64 -> 128",
        "--gather_context_logits (build): not given -> on",
        "GPU's compute capability: 9.0 -> 8.0",
    )
    assert answer.found == ("convert",)


def test_an_option_left_out_and_another_version_are_named(built: Recipe) -> None:
    convert, build = built.steps
    arguments = tuple(it for it in build.commands[0] if it not in ("--max_batch_size", "64"))
    newer = replace(build, commands=(arguments,), identity={"tensorrt_llm": "0.17.0"})
    answer = missed(replace(built, steps=(replace(convert, identity=newer.identity), newer)))
    assert set(answer.differences) == {
        "model: the same",
        "--max_batch_size (build): 64 -> not given",
        "TensorRT-LLM: 0.16.0 -> 0.17.0",
    }


def test_another_model_names_the_files(built: Recipe, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", config__json='{"layers": 2}', tokenizer__json="{}")
    answer = missed(replace(built, model_path=str(other)))
    assert answer.differences == ("model: 2 of 3 files differ (config.json, tokenizer.json)",)


def test_the_nearest_is_of_the_same_model_first(runs: MakeRun, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", config__json="{}")
    far = runs(
        model_path=str(other), script="#!/usr/bin/env bash\nset -eu\nmkdir $output; echo a > $output/a\n"
    )
    near = runs(script="#!/usr/bin/env bash\nset -eu\nmkdir $output; echo a > $output/a\n")
    assert far.build()[0] == near.build()[0] == 0
    options = ("--max_batch_size", "1", "--max_beam_width", "2", "--max_num_tokens", "3")
    answer = missed(with_arguments(near.recipe, "build", *options))
    assert answer.nearest is not None and answer.nearest.folder == near.entry().folder
    assert answer.differences[0] == "model: the same" and len(answer.differences) == 4


def test_an_engine_without_the_further_outputs_is_a_miss(runs: MakeRun) -> None:
    plain = runs()
    assert plain.build()[0] == 0
    steps = with_adapters(plain.recipe).steps
    assert missed(replace(plain.recipe, steps=steps)).found == ("convert", "build")
    assert runs(steps=steps).build()[0] == 0
    answer = lookup(replace(plain.recipe, steps=steps))
    assert isinstance(answer, Hit) and list(answer.others) == ["lora"]
    assert answer.others["lora"] in answer.entries


def test_a_broken_engine_is_a_miss(built: Recipe) -> None:
    hit = lookup(built)
    assert isinstance(hit, Hit)
    (hit.entry.output / "rank0.engine").unlink()
    answer = missed(built)
    assert answer.broken == ("rank0.engine is missing",)
    shutil.rmtree(hit.entry.output)
    assert missed(built).broken == ()


def test_a_damaged_entry_beside_it_does_not_matter(built: Recipe) -> None:
    folder = Path(built.engines_folder)
    (folder / "build-0000").mkdir()
    (folder / "build-0001").mkdir()
    (folder / "build-0001" / "key.json").write_text("[]")
    (folder / "a file").write_text("")
    assert isinstance(lookup(built), Hit)
    assert missed(replace(built, compute_capability="8.0")).nearest is not None


def test_what_cannot_be_known_here_is_left_to_the_job(built: Recipe, tmp_path: Path) -> None:
    answer = lookup(replace(built, model_path=str(tmp_path / "only on the nodes")))
    assert isinstance(answer, Unknown) and "only on the nodes is not there" in answer.reason
    answer = lookup(replace(built, compute_capability=None))
    assert isinstance(answer, Unknown) and "compute_capability" in answer.reason
