"""The rules by which a rank ends its server, in their order.

Pure functions, which read no file and no clock: :mod:`rank` observes, calls :func:`decide` a few times a
second, obeys, and calls :func:`conclude` once its server has ended. docs/explanation/how-a-run-ends.md has
the rules as a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from signal import SIGKILL

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.blame import rank_name
from trtllm_hpc.runtime.heartbeat import ALL_WELL, Heartbeats
from trtllm_hpc.runtime.records import RankRecord, StopRequest

SIGNAL_GRACE_S = 4.0
"""Seconds from a signal to SIGKILL. Slurm itself kills after KillWait, 30 s unless the site shortens it."""
STOP_GRACE_S = 45.0
"""Seconds from a stop request to SIGKILL: requests in flight may finish (Triton's exit timeout is 30 s)."""
FAULT_GRACE_S = 5.0
"""Seconds from the discovery of a fault to SIGKILL: the server no longer answers requests anyway."""
AFTER_LEADER_S = 20.0
"""Seconds that a worker may outlive the leader."""
NO_SUPERVISOR = "no supervisor"
UNREQUESTED = "the server ended by itself, without a request to stop"
"""A reason that names an end without a cause; the server's log may show the cause."""


@dataclass(frozen=True)
class Observed:
    """One rank's observations at one moment."""

    step: str
    rank: int
    world_size: int = 1
    signal: str | None = None
    """Name of the first signal that this rank received."""
    request: StopRequest | None = None
    """The run's stop request."""
    leader_ended: bool = False
    """Whether rank 0 has recorded its end; always false on rank 0."""
    step_daemon_lost: bool = False
    """Whether the slurmstepd that started this rank is gone."""
    dead_model: str | None = None
    """Name of a Python model with a dead process."""
    hang: str | None = None
    """On rank 0: why the ready server no longer answers requests."""
    not_ready: str | None = None
    """On rank 0, after the ready timeout: the limit, and what is not ready."""
    supervisor: str | None = None
    """On rank 0: why the run's supervisor, which would normally end the run, counts as lost."""
    ranks: Heartbeats = ALL_WELL
    """Heartbeats of the watched ranks: rank 0 watches all ranks, itself included, a worker only rank 0."""
    records: Sequence[RankRecord] = ()
    """The records of all ranks; they may be omitted while :attr:`is_quiet`."""

    @property
    def is_quiet(self) -> bool:
        """Whether no rule that needs :attr:`records` can apply."""
        faults = (self.step_daemon_lost, self.dead_model, self.hang, self.not_ready, self.supervisor)
        return not (any(faults) or self.ranks.silent or self.ranks.stopped)

    @property
    def others_ended(self) -> bool:
        """Whether another rank has recorded its end."""
        return any(record.ended_at for record in self.records if record.rank != self.rank)

    def running(self, ranks: Mapping[int, str]) -> dict[int, str]:
        """Return the ``ranks`` that have not recorded their end: an ended rank has no heartbeat either."""
        ended = {record.rank for record in self.records if record.ended_at is not None}
        return {rank: why for rank, why in ranks.items() if rank not in ended}


@dataclass(frozen=True)
class End:
    """Why a rank ends its server, and the exit code of the rank's own task."""

    stopped_by: str | None = None
    """Who or what ends the server; ``None``: the server ended by itself."""
    reason: str | None = None
    """One sentence without a full stop."""
    blames: int | None = None
    """The rank at fault; ``None`` without a fault."""
    exit_code: int = ExitCode.OK
    """Exit code of the rank's task."""
    grace_s: float = 0.0
    """Seconds from now to SIGKILL."""


def decide(seen: Observed, current: End | None = None) -> End | None:
    """Return the end by the first rule that applies, or ``current``; ``None``: go on serving.

    Once a rank is blamed, the reason stays. A later signal, or the end of the leader, only shortens the
    time until SIGKILL.
    """
    if current is None:
        end = next(while_serving(seen), None)
    else:
        ends = while_stopping(seen) if current.blames is None else iter(())
        end = next((new for new in ends if new != current), current)
    if end is None:
        return None
    limits = [end.grace_s]
    if seen.signal is not None:
        limits.append(SIGNAL_GRACE_S)
    if seen.leader_ended:
        limits.append(AFTER_LEADER_S)
    return replace(end, grace_s=min(limits))


def while_serving(seen: Observed) -> Iterator[End]:
    """Yield the reasons to end a serving server, the most important first."""
    if seen.signal is not None:
        yield _signalled(seen.signal)
    if seen.request is not None:
        yield End(seen.request.by, seen.request.reason, grace_s=STOP_GRACE_S)
    if seen.leader_ended:
        yield End("leader", "rank 0 has ended", grace_s=AFTER_LEADER_S)
    if seen.step_daemon_lost:  # Slurm has lost sight of this rank, and would show the job as running for ever
        what = "its slurmstepd was killed: Slurm can no longer see or end this rank"
        yield _fault(seen, seen.rank, "slurmstepd", what)
    if (
        seen.supervisor is not None
    ):  # nothing else would end the run: the batch script waits for the supervisor
        yield End(NO_SUPERVISOR, seen.supervisor, exit_code=ExitCode.START, grace_s=FAULT_GRACE_S)
    if seen.dead_model is not None and not seen.others_ended:  # Triton itself would stay "ready"
        what = f"the Python process of model {seen.dead_model} was killed or crashed"
        yield _fault(seen, seen.rank, "model process", what)
    yield from _lost_rank(seen)
    suspects = seen.ranks.suspects
    if seen.hang is not None:
        what = f"{seen.hang}, though the server says that it is ready"
        rank = min(suspects, default=seen.rank)
        if rank in suspects:
            what = f"{suspects[rank]} ({what})"
        elif (
            len(hosts := sorted({record.host for record in seen.records})) > 1 and "answered nothing" in what
        ):
            what += f"; every rank lives, so the network between {' and '.join(hosts[:4])} may be cut"
        yield _fault(seen, rank, "probe", what)
    if seen.not_ready is not None:
        sentence = f"the server was not ready within {seen.not_ready}"
        begun = {record.rank for record in seen.records}
        missing = {rank: "it was never started" for rank in range(seen.world_size) if rank not in begun}
        suspects = suspects or missing
        rank = min(suspects, default=seen.rank)
        if suspects:
            sentence += f"; {rank_name(seen.records, seen.step, rank)}: {suspects[rank]}"
        yield End("ready timeout", sentence, rank, ExitCode.READINESS, FAULT_GRACE_S)


def while_stopping(seen: Observed) -> Iterator[End]:
    """Yield the reasons to end a server that is already stopping, while no rank is blamed.

    A stop may have been requested because of a hang, e.g. by a companion that gets no answers and cannot know
    which rank causes it.
    """
    if seen.signal is not None:
        yield _signalled(seen.signal)
    yield from _lost_rank(seen)
    if seen.rank == 0:
        yield from _lost(seen, seen.ranks.stopped)


def _signalled(signal: str) -> End:
    return End(signal, f"got {signal}", grace_s=SIGNAL_GRACE_S)


def _lost_rank(seen: Observed) -> Iterator[End]:
    """Yield a silent rank or, on rank 0, a rank with a process that has been stopped for the whole limit.

    A shorter stop can be a debugger's. Without the limit, loading ranks would wait for it until they time
    out.
    """
    if not seen.leader_ended:
        yield from _lost(seen, seen.ranks.silent)
        if seen.rank == 0:
            yield from _lost(seen, seen.ranks.given_up)


def _lost(seen: Observed, ranks: Mapping[int, str]) -> Iterator[End]:
    if lost := seen.running(ranks):
        yield _fault(seen, min(lost), "heartbeat", lost[min(lost)])


def _fault(seen: Observed, rank: int, by: str, what: str) -> End:
    return End(by, f"{rank_name(seen.records, seen.step, rank)}: {what}", rank, ExitCode.START, FAULT_GRACE_S)


def conclude(seen: Observed, decided: End | None, returncode: int, *, is_over: bool) -> End | None:
    """Return how this rank ends after its server has ended; ``None``: wait, and observe again.

    srun reports one exit code for the step. It must be that of the rank that ended first, so ranks that are
    stopped exit with 0.

    Args:
        decided: the end that :func:`decide` chose; ``None``: the server ended by itself.
        returncode: the server's exit code, negative for a signal.
        is_over: whether the time to wait for a cause is over.
    """
    end = decided
    # Slurm signals the server as well, so the server may have ended before this rank decided anything. Slurm
    # does not send SIGKILL so early: a server that SIGKILL ended was killed before the signal came.
    if end is None and seen.signal is not None and returncode != -SIGKILL:
        end = _signalled(seen.signal)
    if end is not None:
        # The server's own exit code does not matter: while models load, SIGTERM kills Triton, and a server
        # that ignored SIGTERM and had to be killed was stopped as requested, too.
        by_signal = end.exit_code == ExitCode.OK and seen.signal is not None and not seen.others_ended
        return replace(end, exit_code=143 if by_signal else end.exit_code, grace_s=0.0)
    suspects = seen.running({**seen.ranks.suspects, **seen.ranks.silent, **seen.ranks.stopped})
    rank = min(suspects, default=seen.rank)
    if rank != seen.rank and not (seen.rank and seen.others_ended):
        # The server knows only that it lost a peer; the heartbeats show which rank is at fault.
        return End(
            None, f"{rank_name(seen.records, seen.step, rank)}: {suspects[rank]}", rank, ExitCode.START
        )
    if returncode != 0:
        return End(exit_code=128 - returncode if returncode < 0 else returncode)
    # TensorRT-LLM's workers exit with 0 whatever happened (they call ``exit(0)`` once the leader is gone,
    # ``model_instance_state.cc``), so 0 proves nothing.
    if seen.rank != 0:
        if seen.request is not None or seen.leader_ended:
            return End("leader", "the leader is ending")
        if not is_over:
            return None
    return End(None, UNREQUESTED, exit_code=ExitCode.START)
