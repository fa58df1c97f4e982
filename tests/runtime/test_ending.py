"""What ends a server: the table of rules, and how a rank ends once its server has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.ending import (
    AFTER_LEADER_S,
    FAULT_GRACE_S,
    SIGNAL_GRACE_S,
    STOP_GRACE_S,
    UNREQUESTED,
    End,
    Observed,
    conclude,
    decide,
)
from trtllm_hpc.runtime.heartbeat import Heartbeats
from trtllm_hpc.runtime.records import RankRecord, StopRequest

REQUEST = StopRequest("companion", "it is done (exit code 0)", 1.0)
RUNNING = [RankRecord("serve", rank, 3, "7", f"n{rank}", 1, 1.0) for rank in range(3)]
"""No rank has recorded its end."""


def ended(*ranks: int) -> list[RankRecord]:
    return [
        replace(record, ended_at=2.0, exit_code=0) if record.rank in ranks else record for record in RUNNING
    ]


def seen(rank: int = 0, **observed: Any) -> Observed:
    names = ("silent", "stopped", "given_up", "suspects")
    ranks = Heartbeats(**{name: observed.pop(name, {}) for name in names})
    return Observed("serve", rank, **{"world_size": 3, "records": RUNNING, "ranks": ranks, **observed})


def decided(observed: Observed, current: End | None = None) -> End:
    decision = decide(observed, current)
    assert decision is not None
    return decision


@pytest.mark.parametrize(
    ("observed", "by", "sentence", "grace_s"),
    [
        (seen(signal="SIGTERM"), "SIGTERM", "got SIGTERM", SIGNAL_GRACE_S),
        (seen(request=REQUEST), "companion", "it is done (exit code 0)", STOP_GRACE_S),
        (seen(1, leader_ended=True), "leader", "rank 0 has ended", AFTER_LEADER_S),
    ],
)
def test_an_end_that_nobody_is_to_blame_for(
    observed: Observed, by: str, sentence: str, grace_s: float
) -> None:
    decision = decided(observed)
    assert (decision.stopped_by, decision.reason, decision.grace_s) == (by, sentence, grace_s)
    assert (decision.blames, decision.exit_code) == (None, ExitCode.OK)


def test_the_leader_ends_a_run_whose_supervisor_is_silent() -> None:
    decision = decided(seen(supervisor="the supervisor gives no sign of life"))
    assert (decision.stopped_by, decision.blames, decision.exit_code) == (
        "no supervisor",
        None,
        ExitCode.START,
    )


HANG = "model ensemble has answered nothing for 45 s"
LATE = "600 s (the server does not answer)"


@pytest.mark.parametrize(
    ("observed", "by", "blames", "sentence"),
    [
        (
            seen(2, step_daemon_lost=True),
            "slurmstepd",
            2,
            "rank 2 on n2: its slurmstepd was killed: Slurm can no longer see or end this rank",
        ),
        (
            seen(1, dead_model="preprocessing"),
            "model process",
            1,
            "rank 1 on n1: the Python process of model preprocessing was killed or crashed",
        ),
        (seen(silent={2: "is silent", 1: "is silent"}), "heartbeat", 1, "rank 1 on n1: is silent"),
        (seen(1, silent={0: "is silent"}), "heartbeat", 0, "rank 0 on n0: is silent"),
        (seen(given_up={0: "is stopped, for 45 s"}), "heartbeat", 0, "rank 0 on n0: is stopped, for 45 s"),
        (
            seen(hang=HANG),
            "probe",
            0,
            f"rank 0 on n0: {HANG}, though the server says that it is ready; every rank lives, so the "
            "network between n0 and n1 and n2 may be cut",
        ),
        (
            seen(hang=HANG, suspects={2: "its process x is stopped"}),
            "probe",
            2,
            f"rank 2 on n2: its process x is stopped ({HANG}, though the server says that it is ready)",
        ),
        (
            seen(not_ready=LATE),
            "ready timeout",
            0,
            "the server was not ready within 600 s (the server does not answer)",
        ),
        (
            seen(not_ready=LATE, suspects={1: "its process x is stopped"}),
            "ready timeout",
            1,
            "the server was not ready within 600 s (the server does not answer); "
            "rank 1 on n1: its process x is stopped",
        ),
        (
            seen(not_ready=LATE, records=RUNNING[:2]),
            "ready timeout",
            2,
            "the server was not ready within 600 s (the server does not answer); "
            "rank 2: it was never started",
        ),
    ],
)
def test_a_fault_blames_a_rank_and_ends_the_server_soon(
    observed: Observed, by: str, blames: int, sentence: str
) -> None:
    decision = decided(observed)
    assert (decision.stopped_by, decision.blames, decision.reason) == (by, blames, sentence)
    assert decision.grace_s == FAULT_GRACE_S
    assert decision.exit_code == (ExitCode.READINESS if by == "ready timeout" else ExitCode.START)


@pytest.mark.parametrize(
    "observed",
    [
        seen(),
        seen(silent={1: "is silent"}, records=ended(1)),
        seen(1, dead_model="ensemble", records=ended(0)),
        seen(stopped={1: "its process x is stopped"}, suspects={1: "its process x is stopped"}),
    ],
    ids=["nothing", "silent after its end", "a model after another rank's end", "a debugger"],
)
def test_what_ends_nothing(observed: Observed) -> None:
    assert decide(observed) is None


def test_an_instance_is_named_with_its_number() -> None:
    silent = replace(seen(silent={1: "is silent"}), step="serve.3")
    assert decided(silent).reason == "rank 1 of instance 3 on n1: is silent"


# One after the other --------------------------------------------------------------------

STOPPING = decided(seen(request=REQUEST))
BLAMED = decided(seen(silent={1: "is silent"}))


def test_the_first_rule_of_the_table_decides() -> None:
    everything = seen(signal="SIGTERM", request=REQUEST, silent={1: "is silent"}, hang=HANG)
    assert decided(everything).stopped_by == "SIGTERM"
    assert decided(replace(everything, signal=None)).stopped_by == "companion"
    assert decided(replace(everything, signal=None, request=None)).stopped_by == "heartbeat"


@pytest.mark.parametrize(
    ("observed", "by"),
    [
        (seen(request=REQUEST), "companion"),
        (seen(signal="SIGTERM"), "SIGTERM"),
        (seen(silent={1: "is silent"}), "heartbeat"),
        (seen(stopped={1: "its process x is stopped"}), "heartbeat"),
        (seen(signal="SIGTERM", stopped={1: "its process x is stopped"}), "SIGTERM"),
        (seen(hang=HANG, dead_model="ensemble", step_daemon_lost=True), "companion"),
    ],
)
def test_what_matters_while_the_server_stops(observed: Observed, by: str) -> None:
    """A companion without answers asks for the stop, and does not know which rank hangs."""
    assert decided(observed, STOPPING).stopped_by == by


def test_a_rank_that_hangs_is_found_after_a_signal_too() -> None:
    observed = seen(signal="SIGTERM", stopped={1: "its process x is stopped"})
    signalled = decided(observed, STOPPING)
    decision = decided(observed, signalled)
    assert (decision.stopped_by, decision.blames, decision.grace_s) == ("heartbeat", 1, SIGNAL_GRACE_S)


def test_a_signal_after_a_rank_was_blamed_leaves_the_reason_and_shortens_the_time() -> None:
    """Slurm signals a rank as soon as another one has ended because of the same fault."""
    decision = decided(seen(signal="SIGTERM"), BLAMED)
    assert decision == replace(BLAMED, grace_s=SIGNAL_GRACE_S)
    assert decided(seen(signal="SIGTERM"), decision) == decision


def test_a_worker_outlives_the_leader_for_a_limited_time() -> None:
    decision = decided(seen(1, request=REQUEST, leader_ended=True), STOPPING)
    assert (decision.stopped_by, decision.grace_s) == ("companion", AFTER_LEADER_S)
    silent = seen(1, leader_ended=True, silent={0: "is silent"})
    assert decided(silent, decision).blames is None, "after its end the leader has no heartbeat"


# The end --------------------------------------------------------------------------------

SIGNALLED = decided(seen(signal="SIGTERM"))
SUSPECT = {2: "its process x is stopped"}


@pytest.mark.parametrize(
    ("observed", "decision", "returncode", "end"),
    [
        (seen(request=REQUEST), STOPPING, 1, End("companion", REQUEST.reason)),
        (seen(request=REQUEST), STOPPING, -9, End("companion", REQUEST.reason)),  # it ignored SIGTERM
        (seen(signal="SIGTERM"), SIGNALLED, 0, End("SIGTERM", "got SIGTERM", exit_code=143)),
        (seen(signal="SIGTERM"), None, -15, End("SIGTERM", "got SIGTERM", exit_code=143)),
        (seen(1, signal="SIGTERM", leader_ended=True), None, -9, End(exit_code=137)),  # killed before
        (seen(signal="SIGTERM", records=ended(1)), SIGNALLED, 0, End("SIGTERM", "got SIGTERM")),
        (seen(), BLAMED, -9, End("heartbeat", "rank 1 on n1: is silent", 1, 7)),
        (seen(signal="SIGTERM", records=ended(2)), BLAMED, -9, End("heartbeat", BLAMED.reason, 1, 7)),
        (seen(), None, -9, End(exit_code=137)),
        (seen(), None, 3, End(exit_code=3)),
        (seen(), None, 0, End(None, UNREQUESTED, exit_code=7)),
        (seen(1, leader_ended=True), None, 0, End("leader", "the leader is ending")),
        (seen(1, request=REQUEST), None, 0, End("leader", "the leader is ending")),
        (seen(suspects=SUSPECT), None, 1, End(None, f"rank 2 on n2: {SUSPECT[2]}", 2, 7)),
        (seen(stopped=SUSPECT, records=ended(2)), None, 1, End(exit_code=1)),
        (seen(suspects={0: "its process x is stopped"}), None, -9, End(exit_code=137)),
        (seen(1, suspects={0: "is silent"}), None, 1, End(None, "rank 0 on n0: is silent", 0, 7)),
        (seen(1, suspects={0: "is silent"}, records=ended(2)), None, 1, End(exit_code=1)),
    ],
)
def test_how_a_rank_ends(observed: Observed, decision: End | None, returncode: int, end: End) -> None:
    assert conclude(observed, decision, returncode, is_over=True) == end


def test_a_worker_that_ends_with_0_waits_for_the_cause() -> None:
    """TensorRT-LLM's workers end with 0 when the leader is lost."""
    assert conclude(seen(1), None, 0, is_over=False) is None
    assert conclude(seen(1), None, 0, is_over=True) == End(None, UNREQUESTED, exit_code=7)
