"""One instance of the server as its supervisor sees it, and the rules for what follows from its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.blame import how_it_ended, rank_name, verdict
from trtllm_hpc.runtime.heartbeat import SilenceWatch, watch_ranks
from trtllm_hpc.runtime.process import start_bound, start_ticks
from trtllm_hpc.runtime.proxy import SOCKETS_VARIABLE, ProxyOptions
from trtllm_hpc.runtime.records import RankRecord, try_event
from trtllm_hpc.runtime.stop import SUPERVISOR_VARIABLE


@dataclass(frozen=True)
class SupervisorOptions:
    """The options that ``serve.sbatch`` passes."""

    count: int
    """Number of instances."""
    restarts: int
    """Restarts of each instance that has served."""
    proxy: ProxyOptions | None
    """``None``: the single server listens on the network itself."""
    key: bool
    """Whether the proxy requires the run's key."""
    tls: bool
    """Whether the proxy encrypts."""
    leaders: Mapping[int, Sequence[int]]
    """The instances whose leaders run on each node, by the node's number within the job."""
    companion_start_seconds: float | None
    """Seconds that the companion may take to start; ``None``: no limit."""
    companion_silence_seconds: float | None
    """Seconds that the companion may be silent; ``None``: no limit."""
    drain_seconds: float
    """Seconds that open requests may take once the time limit is near."""
    idle_seconds: float | None = None
    """Seconds without a request after which the server ends; ``None``: no limit."""
    hang_seconds: float | None = None
    """Seconds that an instance's leader may be silent; ``None``: no limit."""
    roles: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The instances of each phase of a disaggregated run; empty for any other run."""

    def role(self, instance: int) -> str | None:
        """Return the phase of an instance, if the run is disaggregated."""
        return next((role for role, numbers in self.roles.items() if instance in numbers), None)


@dataclass
class Instance:
    """One instance, as the supervisor sees it. Times are those of ``time.monotonic``."""

    number: int
    step: str
    """Name of the instance's job step."""
    sockets: Path | None = None
    """Folder of the instance's sockets; ``None`` without a proxy."""
    state: str = "starting"
    """``starting``, ``ready``, ``restarting``, ``failed`` or ``ended``."""
    restarts: int = 0
    """Number of restarts so far."""
    reason: str | None = None
    """Description of the instance's last end; ``None`` before."""
    has_served: bool = False
    """Whether the instance was ever ready."""
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    """The process of ``instance.sh``; ``None`` before a start and after an end."""
    restart_at: float = 0.0
    """Time of the next start while ``restarting``."""
    lost: str | None = None
    """Why the instance cannot be restarted: its node may be lost."""
    leader: SilenceWatch | None = field(default=None, repr=False)
    """Watch over rank 0's heartbeat."""
    look_at: float = 0.0
    """Time of the next look at ``leader`` and at the ranks' records."""
    over_since: float | None = None
    """Time at which a rank was first found to have failed while the step continues."""

    def start(self, paths: RunPaths, hang_seconds: float | None, own: Path) -> None:
        """Start the instance's ranks; ``own`` is the file of the supervisor's heartbeat."""
        paths.ready_record(self.step).unlink(missing_ok=True)
        for record in paths.ranks.glob(f"{self.step}_*.json"):
            record.unlink(missing_ok=True)
        self.state, self.over_since = "starting", None
        self.leader = watch_ranks(paths, self.step, range(1), hang_seconds, own)
        try_event(paths, "serve", "server_start", instance=self.number)
        command = ["bash", str(paths.script("instance")), str(self.number)]
        sockets = {} if self.sockets is None else {SOCKETS_VARIABLE: str(self.sockets)}
        supervisor = {SUPERVISOR_VARIABLE: f"{os.getpid()} {start_ticks(os.getpid())}"}
        self.child = start_bound(command, {**os.environ, **sockets, **supervisor})

    @property
    def lives(self) -> bool:
        """Whether the instance serves, or may serve later."""
        return self.state in ("starting", "ready", "restarting")

    @property
    def runs(self) -> bool:
        """Whether the instance's process runs."""
        return self.child is not None and self.child.poll() is None


