"""Whole scripts against whole records. ``make golden`` writes the records; this never does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given, strategies

from tests.render.cases import CASES, GOLDEN, NODE_CHECKS, OUTCOMES, recorded_outcomes, render_case
from tests.render.golden import assert_reviewed, difference, patched, read_case, write_case


@pytest.mark.parametrize("name", CASES)
def test_rendered_files_are_the_reviewed_ones(name: str) -> None:
    assert_reviewed(GOLDEN, name, render_case(name))


def test_job_files_lead_to_the_reviewed_command_lines_and_findings() -> None:
    assert_reviewed(GOLDEN, OUTCOMES, recorded_outcomes())


def test_every_record_belongs_to_a_case() -> None:
    assert sorted(folder.name for folder in GOLDEN.iterdir()) == sorted([*CASES, OUTCOMES])


@given(*[strategies.lists(strategies.sampled_from(["", "a", "b", " a", "@@", "diff a"])).map("\n".join)] * 2)
@example("a\na\na\n", "a\na\nb\na\n")
def test_a_difference_and_its_base_give_the_whole_text(base: str, text: str) -> None:
    assert patched(base, difference(base, text)) == text


def test_a_derived_case_is_read_as_it_was_written(tmp_path: Path) -> None:
    base = {"kept": "a\n", "changed": "a\nb\n", "folder/gone": "a\n"}
    files = {"kept": "a\n", "changed": "a\nc", "folder/new": "diff a\n"}
    write_case(tmp_path, "base", base, None)
    write_case(tmp_path, "derived", files, ("base", base))
    write_case(tmp_path, "again", base, ("derived", files))
    assert [read_case(tmp_path, name) for name in ("base", "derived", "again")] == [base, files, base]


def test_a_changed_base_fails_the_cases_derived_from_it(tmp_path: Path) -> None:
    write_case(tmp_path, "base", {"file": "a\nb\n"}, None)
    write_case(tmp_path, "derived", {"file": "a\nc\n"}, ("base", {"file": "a\nb\n"}))
    write_case(tmp_path, "base", {"file": "a\nd\n"}, None)
    with pytest.raises(AssertionError, match=r"from-base.diff: file no longer fits; run 'make golden'"):
        read_case(tmp_path, "derived")


def test_every_mode_of_serving_and_every_kind_of_cluster_has_a_record() -> None:
    modes, runtimes = set(), set()
    for job, cluster in CASES.values():
        serve = job.get("serve", {})
        modes.add("instances" if serve.get("instances", 1) > 1 else serve.get("mode", "leader"))
        runtimes.add(cluster.get("container", {}).get("runtime", "none"))
    assert modes == {"leader", "instances", "orchestrator", "disaggregated"}
    assert runtimes == {"none", "pyxis", "apptainer"}


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
