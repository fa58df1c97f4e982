"""What ends a server: the rules in their order, from what one rank observes to what the rank does.

Nothing here reads a file or a clock: :mod:`rank` observes, calls :func:`decide` a few times a second, obeys,
and calls :func:`conclude` once its server has ended. The table for people:
docs/explanation/how-a-run-ends.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.blame import rank_name
from trtllm_hpc.runtime.heartbeat import ALL_WELL, Heartbeats
from trtllm_hpc.runtime.records import RankRecord, StopRequest

SIGNAL_GRACE_S = 4.0
"""From a signal to SIGKILL. Slurm itself kills after KillWait, 30 s unless the site says less."""
STOP_GRACE_S = 45.0
"""From a stop request to SIGKILL: requests in flight may finish first (Triton's exit timeout is 30 s)."""
FAULT_GRACE_S = 5.0
"""From the discovery of a fault to SIGKILL: the server serves nobody any more."""
AFTER_LEADER_S = 20.0
"""How long a worker may outlive the leader."""
NO_SUPERVISOR = "no supervisor"
UNREQUESTED = "the server ended by itself, without a request to stop"
"""This tells an end and no cause: its server's log may."""


@dataclass(frozen=True)
class Observed:
    """What one rank observes at one moment."""

    step: str
    rank: int
    world_size: int = 1
    signal: str | None = None
    """Name of the first signal that this rank got."""
    request: StopRequest | None = None
    leader_ended: bool = False
    """Whether rank 0 has recorded its end; always false for rank 0."""
    step_daemon_lost: bool = False
    """Whether the slurmstepd that started this rank is gone."""
    dead_model: str | None = None
    """A Python model of which a process has died."""
    hang: str | None = None
    """Why the leader's server, which was ready, serves nobody any more."""
    not_ready: str | None = None
    """Once the leader's server has had its time to become ready: the limit, and what is not ready."""
    supervisor: str | None = None
    """Why the leader must give up the supervisor of the run, which would end it."""
    ranks: Heartbeats = ALL_WELL
    """The other ranks and, for the leader, this one; a worker watches rank 0 only."""
    records: Sequence[RankRecord] = ()
    """The records of all ranks; they may be left out while :attr:`is_quiet`."""

    @property
    def is_quiet(self) -> bool:
        """Whether no rule that needs the records can apply."""
        faults = (self.step_daemon_lost, self.dead_model, self.hang, self.not_ready, self.supervisor)
        return not (any(faults) or self.ranks.silent or self.ranks.stopped)

    @property
    def others_ended(self) -> bool:
        """Whether another rank has recorded its end."""
        return any(record.ended_at for record in self.records if record.rank != self.rank)

    def running(self, ranks: Mapping[int, str]) -> dict[int, str]:
        """Return those of the ranks that have not recorded their end: after it no rank has a heartbeat."""
        ended = {record.rank for record in self.records if record.ended_at is not None}
        return {rank: why for rank, why in ranks.items() if rank not in ended}


@dataclass(frozen=True)
class End:
    """Why a rank ends its server, and how the rank itself ends."""

    stopped_by: str | None = None
    """Who or what ends the server; ``None``: the server ended by itself."""
    reason: str | None = None
    blames: int | None = None
    """The rank at fault, if there is a fault."""
    exit_code: int = ExitCode.OK
    """Exit code of the rank's task."""
    grace_s: float = 0.0
    """Seconds from now to SIGKILL."""


def decide(seen: Observed, current: End | None = None) -> End | None:
    """Return the end by the first rule that applies, or ``current``; ``None``: go on serving.

    Once a rank is blamed, the reason stays. A later signal, or the end of the leader, only shortens the time.
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
    """Yield what ends the server while nothing has ended it: the first decides."""
    if seen.signal is not None:
        yield _signalled(seen.signal)
    if seen.request is not None:
        yield End(seen.request.by, seen.request.reason, grace_s=STOP_GRACE_S)
    if seen.leader_ended:
        yield End("leader", "rank 0 has ended", grace_s=AFTER_LEADER_S)
    if seen.step_daemon_lost:  # Slurm would not notice: it has lost this rank, and shows the job as running
        what = "its slurmstepd was killed: Slurm can no longer see or end this rank"
        yield _fault(seen, seen.rank, "slurmstepd", what)
    if seen.supervisor is not None:  # nobody else would end the run: its batch script waits for it
        yield End(NO_SUPERVISOR, seen.supervisor, exit_code=ExitCode.START, grace_s=FAULT_GRACE_S)
    if seen.dead_model is not None and not seen.others_ended:  # Triton would go on saying that it is ready
        what = f"the Python process of model {seen.dead_model} was killed or crashed"
        yield _fault(seen, seen.rank, "model process", what)
    yield from _lost_rank(seen)
    suspects = seen.ranks.suspects
    if seen.hang is not None:
        what = f"{seen.hang}, though the server says that it is ready"
        rank = min(suspects, default=seen.rank)
        if rank in suspects:
            what = f"{suspects[rank]} ({what})"
        elif len(hosts := sorted({it.host for it in seen.records})) > 1 and "answered nothing" in what:
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
    """Yield the same while the server stops and no rank is blamed.

    Who asks a hanging server to stop, such as a companion without answers, need not know why it hangs.
    """
    if seen.signal is not None:
        yield _signalled(seen.signal)
    yield from _lost_rank(seen)
    if seen.rank == 0:
        yield from _lost(seen, seen.ranks.stopped)


def _signalled(signal: str) -> End:
    return End(signal, f"got {signal}", grace_s=SIGNAL_GRACE_S)


def _lost_rank(seen: Observed) -> Iterator[End]:
    """A debugger stops a process for a moment; ranks that load would wait for it to the end of their time."""
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

    The step's exit code must be that of the rank that ended first, so the others exit with 0.

    Args:
        decided: what has ended the server, by :func:`decide`.
        returncode: of the server, negative for a signal.
        is_over: the time to wait for a cause is over.
    """
    # Slurm signals the server as well, which may have ended first.
    if (end := decided or (_signalled(seen.signal) if seen.signal is not None else None)) is not None:
        # The server's own code does not matter: while models load, SIGTERM just kills Triton, and a server
        # that ignores SIGTERM, and had to be killed, was stopped all the same.
        by_signal = end.exit_code == ExitCode.OK and seen.signal is not None and not seen.others_ended
        return replace(end, exit_code=143 if by_signal else end.exit_code, grace_s=0.0)
    suspects = seen.running({**seen.ranks.suspects, **seen.ranks.silent, **seen.ranks.stopped})
    rank = min(suspects, default=seen.rank)
    if rank != seen.rank and not (seen.rank and seen.others_ended):
        # A server that dies by itself knows only which peer it lost.
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
