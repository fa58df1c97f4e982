from __future__ import annotations

import pytest

from trtllm_hpc.scheduler.states import INTERRUPTED, LOST, STATES, JobState, parse_state


@pytest.mark.parametrize("state", [*STATES.values(), LOST, INTERRUPTED], ids=lambda state: state.name)
def test_every_state_has_a_sentence_and_only_completed_is_ok(state: JobState) -> None:
    assert state.sentence and state.sentence[0].islower() and not state.sentence.endswith(".")
    assert state.ok == (state.name == "COMPLETED")
    assert state.final or not state.ok


def test_states_of_unfinished_jobs_are_not_final() -> None:
    final = {name for name, state in STATES.items() if state.final}
    assert final == {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("COMPLETED", "COMPLETED"),
        ("CANCELLED by 1000", "CANCELLED"),
        ("RUNNING+", "RUNNING"),
        ("CANCELLED+", "CANCELLED"),
        ("running", "RUNNING"),
    ],
)
def test_additions_to_a_printed_state_are_ignored(text: str, name: str) -> None:
    assert parse_state(text) is STATES[name]


@pytest.mark.parametrize(("text", "name"), [("TELEPORTING", "TELEPORTING"), ("", "UNKNOWN"), ("?", "?")])
def test_an_unknown_state_is_reported_and_not_final(text: str, name: str) -> None:
    state = parse_state(text)
    assert (state.name, state.final, state.ok) == (name, False, False)
    assert "unknown" in state.sentence and repr(text) in state.sentence
