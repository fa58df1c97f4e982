from __future__ import annotations

import pytest

from trtllm_hpc.scheduler.states import INTERRUPTED, LOST, STATES, parse_state

# squeue(1) and sacct(1), "JOB STATE CODES", Slurm 22.05 to 24.05.
DOCUMENTED = [
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "CONFIGURING", "COMPLETING", "DEADLINE", "FAILED",
    "NODE_FAIL", "OUT_OF_MEMORY", "PENDING", "PREEMPTED", "RESV_DEL_HOLD", "REQUEUE_FED",
    "REQUEUE_HOLD", "REQUEUED", "RESIZING", "REVOKED", "RUNNING", "SIGNALING", "SPECIAL_EXIT",
    "STAGE_OUT", "STOPPED", "SUSPENDED", "TIMEOUT",
]  # fmt: skip


def test_every_documented_state_is_known() -> None:
    assert set(STATES) == set(DOCUMENTED)


@pytest.mark.parametrize("name", [*DOCUMENTED, "LOST", "INTERRUPTED"])
def test_every_state_has_a_sentence_and_only_completed_is_ok(name: str) -> None:
    state = {**STATES, "LOST": LOST, "INTERRUPTED": INTERRUPTED}[name]
    assert state.name == name
    assert state.sentence and state.sentence[0].islower() and not state.sentence.endswith(".")
    assert state.ok == (name == "COMPLETED")
    assert state.final or not state.ok


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


@pytest.mark.parametrize(("user", "words"), [(1000, "was cancelled by root: by Slurm"), (0, "was cancelled")])
def test_a_job_that_root_has_cancelled_is_somebody_elses_doing(
    monkeypatch: pytest.MonkeyPatch, user: int, words: str
) -> None:
    monkeypatch.setattr("os.getuid", lambda: user)
    state = parse_state("CANCELLED by 0")
    assert (state.name, state.final) == ("CANCELLED", True) and state.sentence.startswith(words)


@pytest.mark.parametrize(("text", "name"), [("TELEPORTING", "TELEPORTING"), ("", "UNKNOWN"), ("?", "?")])
def test_an_unknown_state_is_reported_and_not_final(text: str, name: str) -> None:
    state = parse_state(text)
    assert (state.name, state.final, state.ok) == (name, False, False)
    assert "unknown" in state.sentence and repr(text) in state.sentence
