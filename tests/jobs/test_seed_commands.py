"""The shipped job files render the commands of upstream's guides, argument for argument."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from tests.jobs.seeds import GUIDES, LORA, LORA_CONVERT, LORA_IN_0_8, Guide
from tests.plan.made_steps import found, made_plan, notes, options, planned, text
from tests.upstream.programs import _parser
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.files import jobs, read_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.render.scripts import render_scripts
from trtllm_hpc.runs.job_files import shipped_jobs
from trtllm_hpc.runtime.engine_cache.build_recipe import Argument, BuildStep, FolderArgument
from trtllm_hpc.tensorrt_llm.releases.release import find_release
from trtllm_hpc.validation.load import load

FOLDERS = ("--model_dir", "--output_dir", "--checkpoint_dir")
PROFILE = {
    "name": "site",
    "gpus_per_node": 8,
    "container": {"runtime": "pyxis", "image": "image.sqsh"},
}


def loaded(tmp_path: Path, name: str) -> tuple[JobFile, ClusterProfile]:
    profile = tmp_path / "site.yaml"
    profile.write_text(yaml.safe_dump(PROFILE), encoding="utf-8")
    resolved = load(jobs()[name], str(profile))
    return resolved.job, resolved.cluster


def steps_of(tmp_path: Path, name: str) -> tuple[BuildStep, ...]:
    made, cluster = loaded(tmp_path, name)
    return planned(made, cluster)


def command(steps: tuple[BuildStep, ...], program: str) -> tuple[Argument, ...]:
    """The one command of that program."""
    commands = [words for step in steps for words in step.commands]
    [wanted] = [words for words in commands if any(_is(word, program) for word in words[:2])]
    return wanted


def _is(word: Argument, program: str) -> bool:
    return isinstance(word, str) and word.rpartition("/")[2] == program


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: f"{guide.job}-{guide.program}")
def test_a_guide_s_command(tmp_path: Path, guide: Guide) -> None:
    words = command(steps_of(tmp_path, guide.job), guide.program)
    plan = options(words)
    seed = options(shlex.split(guide.words))
    for name in FOLDERS:
        if name in seed:
            assert isinstance(words[words.index(name) + 1], FolderArgument), (
                f"{name} is not the toolkit's choice"
            )
            del seed[name], plan[name]
    for name in guide.left_out:
        del seed[name]
    for said in guide.instead.values():
        seed |= options(shlex.split(said))
    if guide.node:
        assert plan.pop("--gpus_per_node") in {("4",), ("2",), ("8",)}
    assert set(plan) - set(seed) == set(guide.added)
    assert {name: plan[name] for name in seed} == seed


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: f"{guide.job}-{guide.program}")
def test_what_a_plan_adds_is_the_release_s_own_default(tmp_path: Path, guide: Guide) -> None:
    made, _ = loaded(tmp_path, guide.job)
    release = find_release(None, made.engine.tensorrt_llm_version)
    known = release.program(guide.program, made.model.family or "llama")
    assert known is not None
    plan = options(command(steps_of(tmp_path, guide.job), guide.program))
    for name in guide.added:
        default = known.options[name].default
        assert plan[name] == (str(default),), name


@pytest.mark.parametrize("guide", [guide for guide in GUIDES if guide.left_out], ids=lambda guide: guide.job)
def test_what_a_release_refuses_of_a_guide(guide: Guide) -> None:
    """The guide's own word, written as a raw option, is a finding or a note that says why."""
    made = read_job(jobs()[guide.job]).model_dump()
    seed = options(shlex.split(guide.words))
    for name in guide.left_out:
        raw = [name, *seed[name]]
        engine = {**made["engine"], "options": {"build": raw}}
        with_raw = JobFile.model_validate({**made, "engine": engine})
        problems = [problem for problem in found(with_raw) if problem.field.startswith("engine.options")]
        if name == "--kv_cache_type":
            assert "0.11.0 has no option '--kv_cache_type'" in problems[0].message
        else:
            assert problems == []
            [note] = [note for note in notes(with_raw) if name in note]
            assert "does nothing" in note and "checkpoint" in note


@pytest.mark.parametrize("name", [job.name for job in shipped_jobs() if job.backend == "tensorrtllm"])
def test_argparse_takes_every_command(tmp_path: Path, name: str) -> None:
    """By parsers made of the release's lists, as the stand-ins of the cluster's tests have them."""
    made, cluster = loaded(tmp_path, name)
    release = find_release(None, made.engine.tensorrt_llm_version)
    for step in planned(made, cluster):
        for words in step.commands:
            script = 0 if words[0] == "trtllm-build" else 1
            program = str(words[script]).rpartition("/")[2]
            known = release.program(program, made.model.family or "")
            assert known is not None
            _parser(known).parse_args([text(word) for word in words[script + 1 :]])


def test_the_guide_s_lora_options_in_the_words_of_0_8(tmp_path: Path) -> None:
    steps = {step.name: step for step in steps_of(tmp_path, "ifb-llama-7b-lora")}
    assert list(steps) == ["lora", "convert", "build"]
    told = {name: options(steps[name].commands[0]) for name in ("convert", "build")}
    seed = options(shlex.split(LORA))
    # In-flight batching needs no switch from 0.8 on, and the world's size is tp * pp.
    assert set(seed) - set(LORA_IN_0_8) - set(FOLDERS) == {"--use_inflight_batching", "--world_size"}
    for step, said in LORA_IN_0_8.values():
        for name, values in options(shlex.split(said)).items():
            assert told[step][name] == values


def test_adapters_are_converted_as_in_the_guide(tmp_path: Path) -> None:
    step = steps_of(tmp_path, "ifb-llama-7b-lora")[0]
    for words, said in zip(sorted(map(options, step.commands), key=str), sorted(LORA_CONVERT), strict=True):
        seed = options(shlex.split(said))
        name = seed["-i"][0]
        assert words["-i"] == (f"/models/{name}",) and words["-o"] == (f"<output/{name}>",)
        assert words["--storage-type"] == seed["--storage-type"]


def companion_words(tmp_path: Path, job: str) -> list[str]:
    """Words of the companion's script for a job file."""
    file = tmp_path / "job.yaml"
    file.write_text(job, encoding="utf-8")
    plan = made_plan(read_job(file), ClusterProfile.model_validate(PROFILE))
    return shlex.split(render_scripts(plan)["companion.sh"], comments=True)


def test_the_companion_asks_for_the_logits_that_the_engine_gathers(tmp_path: Path) -> None:
    words = companion_words(tmp_path, "extends: readme-gpt2-logits")
    assert {"--context-logits", "--generation-logits"} < set(words)
    [saved] = [word for word in words if word.startswith("--save-logits=")]
    assert saved.endswith("/results/logits.npz")
    build = options(command(steps_of(tmp_path, "readme-gpt2-logits"), "trtllm-build"))
    assert {"--gather_context_logits", "--gather_generation_logits"} < set(build)


def test_the_companion_sends_an_adapter_that_the_build_converts(tmp_path: Path) -> None:
    asked = "companion: {request: {lora: {adapter: luotuo-lora-7b-0.1}}}"
    words = companion_words(tmp_path, f"extends: ifb-llama-7b-lora\n{asked}")
    [folder] = [word for word in words if word.startswith("--lora-dir=")]
    assert folder.endswith("/lora/luotuo-lora-7b-0.1") and "--lora-task-id=1" in words
