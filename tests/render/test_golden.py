"""Whole scripts against whole records. ``make golden`` writes the records; this never does."""

from __future__ import annotations

import pytest

from tests.render.cases import CASES, GOLDEN, OUTCOMES, recorded_outcomes, render_case
from tests.render.golden import assert_reviewed


@pytest.mark.parametrize("name", CASES)
def test_rendered_files_are_the_reviewed_ones(name: str) -> None:
    assert_reviewed(GOLDEN, name, render_case(name))


def test_job_files_lead_to_the_reviewed_command_lines_and_findings() -> None:
    assert_reviewed(GOLDEN, OUTCOMES, recorded_outcomes())


def test_every_record_belongs_to_a_case() -> None:
    assert sorted(folder.name for folder in GOLDEN.iterdir()) == sorted([*CASES, OUTCOMES])