# Rules for the end of an instance: pure functions, as in trtllm_hpc.runtime.ending ----------

STEP_GRACE_S = 30.0
"""Seconds that a step may go on after a rank has ended; longer than AFTER_LEADER_S. Slurm itself waits
minutes for a lost node."""
ENDED_GRACE_S = 15.0
"""Seconds that a step may go on after all ranks have ended: Slurm does not see the end of tasks on a node
that it cannot reach."""


@dataclass(frozen=True)
class RunEnd:
    """The end of the run with a failure."""

    sentence: str
    """Description of the failure."""
    code: int = ExitCode.START
    """Exit code of the run."""
    event: str = "failed"
    """Name of the event to record."""
    is_cause: bool = True
    """Whether the sentence names the cause; otherwise the ranks' records and logs explain more."""


def after_end(
    instance: Instance, records: Sequence[RankRecord], returncode: int, options: SupervisorOptions
) -> tuple[str, str | None, RunEnd | None]:
    """Return what follows from the end of an instance while the run goes on.

    Returns:
        The instance's new state (``restarting``, ``failed``, or ``ended`` if Slurm is ending the whole job);
        the reason; and the end of the run, if the instance is not restarted.
    """
    by_signal = [record for record in records if (record.stopped_by or "").startswith("SIG")]
    if records and len(by_signal) == records[0].world_size:
        # Slurm signals the ranks of a cancelled job before the supervisor.
        return "ended", instance.reason, None
    reason = instance.lost or how_it_ended(records, returncode)
    if _restarts(instance, options):
        return "restarting", reason, None
    role = options.role(instance.number)
    name = f"instance {instance.number}" if role is None else f"the {role} server {instance.number}"
    sentence = reason if options.count == 1 else f"{name} has ended: {reason}"
    # For a single server, or a server of a phase, the ranks' records and logs explain more, unless the node
    # is lost.
    is_cause = instance.lost is not None or (role is None and options.count > 1)
    code = returncode if 0 < returncode < 128 else ExitCode.START
    return "failed", reason, RunEnd(sentence, code, is_cause=is_cause)


def early_end(
    instance: Instance, records: Sequence[RankRecord], options: SupervisorOptions, *, is_stopping: bool
) -> RunEnd | None:
    """Return the end of the run if a rank has recorded a fault and the instance will not be restarted.

    The rule also applies while the run is stopping: the stop may come from a companion that got no answers
    and does not know the cause.
    """
    judge = verdict(records)
    if judge is None or (_restarts(instance, options) and not is_stopping):
        return None
    code = judge.task_exit_code if 0 < (judge.task_exit_code or 0) < 128 else None
    return RunEnd(how_it_ended(records, ExitCode.START), code or ExitCode.START)


def _restarts(instance: Instance, options: SupervisorOptions) -> bool:
    return instance.lost is None and instance.has_served and instance.restarts < options.restarts


def lost(
    instance: Instance, records: Sequence[RankRecord], silent: Mapping[int, str], over_s: float | None
) -> str | None:
    """Return why the step of an instance must be killed; ``None``: it need not be.

    Slurm itself waits minutes for a lost node. ``silent`` has the end of a sentence by rank if the leader is
    silent; ``over_s`` is the number of seconds since a rank was seen to have failed.
    """
    if silent and not any(record.rank == 0 and record.ended_at is not None for record in records):
        return f"{rank_name(records, instance.step, 0)}: {silent[0]}"
    ended = [record for record in records if record.ended_at is not None]
    grace_s = ENDED_GRACE_S if ended and len(ended) == ended[0].world_size else STEP_GRACE_S
    is_overdue = over_s is not None and over_s > grace_s
    return how_it_ended(records, ExitCode.START) if is_overdue else None
