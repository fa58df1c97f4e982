"""An evaluation beside a real server in a real allocation, from the installed wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.conftest import Person
from tests.slurm.test_backbone import SMALL, one_rank

pytestmark = pytest.mark.slurm


def test_a_failed_gate_is_the_cause(person: Person, engine_alone: Path) -> None:
    evaluate = {"tasks": ["facts"], "protocol": "completions", "few_shot": 1, "limit": 6, "threshold": 0.5}
    companion = {"benchmark": {**SMALL, "requests": 4}, "evaluate": evaluate}
    _, run = person.submit(person.job("judged", **one_rank(engine_alone, companion=companion)), exit_code=18)
    status = person.status(run)
    assert "below the threshold of 50 %" in status["causes"][0]["sentence"]
    assert status["evaluation"]["asked"] == 6 and status["evaluation"]["passed"] is False
    assert "The answers fail the gate" in run.report.read_text()
    logs = "".join(log.read_text() for log in run.logs.glob("companion*"))
    assert "5 of 6 answers\n" in logs and "6 of 6 answers\n" in logs
