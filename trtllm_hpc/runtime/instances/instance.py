"""One instance of the server as its supervisor sees it, and what follows from its end."""

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
    restarts: int
    """Of each instance that has served."""
    proxy: ProxyOptions | None
    """``None``: the single server listens on the network itself."""
    key: bool
    tls: bool
    leaders: Mapping[int, Sequence[int]]
    """The instances whose leaders are on each node, by the node's number within the job."""
    companion_start_seconds: float | None
    companion_silence_seconds: float | None
    drain_seconds: float
    """Bound on open requests once the time limit is near."""
    idle_seconds: float | None = None
    """How long nobody may ask before the server ends; ``None``: for ever."""
    hang_seconds: float | None = None
    """How long an instance's leader may give no sign of life; ``None``: for ever."""
    roles: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The instances of each phase of a disaggregated run, which have a front."""

    def role(self, instance: int) -> str | None:
        """Return the phase of an instance, if the run is disaggregated."""
        return next((role for role, numbers in self.roles.items() if instance in numbers), None)


@dataclass
class Instance:
    """One instance, as the supervisor sees it."""

    number: int
    step: str
    sockets: Path | None = None
    """Folder of its sockets behind a proxy."""
    state: str = "starting"
    """``starting``, ``ready``, ``restarting``, ``failed`` or ``ended``."""
    restarts: int = 0
    reason: str | None = None
    """How it ended the last time."""
    has_served: bool = False
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    restart_at: float = 0.0
    lost: str | None = None
    """Why it cannot be started again: its node may be lost."""
    leader: SilenceWatch | None = field(default=None, repr=False)
    look_at: float = 0.0
    """When to look for that again."""
    over_since: float | None = None
    """When a rank was first seen to have failed, while the step goes on."""

    def start(self, paths: RunPaths, hang_seconds: float | None, own: Path) -> None:
        """Start its ranks; ``own`` is the supervisor's heartbeat."""
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
        """Whether it serves, or may come to."""
        return self.state in ("starting", "ready", "restarting")

    @property
    def runs(self) -> bool:
        """Whether its process runs."""
        return self.child is not None and self.child.poll() is None


# What follows from the end of an instance: pure functions, as in trtllm_hpc.runtime.ending --

STEP_GRACE_S = 30.0
"""For a step to end after one of its ranks has: more than a worker may outlive the leader. Slurm gives a lost
node minutes."""
ENDED_GRACE_S = 15.0
"""The same once every rank has ended: Slurm does not see that of tasks on a node that it cannot reach."""


@dataclass(frozen=True)
class RunEnd:
    """The run is to end with a failure."""

    sentence: str
    code: int = ExitCode.START
    event: str = "failed"
    is_cause: bool = True
    """Whether the sentence is the cause; otherwise records and logs of the ranks explain more."""


def after_end(
    instance: Instance, records: Sequence[RankRecord], returncode: int, options: SupervisorOptions
) -> tuple[str, str | None, RunEnd | None]:
    """Return what follows when an instance has ended although the run goes on.

    Returns:
        The instance's new state, ``restarting``, ``failed``, or ``ended`` if Slurm ends the whole job; the
        reason; and the end of the run, if the instance is not started again.
    """
    by_signal = [record for record in records if (record.stopped_by or "").startswith("SIG")]
    if records and len(by_signal) == records[0].world_size:
        # Slurm ends the ranks of a cancelled job before the supervisor hears of it.
        return "ended", instance.reason, None
    reason = instance.lost or how_it_ended(records, returncode)
    if _restarts(instance, options):
        return "restarting", reason, None
    role = options.role(instance.number)
    name = f"instance {instance.number}" if role is None else f"the {role} server {instance.number}"
    sentence = reason if options.count == 1 else f"{name} has ended: {reason}"
    # Of a single server, or a phase's, records and logs of the ranks explain more, unless its node is lost.
    is_cause = instance.lost is not None or (role is None and options.count > 1)
    code = returncode if 0 < returncode < 128 else ExitCode.START
    return "failed", reason, RunEnd(sentence, code, is_cause=is_cause)


def early_end(
    instance: Instance, records: Sequence[RankRecord], options: SupervisorOptions, *, is_stopping: bool
) -> RunEnd | None:
    """Return whether the run ends as soon as a rank has recorded a fault: the instance is not started again.

    Also while the run stops: a companion that got no answers has asked for it, and does not know why.
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
    """Return why the step of an instance must be killed: Slurm waits minutes for a node that is lost.

    The leader is ``silent``, with the end of a sentence, or a rank has failed ``over_s`` seconds ago.
    """
    if silent and not any(record.rank == 0 and record.ended_at is not None for record in records):
        return f"{rank_name(records, instance.step, 0)}: {silent[0]}"
    ended = [record for record in records if record.ended_at is not None]
    grace_s = ENDED_GRACE_S if ended and len(ended) == ended[0].world_size else STEP_GRACE_S
    is_overdue = over_s is not None and over_s > grace_s
    return how_it_ended(records, ExitCode.START) if is_overdue else None
