"""What ends a server: the rules in their order, from what one rank observes to what the rank does.

Nothing here reads a file or a clock: :mod:`rank` observes, calls :func:`decide` a few times a second, obeys,
and calls :func:`conclude` once its server has ended. The table for people:
docs/explanation/how-a-run-ends.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trtllm_hpc.errors import ExitCode
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


@dataclass(frozen=True)
class ServerFaults:
    """What the leader has found wrong with the whole server, each in words; ``None``: nothing."""

    hang: str | None = None
    """Why a server that was ready serves nobody any more."""
    not_ready: str | None = None
    """Once the time for it is over: the limit, and what is not ready."""
    supervisor: str | None = None
    """Why the supervisor of the run, which would end it, must be given up."""


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
    faults: ServerFaults = ServerFaults()
    ranks: Heartbeats = ALL_WELL
    """The other ranks and, for the leader, this one; a worker watches rank 0 only."""
    records: Sequence[RankRecord] = ()
    """The records of all ranks; they may be left out while :attr:`is_quiet`."""

    @property
    def is_quiet(self) -> bool:
        """Whether no rule that needs the records can apply."""
        faults = (self.step_daemon_lost, self.dead_model, self.faults != ServerFaults())
        return not (any(faults) or self.ranks.silent or self.ranks.stopped)

    @property
    def others_ended(self) -> bool:
        """Whether another rank has recorded its end."""
        return any(record.ended_at for record in self.records if record.rank != self.rank)

    def running(self, ranks: Mapping[int, str]) -> dict[int, str]:
        """Return those of the ranks that have not recorded their end: after it no rank has a heartbeat."""
        ended = {record.rank for record in self.records if record.ended_at is not None}
        return {rank: why for rank, why in ranks.items() if rank not in ended}

    def name(self, rank: int) -> str:
        """Return how to name a rank, with its host if it has a record."""
        return rank_name(self.records, self.step, rank)


@dataclass(frozen=True)
class Decision:
    """This rank's server is to end."""

    by: str
    """Who or what ends it, as recorded in ``stopped_by``."""
    sentence: str
    grace_s: float
    """From now to SIGKILL."""
    exit_code: ExitCode | None = None
    """The rank's exit code; ``None``: :func:`conclude` derives it from the server's."""
    blames: int | None = None
    """The rank at fault, if there is a fault."""


Rule = Callable[[Observed], Decision | None]


def decide(seen: Observed, current: Decision | None = None) -> Decision | None:
    """Return the decision in force: of the first rule that applies, or ``current``; ``None``: go on serving.

    Once a rank is blamed, the reason stays. A later signal, or the end of the leader, only shortens the time.
    """
    rules = SERVING if current is None else STOPPING if current.blames is None else ()
    made = (rule(seen) for rule in rules)
    decision = next((new for new in made if new not in (None, current)), current)
    if decision is None:
        return None
    limits = [decision.grace_s]
    if seen.signal is not None:
        limits.append(SIGNAL_GRACE_S)
    if seen.leader_ended:
        limits.append(AFTER_LEADER_S)
    return replace(decision, grace_s=min(limits))


def _signal(seen: Observed) -> Decision | None:
    return None if seen.signal is None else Decision(seen.signal, f"got {seen.signal}", SIGNAL_GRACE_S)


def _stop_request(seen: Observed) -> Decision | None:
    request = seen.request
    return None if request is None else Decision(request.by, request.reason, STOP_GRACE_S)


def _leader_ended(seen: Observed) -> Decision | None:
    return Decision("leader", "rank 0 has ended", AFTER_LEADER_S) if seen.leader_ended else None


def _step_daemon(seen: Observed) -> Decision | None:
    """Slurm would not notice: it has lost this rank, and shows the job as running."""
    what = "its slurmstepd was killed: Slurm can no longer see or end this rank"
    return _fault(seen, seen.rank, "slurmstepd", what) if seen.step_daemon_lost else None


def _supervisor(seen: Observed) -> Decision | None:
    """Nobody else would end the run: the batch script waits for its supervisor."""
    why = seen.faults.supervisor
    return None if why is None else Decision(NO_SUPERVISOR, why, FAULT_GRACE_S, ExitCode.START)


def _model_process(seen: Observed) -> Decision | None:
    """Triton would go on saying that it is ready."""
    if seen.dead_model is None or seen.others_ended:
        return None
    what = f"the Python process of model {seen.dead_model} was killed or crashed"
    return _fault(seen, seen.rank, "model process", what)


def _silent_rank(seen: Observed) -> Decision | None:
    return _lost_rank(seen, {} if seen.leader_ended else seen.ranks.silent)


def _stopped_rank(seen: Observed) -> Decision | None:
    """Who asks a hanging server to stop, such as a companion without answers, need not know why it hangs."""
    return _lost_rank(seen, seen.ranks.stopped if seen.rank == 0 else {})


