"""Whole scripts against whole records. ``make golden`` writes the records; this never does."""

from __future__ import annotations

import difflib
import itertools
import re

import pytest

from tests.render.cases import CASES, GOLDEN, NODE_CHECKS, render_case


@pytest.mark.parametrize("name", CASES)
def test_rendered_files_are_the_reviewed_ones(name: str) -> None:
    rendered = render_case(name)
    folder = GOLDEN / name
    recorded = {
        str(file.relative_to(folder)): file.read_text(encoding="utf-8")
        for file in folder.rglob("*")
        if file.is_file()
    }
    assert sorted(rendered) == sorted(recorded)
    for file, text in rendered.items():
        difference = "".join(
            difflib.unified_diff(
                recorded[file].splitlines(keepends=True),
                text.splitlines(keepends=True),
                "reviewed",
                "rendered",
            )
        )
        assert text == recorded[file], (
            f"{name}/{file} changed; if it should, run 'make golden':\n{difference}"
        )


def test_every_record_belongs_to_a_case() -> None:
    assert sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir()) == sorted(CASES)


def test_every_mode_of_serving_has_a_record_on_every_kind_of_cluster() -> None:
    found = set()
    for job, cluster in CASES.values():
        serve = job.get("serve", {})
        mode = "instances" if serve.get("instances", 1) > 1 else serve.get("mode", "leader")
        if cluster.get("scheduler") != "local":
            found.add((mode, cluster.get("container", {}).get("runtime", "none")))
    modes = ("leader", "instances", "orchestrator", "disaggregated")
    assert found == set(itertools.product(modes, ("none", "pyxis", "apptainer")))


@pytest.mark.parametrize("name", CASES)
def test_rendering_twice_gives_the_same_bytes(name: str) -> None:
    assert render_case(name) == render_case(name)


def step_of(text: str, log: str) -> list[str]:
    """The lines of the srun that writes a log, without the program that it starts and its number of cores."""
    lines = re.sub(" --het-group=0| --cpus-per-task=[0-9]+", "", text).splitlines()
    at = next(number for number, line in enumerate(lines) if f"logs/{log}_%t.out" in line)
    first = max(number for number in range(at) if lines[number].startswith("srun "))
    last = next(number for number in range(at, len(lines)) if not lines[number].endswith("\\"))
    return lines[first:last]


@pytest.mark.parametrize("name", NODE_CHECKS)
def test_the_checks_on_nodes_are_in_the_runs_own_steps(name: str) -> None:
    files = render_case(name)
    scripts = {"front": "front.sh", "build": "build.sbatch"}
    checked = [step for step, script in scripts.items() if script in files]
    assert checked
    for step in checked:
        assert step_of(files["doctor.sbatch"], step) == step_of(files[scripts[step]], step)
