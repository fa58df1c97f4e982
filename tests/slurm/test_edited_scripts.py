"""Scripts that a person has edited, or submits with other options: what no longer fits is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.conftest import Person
from tests.slurm.test_backbone import two_ranks
from trtllm_hpc.errors import ExitCode

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]

ONE_TASK = "The step has 1 task, but the plan says 2 ranks"


@pytest.mark.parametrize(
    ("script", "options", "sentence"),
    [
        ("serve.sbatch", [], ONE_TASK),
        ("instance.sh", [], ONE_TASK),
        (
            None,
            ["--nodes=1", "--ntasks=1"],
            "The job has fewer nodes (1) than a step of its script takes (2).",
        ),
    ],
)
def test_other_tasks_than_the_plan_has_ranks(
    person: Person, engine: Path, script: str | None, options: list[str], sentence: str
) -> None:
    job = person.job("edited", **two_ranks(engine, companion={"enabled": False}))
    _, run = person.render(job)
    if script is not None:
        file = run.folder / "scripts" / script
        text = file.read_text().replace("tasks=(--ntasks=2 ", "tasks=(--ntasks=1 ")
        # Slurm itself refuses one task on two nodes that are named.
        file.write_text(text.replace('"$first" 2)" --nodes=2 "${tasks', '"$first" 1)" --nodes=1 "${tasks'))
    person.slurm("sbatch", *options, run.sbatch("serve"))
    status = person.failed(run, 60)
    assert status["exit_code"] == ExitCode.START
    first = status["causes"][0]
    assert sentence in first["sentence"] and first["next"], status
    person.has_nothing_left()
