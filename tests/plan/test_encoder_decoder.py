"""Encoder-decoder models: two engines from one step; the command lines are in ``outcomes.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.plan.made_steps import cluster, found, job, options, steps
from tests.plan.outcomes import SHORT
from trtllm_hpc.backends import facts_of
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.resolve import make_plan
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.tensorrt_llm.releases.release import Release, releases

T5 = yaml.safe_load(f"{{dtype: float16, {SHORT['T5']}}}")


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.version)
def test_every_option_exists_or_the_release_is_refused(release: Release) -> None:
    made = job(release.version, "t5", engine=T5)
    if found(made):
        assert any(release.version in problem.message for problem in found(made))
        return
    command = release.command("trtllm-build", "t5")
    assert command is not None
    for words in steps(made)[-1].commands:
        for name, values in options(words).items():
            option = command.options[name]
            assert not option.choices or set(values) <= set(option.choices)


@pytest.mark.parametrize("stated", [False, True])
def test_the_server_has_the_folders_of_both_engines(tmp_path: Path, stated: bool) -> None:
    made = job("0.16.0", "t5", engine={**T5, "encoder_decoder": stated})
    profile = cluster(container={"all_models": "/all_models", "examples": "/examples"})
    plan = make_plan(facts_of(made, profile), RunPaths(tmp_path / "one"), "python3")
    assert isinstance(plan.repository, RepositoryRecipe)
    [values] = [model.values for model in plan.repository.models if model.name == "tensorrt_llm"]
    assert values["engine_dir"] == f"{tmp_path}/one/engine/decoder"
    assert values["encoder_engine_dir"] == f"{tmp_path}/one/engine/encoder"
    assert values["cross_kv_cache_fraction"] == 0.5
