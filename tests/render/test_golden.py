"""Whole scripts against whole records. ``make golden`` writes the records; this never does."""

from __future__ import annotations

import re

import pytest

from tests.render.cases import CASES, GOLDEN, NODE_CHECKS, OUTCOMES, recorded_outcomes, render_case
from tests.render.golden import assert_reviewed


@pytest.mark.parametrize("name", CASES)
def test_rendered_files_are_the_reviewed_ones(name: str) -> None:
    assert_reviewed(GOLDEN, name, render_case(name))


def test_job_files_lead_to_the_reviewed_command_lines_and_findings() -> None:
    assert_reviewed(GOLDEN, OUTCOMES, recorded_outcomes())


def test_every_record_belongs_to_a_case() -> None:
    assert sorted(folder.name for folder in GOLDEN.iterdir()) == sorted([*CASES, OUTCOMES])


def step_of(text: str, log: str) -> list[str]:
    """The lines of the srun that writes a log, without its program, cores and component of the job."""
    component = r" --het-group=0( --gpus-per-node=\S+)?"
    lines = re.sub(f"{component}| --cpus-per-task=[0-9]+", "", text).splitlines()
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
