"""The faults: what is done when, and what ``status`` must then say."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.faults import files, kill, slurm
from benchmarks.faults.kill import Injection
from benchmarks.faults.scene import Scene
from trtllm_hpc.errors import ExitCode

PROCESS_S = 15.0
"""Bound for what has died."""
HANG_S = 60.0
"""Bound for what is silent."""

ENDS_WELL = "every stage has completed"


class Moment(enum.Enum):
    """When a fault is injected."""

    BEFORE = "before the submission"
    SUBMITTED = "once it is submitted"
    BUILDS = "during the build"
    LOADS = "while the ranks load"
    MEASURES = "during the benchmark"


@contextmanager
def nothing(scene: Scene) -> Iterator[None]:
    """Prepare nothing."""
    yield


@dataclass(frozen=True)
class Fault:
    """One fault."""

    name: str
    title: str
    inject: Injection
    expected: str
    """Regular expression, without regard to case."""
    exits: tuple[int, ...]
    """Exit codes of ``submit --wait`` that are right."""
    moment: Moment = Moment.MEASURES
    bound_s: float = PROCESS_S
    ranks: int = 2
    builds: bool = False
    """Whether the run builds its engine; otherwise it is there."""
    prepare: Injection = nothing
    requests: int = 600
    """Of the benchmark, three a second."""
    survives: bool = False
    """Whether the run must end as if nothing had happened."""
    from_slurm: bool = False
    """Whether the seconds count from the moment at which Slurm ended the job."""
    undone_when_named: bool = False
    """Whether the fault ends once it is named; otherwise it lasts to the end of ``submit --wait``."""


START, LOST, CANCELLED = (int(ExitCode.START),), (int(ExitCode.LOST),), (int(ExitCode.CANCELLED),)
WELL = (0,)
# Not "full": it is in the names of these runs.
FULL = r"0\.\d MiB free|no space left|file system is full"
DIES = r"rank {0} on .*(died first|killed|no sign of life|recorded no end)|lost .*rank {0}"


def _dies(rank: int) -> str:
    return DIES.format(rank)


def _survivor(name: str, title: str, inject: Injection, **more: Any) -> Fault:
    """A fault that must not be noticed: for a benchmark of 40 s."""
    return Fault(name, title, inject, ENDS_WELL, WELL, survives=True, **{"ranks": 1, "requests": 120, **more})


PROCESSES = (
    Fault(
        "kill-leader-server",
        "`kill -9` of the leader's tritonserver",
        kill.killed(kill.server(0)),
        _dies(0),
        START,
    ),
    Fault(
        "kill-rank1-server",
        "`kill -9` of rank 1's tritonserver",
        kill.killed(kill.server(1)),
        _dies(1),
        START,
    ),
    Fault(
        "kill-leader-stub",
        "`kill -9` of the leader's model process (stub of `tensorrt_llm`)",
        kill.killed(kill.stub(0, "tensorrt_llm")),
        r"rank 0.*(tensorrt_llm|model|stub|request)",
        START,
    ),
    Fault(
        "kill-rank1-stub",
        "`kill -9` of rank 1's model process (stub of `tensorrt_llm`)",
        kill.killed(kill.stub(1, "tensorrt_llm")),
        r"rank 1",
        START,
    ),
    Fault(
        "kill-preprocessing-stub",
        "`kill -9` of the preprocessing stub",
        kill.killed(kill.stub(0, "preprocessing")),
        r"preprocessing|stub",
        START,
        ranks=1,
    ),
    Fault(
        "kill-leader-supervisor",
        "`kill -9` of the leader's supervisor",
        kill.killed(kill.supervisor(0)),
        _dies(0),
        START,
    ),
    Fault(
        "kill-rank1-supervisor",
        "`kill -9` of rank 1's supervisor",
        kill.killed(kill.supervisor(1)),
        _dies(1),
        START,
    ),
    Fault(
        "kill-batch-script",
        "`kill -9` of the serve job's batch script",
        kill.killed(kill.batch_script),
        r"batch script was killed by signal 9",
        START,
    ),
    Fault(
        "kill-slurmstepd",
        "`kill -9` of rank 1's slurmstepd",
        kill.killed(kill.step_daemon(1)),
        _dies(1),
        START,
    ),
    Fault(
        "kill-companion",
        "`kill -9` of the companion",
        kill.killed(kill.companion),
        r"companion.*(killed|signal 9|SIGKILL)",
        (9,),
        ranks=1,
    ),
    Fault(
        "stop-leader",
        "SIGSTOP of the leader's tritonserver and all below it",
        kill.stopped(kill.server(0)),
        r"rank 0.*stopped",
        START,
        bound_s=HANG_S,
    ),
    Fault(
        "stop-rank1",
        "SIGSTOP of rank 1's tritonserver and all below it",
        kill.stopped(kill.server(1)),
        r"rank 1.*stopped",
        START,
        bound_s=HANG_S,
    ),
    Fault(
        "node-frozen",
        "a whole node answers nobody",
        kill.node_frozen,
        r"rank 1 on .*no sign of life",
        START,
        bound_s=HANG_S,
        undone_when_named=True,
    ),
)

OTHERS = (
    Fault(
        "stop-door",
        "SIGSTOP of the door (HAProxy), which is started again after 45 s",
        kill.stopped(kill.process(name="haproxy")),
        r"is stopped \(SIGSTOP\): .*haproxy",
        WELL,
        ranks=1,
        requests=120,
    ),
    _survivor("kill-door", "`kill -9` of the door (HAProxy)", kill.killed(kill.process(name="haproxy"))),
    Fault(
        "stop-gateway",
        "SIGSTOP of the gateway with OpenAI's protocol",
        kill.stopped(kill.asked_gateway),
        r"is stopped \(SIGSTOP\): .*gateway",
        WELL,
        ranks=1,
        requests=240,
    ),
    Fault(
        "stop-run-supervisor",
        "SIGSTOP of the supervisor of the run",
        kill.stopped_alone(kill.process("instances")),
        r"the supervisor of the run gives no sign of life",
        START,
    ),
    Fault(
        "kill-run-supervisor",
        "`kill -9` of the supervisor of the run",
        kill.killed(kill.process("instances")),
        r"the supervisor of the run was killed by signal 9",
        START,
    ),
    Fault(
        "kill-serve-srun",
        "`kill -9` of the `srun` of the server's step",
        kill.killed(kill.serve_step),
        r"srun of the server.s step ended: Killed",
        START,
    ),
    Fault(
        "stop-bench",
        "SIGSTOP of the companion's `bench run`",
        kill.stopped(kill.process("bench", "run")),
        r"is stopped \(SIGSTOP\): .*bench run",
        (9,),
        ranks=1,
    ),
    _survivor(
        "kill-heartbeat",
        "`kill -9` of the companion's heartbeat",
        kill.killed(kill.process("heartbeat")),
        requests=420,
    ),
    Fault(
        "network-cut",
        "the network is cut between the nodes of both ranks only",
        kill.network_cut,
        r"network between \S*n1 and \S*n2",
        START,
        bound_s=HANG_S,
    ),
    Fault(
        "sockets-removed",
        "the server's sockets are removed from `/dev/shm`",
        kill.sockets_removed,
        r"sockets of the server were removed",
        START,
        ranks=1,
    ),
)

SLURM = (
    Fault(
        "kill-slurmd",
        "slurmd of rank 1's node killed, for good (SlurmdTimeout: 15 s)",
        slurm.slurmd_killed,
        r"lost a node|node.*failed",
        START,
        from_slurm=True,
        undone_when_named=True,
    ),
    _survivor(
        "restart-slurmd",
        "slurmd of rank 1's node killed, there again after 5 s",
        slurm.slurmd_restarted,
        ranks=2,
    ),
    _survivor("slurmctld-away", "slurmctld away for 30 s", slurm.slurmctld_away),
    _survivor("kill-slurmdbd", "slurmdbd killed, for good", slurm.slurmdbd_killed, requests=30),
    Fault(
        "time-limit",
        "the serve job reaches its time limit",
        slurm.time_limit,
        r"time limit",
        START,
        ranks=1,
        from_slurm=True,
    ),
    _survivor("requeue", "`scontrol requeue` of the serve job", slurm.requeue_refused, requests=30),
    Fault(
        "requeue-forced",
        "the same, after an administrator allowed it (`Requeue=1`)",
        slurm.requeue_forced,
        r"back (in|into) the queue|requeue",
        (7, 11),
        ranks=1,
    ),
    Fault(
        "preempted",
        "a job of a higher partition preempts the leader's node",
        slurm.preempted,
        r"preempt|higher priority",
        START,
        ranks=1,
    ),
    Fault(
        "scancel-build",
        "`scancel` of the build",
        slurm.cancelled("build"),
        r"stage build was cancelled",
        (11, 6),
        moment=Moment.BUILDS,
        ranks=1,
        builds=True,
    ),
    Fault(
        "scancel-serve",
        "`scancel` of the server",
        slurm.cancelled("serve"),
        r"stage serve was cancelled",
        CANCELLED,
        ranks=1,
    ),
    Fault(
        "scancel-companion",
        "`scancel` of the companion",
        slurm.cancelled("companion"),
        r"stage companion was cancelled",
        CANCELLED,
        ranks=1,
    ),
)

FILES = (
    Fault(
        "disk-full-start",
        "the run folder's disk is full when the server starts",
        files.runs_full,
        FULL,
        START,
        moment=Moment.SUBMITTED,
        ranks=1,
        prepare=files.small_runs,
    ),
    Fault(
        "disk-full-benchmark",
        "the run folder's disk becomes full during the benchmark",
        files.runs_full,
        FULL,
        (7, 9, 10),
        ranks=1,
        requests=90,
        prepare=files.small_runs,
    ),
    Fault(
        "shm-full-start",
        "`/dev/shm` is full when the server starts",
        files.shared_memory_full,
        r"/dev/shm",
        START,
        moment=Moment.SUBMITTED,
        ranks=1,
        bound_s=HANG_S,
    ),
    _survivor(
        "shm-full-benchmark",
        "`/dev/shm` becomes full during the benchmark",
        files.shared_memory_filled,
        requests=60,
    ),
    Fault(
        "port-taken",
        "another program takes the server's HTTP port while it loads",
        files.port_taken,
        r"port|address already in use",
        START,
        moment=Moment.LOADS,
        ranks=1,
        bound_s=HANG_S,
        prepare=files.open_ports,
    ),
    _survivor(
        "two-builds",
        "the same engine built by two runs at once",
        files.second_build,
        moment=Moment.SUBMITTED,
        builds=True,
        requests=6,
    ),
    Fault(
        "run-folder-gone",
        "`rm -rf` of the run folder",
        files.run_folder_gone,
        r"is gone|no such run|no run|plan.json is gone|there is no",
        LOST,
        ranks=1,
    ),
    Fault(
        "run-folder-unwritable",
        "the run folder cannot be written during the benchmark, until that is named",
        files.run_folder_unwritable,
        r"the run folder cannot be written",
        WELL,
        ranks=1,
        requests=120,
        undone_when_named=True,
    ),
    Fault(
        "plan-removed",
        "`plan.json` is removed during the benchmark, and the run cancelled",
        files.plan_removed,
        r"the run folder lacks plan\.json",
        CANCELLED,
        ranks=1,
        undone_when_named=True,
    ),
    Fault(
        "engine-truncated",
        "the engine lacks its last byte",
        files.engine_damaged(1),
        r"engine|safetensors|truncat|damaged|incomplete",
        (3, 6, 7),
        moment=Moment.BEFORE,
        ranks=1,
        bound_s=HANG_S,
    ),
    Fault(
        "engine-gone",
        "the engine's folder is moved away once the run is submitted",
        files.engine_gone,
        r"engine.*(no such|not found|gone|removed|does not exist)|(no such|there is no).*engine",
        START,
        moment=Moment.SUBMITTED,
        ranks=1,
        prepare=files.own_engine,
        bound_s=HANG_S,
    ),
    Fault(
        "model-gone",
        "the model's folder is removed once the run is submitted",
        files.model_gone,
        r"model.*(no such|not found|does not exist|there is no|no folder|is not there)|no such.*model",
        (6,),
        moment=Moment.SUBMITTED,
        ranks=1,
        builds=True,
        prepare=files.own_model,
        bound_s=HANG_S,
    ),
    Fault(
        "runs-hidden",
        "the nodes do not see the folder of runs",
        files.runs_hidden,
        r"could not open its output file",
        START,
        moment=Moment.BEFORE,
        ranks=1,
        from_slurm=True,
    ),
    _survivor(
        "clock-off",
        "the clock of rank 1's node is an hour ahead (libfaketime)",
        files.clock_off,
        moment=Moment.BEFORE,
        ranks=2,
        requests=30,
    ),
)

FAULTS = {fault.name: fault for fault in (*PROCESSES, *OTHERS, *SLURM, *FILES)}
"""All faults by name, in the order of the table."""
