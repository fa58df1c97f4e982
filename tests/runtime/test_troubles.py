"""What stands still: named after two looks, given up after nine intervals."""

from __future__ import annotations

import pytest

from tests.runtime.conftest import Runtime
from trtllm_hpc.runtime import troubles
from trtllm_hpc.runtime.records import read_events
from trtllm_hpc.runtime.troubles import StillWatch, Troubles

WHY = "the door is stopped"


@pytest.fixture
def noted(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """What was noted so far; nothing is written."""
    found: list[tuple[str, str | None]] = []
    monkeypatch.setattr(
        troubles, "try_event", lambda _run, _stage, _name, part, why: found.append((part, why))
    )
    return found


def test_a_fault_is_noted_at_the_second_look_and_given_up_after_45_s(
    runtime: Runtime, noted: list[tuple[str, str | None]]
) -> None:
    watch = StillWatch(Troubles(runtime.paths, "serve"))
    assert watch.look({"door": WHY, "gateway": None}) == {} and noted == []
    assert watch.look({"door": WHY, "gateway": None}) == {} and noted == [("door", WHY)]
    for _ in range(7):
        assert watch.look({"door": WHY}) == {}
    assert watch.look({"door": WHY}) == {"door": f"{WHY}, for 45 s"}
    assert watch.look({"door": None}) == {} and noted == [("door", WHY), ("door", None)]


def test_a_moment_is_not_noted(runtime: Runtime, noted: list[tuple[str, str | None]]) -> None:
    watch = StillWatch(Troubles(runtime.paths, "serve"), None)
    for _ in range(20):
        watch.look({"door": WHY})
        watch.look({"door": None})
    assert noted == []
    assert all(watch.look({"door": WHY}) == {} for _ in range(40)), "nothing is ever given up"


def test_each_trouble_is_two_events(runtime: Runtime) -> None:
    noted = Troubles(runtime.paths, "serve")
    for why in (None, WHY, f"{WHY} still", None, None):
        noted.note("door", why)
    events = [event.data for event in read_events(runtime.paths, "serve")]
    assert events == [{"part": "door", "why": WHY}, {"part": "door", "why": None}]
