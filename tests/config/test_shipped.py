"""The jobs and profiles that come with the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.config.files import Folder
from tests.tensorrt_llm.releases.serve_words import refused_words
from trtllm_hpc.backends import backend_of
from trtllm_hpc.config.dump import cluster_yaml, job_yaml
from trtllm_hpc.config.files import jobs, profiles, read_job
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import make_plan
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.runs.job_files import shipped_jobs
from trtllm_hpc.runtime.server_spec import expand
from trtllm_hpc.tensorrt_llm.releases.release import find_release, nearest_release
from trtllm_hpc.validation.load import load

PROFILES = (
    *("apptainer", "bare", "container-engine", "local", "podman-hpc", "pyxis"),
    *("sandbox", "shifter", "singularity"),
)


def test_they_are_found(files: Folder) -> None:
    assert sorted(profiles()) == sorted(PROFILES)
    assert {"tiny-llama", "tiny-llama-1rank"} <= set(jobs())


@pytest.mark.parametrize("cluster", PROFILES)
def test_every_job_loads_with_every_profile_and_comes_back_from_a_run_folder(
    files: Folder, cluster: str
) -> None:
    for name, path in jobs().items():
        facts = load(path, cluster)
        assert (facts.job.name, facts.cluster.name) == (name, cluster)
        again = files.load(job_yaml(facts.job), cluster_yaml(facts.cluster))
        assert (again.job, again.cluster) == (facts.job, facts.cluster)


@pytest.mark.parametrize("name", sorted(jobs()))
def test_every_job_renders_on_every_profile_of_its_kind(name: str, tmp_path: Path) -> None:
    for cluster in PROFILES:
        facts = load(jobs()[name], cluster)
        uses_tensorrt_llm = backend_of(facts.job).release_use != "none"
        if uses_tensorrt_llm and cluster in ("local", "sandbox"):
            continue  # the kind without NVIDIA's container and without GPUs
        plan = make_plan(facts, RunPaths(tmp_path / "runs" / name), "/usr/bin/python3")
        scripts = render_scripts(plan)
        if uses_tensorrt_llm and cluster == "pyxis":
            stated, image = facts.job.engine.tensorrt_llm_version, facts.job.serve.image
            release = nearest_release(stated) if image else find_release(None, stated)
            if plan.server.spec.driver == "openai":
                words = expand(plan.server.spec.leader, {"address": "0.0.0.0", "port": 8000})
                assert not refused_words(release, words)
            image = image or f"tritonserver:{release.tags[-1]}-trtllm-python-py3"
            assert image in scripts["serve.sbatch"]


def test_every_recipe_says_its_gpus_and_where_its_settings_are_from() -> None:
    recipes = {job.name: job for job in shipped_jobs() if job.backend == "pytorch"}
    assert {"llama-3.3-70b-fp8", "qwen3-8b", "gpt-oss-20b", "deepseek-r1-two-nodes"} <= set(recipes)
    assert {gpu for job in recipes.values() for gpu in re.findall(r"[A-Z]+\d+", job.gpu_types or "")} == {
        *("H100", "H200", "B200", "B300", "GB200", "GB300")
    }
    for name, job in recipes.items():
        text = jobs()[name].read_text()
        assert (
            re.search(r"NVIDIA/TensorRT-LLM@([0-9a-f]{8}|1\.3\.0rc3),", text) and "huggingface.co/" in text
        ), name
        image = read_job(jobs()[name]).serve.image or "release:1.2.1"
        assert job.gpu_types and image.endswith(f"release:{job.release}"), name


def test_a_shipped_job_goes_by_its_name_also_where_that_has_dots() -> None:
    assert load(Path("llama-3.1-8b-fp8"), "pyxis").job.name == "llama-3.1-8b-fp8"


@pytest.mark.parametrize("profile", ["sandbox", "local"])
def test_the_smallest_job_file_is_enough(tmp_path: Path, profile: str) -> None:
    smallest = tmp_path / "smallest.yaml"
    smallest.write_text("name: smallest\n")
    assert load(smallest, profile).job.serve.nodes is None


def test_what_stands_behind_a_hash_in_a_profile_is_valid_too(files: Folder) -> None:
    for path in profiles().values():
        # "key: []" with items behind '#' below it becomes "key:" with these items.
        text = re.sub(r"(?m)^( *)(\w+:) \[\].*\n(?=\1# - )", r"\1\2\n", path.read_text())
        text = re.sub(r"(?m)^( *)# (- |[a-z_]+: )", r"\1\2", text)
        files.job_file.write_text("name: a\nengine: {tensor_parallel: 2}\n")
        files.cluster_file.write_text(text)
        assert load(files.job_file, str(files.cluster_file)).cluster.name == path.stem