def _given_up_rank(seen: Observed) -> Decision | None:
    """A debugger stops a process for a moment; ranks that load would wait for it to the end of their time."""
    return _lost_rank(seen, seen.ranks.given_up if seen.rank == 0 else {})


def _lost_rank(seen: Observed, ranks: Mapping[int, str]) -> Decision | None:
    lost = seen.running(ranks)
    if not lost:
        return None
    rank = min(lost)
    return _fault(seen, rank, "heartbeat", lost[rank])


def _hang(seen: Observed) -> Decision | None:
    if seen.faults.hang is None:
        return None
    what = f"{seen.faults.hang}, though the server says that it is ready"
    suspects = seen.ranks.suspects
    rank = min(suspects, default=seen.rank)
    if rank in suspects:
        what = f"{suspects[rank]} ({what})"
    elif len(hosts := sorted({record.host for record in seen.records})) > 1 and "answered nothing" in what:
        what += f"; every rank lives, so the network between {' and '.join(hosts[:4])} may be cut"
    return _fault(seen, rank, "probe", what)


def _ready_timeout(seen: Observed) -> Decision | None:
    if seen.faults.not_ready is None:
        return None
    sentence = f"the server was not ready within {seen.faults.not_ready}"
    begun = {record.rank for record in seen.records}
    missing = {rank: "it was never started" for rank in range(seen.world_size) if rank not in begun}
    suspects = seen.ranks.suspects or missing
    rank = min(suspects, default=seen.rank)
    if suspects:
        sentence += f"; {seen.name(rank)}: {suspects[rank]}"
    return Decision("ready timeout", sentence, FAULT_GRACE_S, ExitCode.READINESS, blames=rank)


def _fault(seen: Observed, rank: int, by: str, what: str) -> Decision:
    sentence = f"{seen.name(rank)}: {what}"
    return Decision(by, sentence, FAULT_GRACE_S, ExitCode.START, blames=rank)


SERVING: tuple[Rule, ...] = (
    _signal,
    _stop_request,
    _leader_ended,
    _step_daemon,
    _supervisor,
    _model_process,
    _silent_rank,
    _given_up_rank,
    _hang,
    _ready_timeout,
)
"""While nothing has ended the server: the first rule that applies decides."""
STOPPING: tuple[Rule, ...] = (_signal, _silent_rank, _stopped_rank)
"""While the server stops and no rank is blamed."""


# Once the server has ended ----------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """How a rank ends: its exit code, and what its record says."""

    exit_code: int
    stopped_by: str | None = None
    reason: str | None = None
    blames: int | None = None


def conclude(seen: Observed, decision: Decision | None, returncode: int, *, is_over: bool) -> End | None:
    """Return how this rank ends after its server has ended; ``None``: wait, and observe again.

    The step's exit code must be that of the rank that ended first, so the others exit with 0.

    Args:
        returncode: of the server, negative for a signal.
        is_over: the time to wait for a cause is over.
    """
    if decision is None and seen.signal is not None:
        decision = _signal(seen)  # Slurm signals the server as well, which may have ended first
    if decision is not None:
        return _after_decision(seen, decision)
    suspects = seen.running({**seen.ranks.suspects, **seen.ranks.silent, **seen.ranks.stopped})
    rank = min(suspects, default=seen.rank)
    if rank != seen.rank and not (seen.rank and seen.others_ended):
        # A server that dies by itself knows only which peer it lost.
        return End(ExitCode.START, reason=f"{seen.name(rank)}: {suspects[rank]}", blames=rank)
    if returncode != 0:
        return End(128 - returncode if returncode < 0 else returncode)
    # TensorRT-LLM's workers exit with 0 whatever happened (they call ``exit(0)`` once the leader is gone,
    # ``model_instance_state.cc``), so 0 proves nothing.
    if seen.rank != 0:
        if seen.request is not None or seen.leader_ended:
            return End(ExitCode.OK, "leader", "the leader is ending")
        if not is_over:
            return None
    return End(ExitCode.START, reason="the server ended by itself, without a request to stop")


def _after_decision(seen: Observed, decision: Decision) -> End:
    if decision.exit_code is not None:
        code: int = decision.exit_code
    elif seen.signal is not None:
        code = ExitCode.OK if seen.others_ended else 143
    else:
        # The server's own code does not matter: while models load, SIGTERM just kills Triton, and a server
        # that ignores SIGTERM, and had to be killed, was stopped all the same.
        code = ExitCode.OK
    return End(code, decision.by, decision.sentence, decision.blames)


def rank_name(records: Sequence[RankRecord], step: str, rank: int) -> str:
    """Return how to name a rank of an instance, with its host if it has a record."""
    instance = step.partition(".")[2]
    name = f"rank {rank}{f' of instance {instance}' if instance else ''}"
    host = next((record.host for record in records if record.rank == rank), None)
    return name if host is None else f"{name} on {host}"
