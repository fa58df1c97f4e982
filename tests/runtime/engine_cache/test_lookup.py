"""The lookup before a submission: found, missed and why, or unknown on this machine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.engine_cache.builds import MakeRun, make_model, with_adapters, with_arguments
from trtllm_hpc.engine_cache import CachedEngine, lookup
from trtllm_hpc.runtime.engine_cache.build_recipe import BuildRecipe


@pytest.fixture
def built(runs: MakeRun) -> BuildRecipe:
    """The recipe of a build that is done."""
    run = runs()
    assert run.build(TRTLLM_HPC_JOB_ID="17")[0] == 0
    return run.recipe


def missed(made: BuildRecipe) -> CachedEngine:
    answer = lookup(made)
    assert answer.state == "missed", answer
    return answer


def test_what_was_built_is_found(built: BuildRecipe) -> None:
    answer = lookup(built)
    assert answer.state == "found" and list(answer.outputs) == ["build"]
    [entry] = answer.entries
    manifest = entry.manifest()
    assert manifest is not None and manifest.job_id == "17" and entry.is_complete()


def test_a_lookup_writes_nothing(built: BuildRecipe, tmp_path: Path) -> None:
    elsewhere = replace(built, engines_folder=str(tmp_path / "other"))
    assert missed(elsewhere).nearest is None and missed(elsewhere).differences == ()
    assert not (tmp_path / "other").exists()


def test_a_miss_names_each_part_that_differs(built: BuildRecipe) -> None:
    wanted = with_arguments(built, "build", "--max_batch_size", "128", "--gather_context_logits")
    convert, build = wanted.steps
    wanted = replace(wanted, steps=(convert, replace(build, identity={"tensorrt_llm": "0.17.0"})))
    answer = missed(replace(wanted, compute_capability="8.0"))
    assert answer.nearest is not None and answer.nearest.startswith("build-")
    assert set(answer.differences) == {
        "--max_batch_size (build): 64 -> 128",
        "TensorRT-LLM: 0.16.0 -> 0.17.0",
        "GPU's compute capability: 9.0 -> 8.0",
        "--gather_context_logits (build): not given -> on",
    }
    assert answer.steps_found == ("convert",)


def test_the_nearest_is_of_the_same_model_first(runs: MakeRun, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", config__json="{}")
    script = "#!/usr/bin/env bash\nset -eu\nmkdir $output; echo a > $output/a\n"
    far, near = runs(model_path=str(other), script=script), runs(script=script)
    assert far.build()[0] == near.build()[0] == 0
    options = ("--max_batch_size", "1", "--max_beam_width", "2", "--max_num_tokens", "3")
    answer = missed(with_arguments(near.recipe, "build", *options))
    assert answer.nearest == near.entry().name and len(answer.differences) == 3
    third = make_model(tmp_path / "third", config__json="[]")
    assert missed(replace(near.recipe, model_path=str(third))).differences == (
        "model: another, or other files",
    )


def test_an_engine_without_the_further_outputs_is_a_miss(runs: MakeRun) -> None:
    plain = runs()
    assert plain.build()[0] == 0
    steps = with_adapters(plain.recipe).steps
    assert missed(replace(plain.recipe, steps=steps)).steps_found == ("convert", "build")
    assert runs(steps=steps).build()[0] == 0
    assert list(lookup(replace(plain.recipe, steps=steps)).outputs) == ["lora", "build"]


def test_a_broken_engine_is_a_miss(built: BuildRecipe) -> None:
    output = Path(lookup(built).outputs["build"])
    (output / "rank0.engine").unlink()
    assert missed(built).broken == ("rank0.engine is missing",)
    shutil.rmtree(output)
    assert missed(built).broken == ()


def test_a_damaged_entry_beside_it_does_not_matter(built: BuildRecipe) -> None:
    folder = Path(built.engines_folder)
    (folder / "build-0000").mkdir()
    (folder / "build-0001").mkdir()
    (folder / "build-0001" / "key.json").write_text("[]")
    (folder / "a file").write_text("")
    assert lookup(built).state == "found"
    assert missed(replace(built, compute_capability="8.0")).nearest is not None


def test_what_cannot_be_known_here_is_left_to_the_job(built: BuildRecipe, tmp_path: Path) -> None:
    answer = lookup(replace(built, model_path=str(tmp_path / "only on the nodes")))
    assert answer.state == "unknown" and "only on the nodes is not there" in (answer.reason or "")
    answer = lookup(replace(built, compute_capability=None))
    assert answer.state == "unknown" and "compute_capability" in (answer.reason or "")
