"""The page about faults is made of what was seen, and tells what is not as expected."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import main
from benchmarks.faults.fault import FAULTS
from benchmarks.faults.page import page
from benchmarks.faults.results import Result, Results
from benchmarks.faults.scene import INJECTIONS

GOOD = Result(
    name="kill-server",
    title="`kill -9` of the server",
    survives=False,
    expected=r"rank 0 on .* died first",
    expected_exits=[7],
    bound_s=15,
    sentence="stage serve has failed; rank 0 on n1 died first",
    cause="",
    seconds=3.2,
    exit_code=7,
    left=[],
    notes=[],
    measured_at="2026-11-23",
)


def test_the_rows_of_the_catalogue_name_injections_with_words_that_they_take() -> None:
    wrong = []
    for fault in FAULTS.values():
        for command in (*fault.inject, *fault.prepare):
            name, *words = shlex.split(command)
            try:
                inspect.signature(INJECTIONS[name]).bind("a scene", *words)
            except (KeyError, TypeError) as error:
                wrong.append(f"{fault.name}: {error}")
    assert wrong == []


@pytest.mark.parametrize(
    ("seen", "cell"),
    [
        ({"sentence": "stage serve has failed"}, "| **no** |"),
        ({"seconds": 16.0}, "| **16** |"),
        ({"seconds": None}, "| **never** |"),
        ({"exit_code": 9}, "| **9** |"),
        ({"exit_code": None}, "| **none** |"),
        ({"left": ["job 7"]}, "| **1** |"),
    ],
)
def test_what_is_not_as_expected_stands_out(seen: dict[str, object], cell: str) -> None:
    assert GOOD.as_expected and cell not in page([GOOD])
    bad = replace(GOOD, **seen)  # type: ignore[arg-type]
    assert not bad.as_expected and cell in page([GOOD, bad])
    assert "Of 2 faults" in page([GOOD, bad]) and "with 1 everything is as expected" in page([GOOD, bad])


def test_the_page_quotes_what_names_the_fault() -> None:
    assert "| rank 0 on n1 died first |" in page([GOOD])


def test_one_result_replaces_its_own_and_keeps_the_others(tmp_path: Path) -> None:
    results = Results.read(tmp_path / "faults.json")
    names = ("kill-leader-server", "kill-rank1-server")
    for name in names:
        results.add(replace(GOOD, name=name))
    results.add(replace(GOOD, name=names[1], exit_code=9))
    again = Results.read(tmp_path / "faults.json")
    assert [again.found[name].exit_code for name in names] == [7, 9]
    assert main(["--page-only", "--out", str(tmp_path)]) == 1
    assert "| **9** |" in (tmp_path / "faults.md").read_text()
