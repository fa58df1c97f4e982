"""``docs/reference/builds.md`` is what data and rules say, and a refusal names the release to take."""

from __future__ import annotations

import re

import pytest

from tools.builds_page import METHODS, PAGE, head, refusal, renders, section
from trtllm_hpc.tensorrt_llm.releases.families import families
from trtllm_hpc.tensorrt_llm.releases.release import releases

SERVED = list(families())
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_family_once_and_what_is_said_of_all() -> None:
    assert TEXT.startswith(head())
    assert re.findall("^## ([a-z0-9_]+)$", TEXT, re.MULTILINE) == SERVED


@pytest.mark.parametrize("family", SERVED)
def test_its_tables_are_up_to_date(family: str) -> None:
    assert section(family) in TEXT, "if they should differ, run 'make golden'"


@pytest.mark.parametrize("family", SERVED)
def test_a_refusal_names_the_first_release_that_builds_the_engine(family: str) -> None:
    """Judged at the oldest release, and at the last before one that builds it."""
    known = releases()
    for method in METHODS:
        there = [renders(release, family, method) for release in known]
        for place, release in enumerate(known[:-1]):
            if there[place] or not (place == 0 or there[place + 1]):
                continue
            first = next((later.version for later, able in zip(known, there, strict=True) if able), None)
            if first is not None and place < there.index(True):
                assert re.search(rf"{re.escape(first)}(?![.\d])", refusal(release, family, method)), method
