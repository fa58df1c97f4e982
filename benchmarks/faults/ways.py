"""Further faults of one run each, as families: signals, Slurm's administration, files, and ways to serve."""

from __future__ import annotations

import signal

from benchmarks.faults import files, kill, settings, slurm
from benchmarks.faults.fault import HANG_S, START, WELL, Fault, Moment, dies, survivor
from trtllm_hpc.errors import ExitCode

_SIGNALS = (
    Fault(
        "term-leader",
        "SIGTERM to the leader's tritonserver",
        kill.signalled(kill.server(0), signal.SIGTERM),
        r"rank 0 on .*(ended|exit code|SIGTERM)",
        START,
    ),
    Fault(
        "crash-leader",
        "SIGSEGV in the leader's tritonserver",
        kill.signalled(kill.server(0), signal.SIGSEGV),
        r"rank 0 on .*(signal 11|SIGSEGV)",
        START,
    ),
    Fault(
        "stop-stub",
        "SIGSTOP of the preprocessing stub alone",
        kill.stopped(kill.stub(0, "preprocessing")),
        r"rank 0 on .*(stopped \(SIGSTOP\)|preprocessing)",
        START,
        bound_s=HANG_S,
        ranks=1,
    ),
    Fault(
        "kill-bench",
        "`kill -9` of the companion's `bench run`",
        kill.killed(kill.process("bench", "run")),
        r"companion.*(killed|signal 9|SIGKILL)",
        (9,),
        ranks=1,
    ),
    Fault(
        "memory-rank1",
        "the kernel kills a process of rank 1 for want of memory while it loads (cgroup)",
        kill.out_of_memory(1),
        r"rank 1\b.*(killed|memory)",
        START,
        moment=Moment.LOADS,
        bound_s=HANG_S,
    ),
    Fault(
        "kill-node",
        "`kill -9` of every process of the user on rank 1's node",
        kill.all_of_node,
        r"rank 1\b",
        START,
    ),
    Fault(
        "kill-loading",
        "`kill -9` of the leader's tritonserver while it loads",
        kill.killed(kill.server(0)),
        dies(0),
        START,
        moment=Moment.LOADS,
    ),
    Fault(
        "stop-loading",
        "SIGSTOP of the leader's tritonserver while it loads",
        kill.stopped(kill.server(0)),
        r"rank 0 on .*stopped",
        START,
        moment=Moment.LOADS,
        bound_s=HANG_S,
    ),
    survivor("kill-gateway", "`kill -9` of the gateway", kill.killed(kill.asked_gateway)),
    Fault(
        "kill-build",
        "`kill -9` of the build",
        kill.killed(kill.process("engine", name="python")),
        r"build.*(killed|signal 9|SIGKILL)",
        (6,),
        moment=Moment.BUILDS,
        ranks=1,
        builds=True,
    ),
    Fault(
        "stop-build",
        "SIGSTOP of the build",
        kill.stopped(kill.process("engine", name="python")),
        r"build.*stopped|stopped.*build|is stopped \(SIGSTOP\)",
        WELL,
        moment=Moment.BUILDS,
        ranks=1,
        requests=30,
        builds=True,
        bound_s=HANG_S,
        undone_when_named=True,
    ),
)

_SLURM = (
    Fault(
        "slurmctld-and-leader",
        "slurmctld and the leader's tritonserver are killed together",
        slurm.slurmctld_and_leader,
        dies(0),
        START,
        undone_when_named=True,
    ),
    Fault(
        "requeue-held",
        "`scontrol requeuehold` of the serve job, which an administrator allowed",
        slurm.requeue("requeuehold"),
        r"\bheld\b|\bhold\b",
        (7, 11),
        ranks=1,
    ),
    Fault(
        "suspended",
        "`scontrol suspend` of the serve job, until that is named",
        slurm.administered(("suspend", "{serve}"), ("resume", "{serve}")),
        r"suspended",
        WELL,
        ranks=1,
        requests=90,
        undone_when_named=True,
    ),
    Fault(
        "companion-suspended",
        "`scontrol suspend` of the companion's job, whose server waits in vain",
        slurm.administered(("suspend", "{companion}"), ("resume", "{companion}")),
        r"its job \d+ is SUSPENDED",
        START,
        bound_s=150.0,
        ranks=1,
        undone_when_named=True,
    ),
    Fault(
        "kill-overlapping-companion",
        "`kill -9` of a companion inside the server's allocation",
        kill.killed(kill.companion),
        r"the companion was killed by signal 9",
        START,
        ranks=1,
        prepare=settings.overlapping,
    ),
    Fault(
        "node-down",
        "an administrator sets rank 1's node down",
        slurm.administered(("update", "nodename={node1}", "state=down", "reason=broken"), ()),
        r"node.*\S+-n2|\S+-n2.*(down|failed|lost)",
        START,
        from_slurm=True,
    ),
    Fault(
        "partition-down",
        "the partition is down when the run is submitted, until that is named",
        slurm.administered(
            ("update", "partitionname=batch", "state=down"), ("update", "partitionname=batch", "state=up")
        ),
        r"partition\b.*\b(down|not up|unavailable|accepts no)",
        (0, 3, 5),
        moment=Moment.BEFORE,
        ranks=1,
        requests=30,
        undone_when_named=True,
    ),
    Fault(
        "nodes-drained",
        "every node is drained when the run is submitted, until that is named",
        slurm.administered(
            ("update", "nodename=ALL", "state=drain", "reason=service"),
            ("update", "nodename=ALL", "state=resume"),
        ),
        r"drain|nodes?\b.*\b(down|not available|unavailable)",
        (0, 3, 5),
        moment=Moment.BEFORE,
        ranks=1,
        requests=30,
        undone_when_named=True,
    ),
    Fault(
        "job-held",
        "the serve job is held while the build runs, until that is named",
        slurm.administered(("hold", "{serve}"), ("release", "{serve}")),
        r"\bheld\b|\bholds?\b",
        WELL,
        moment=Moment.BUILDS,
        ranks=1,
        requests=30,
        builds=True,
        bound_s=HANG_S,
        undone_when_named=True,
    ),
    Fault(
        "gpus-wrong",
        "the profile names 8 GPUs a node, and there are 4",
        settings.too_many_gpus,
        r"GPU|gres|node configuration",
        (3, 5),
        moment=Moment.BEFORE,
        ranks=1,
    ),
    survivor("stop-slurmd", "SIGSTOP of rank 1's slurmd for 20 s", slurm.slurmd_stopped, ranks=2),
)

_FILES = (
    *(
        Fault(
            f"engine-{name}",
            f"{title}, before the submission",
            files.engine_changed(pattern, change),
            expected,
            (3, 6, 7),
            moment=Moment.BEFORE,
            ranks=1,
            bound_s=HANG_S,
        )
        for name, title, pattern, change, expected in (
            (
                "header",
                "the header of the engine's weights is garbage",
                "*.safetensors",
                files.without_header,
                r"safetensors.*(header|damaged|cannot be read)|weights.*damaged",
            ),
            ("config", "the engine's config.json is cut in half", "config.json", files.half, r"config\.json"),
        )
    ),
    *(
        Fault(
            f"tokenizer-{name}",
            f"the engine's tokenizer.json {title}, once the run is submitted",
            files.tokenizer(change),
            r"tokenizer",
            START,
            moment=Moment.SUBMITTED,
            ranks=1,
            prepare=files.own_engine,
            bound_s=HANG_S,
        )
        for name, title, change in (("cut", "is cut in half", files.half), ("gone", "is removed", None))
    ),
    Fault(
        "model-closed",
        "the model's weights may not be read (`chmod 0`)",
        files.model_closed,
        r"permission denied|cannot be read|not readable",
        (3, 6),
        moment=Moment.SUBMITTED,
        ranks=1,
        builds=True,
        prepare=files.own_model,
        bound_s=HANG_S,
    ),
    Fault(
        "config-pbtxt",
        "config.pbtxt of the model is cut in half before the server starts",
        files.pbtxt_damaged,
        r"config\.pbtxt|(model )?configuration.*tensorrt_llm|tensorrt_llm.*configuration",
        START,
        moment=Moment.SUBMITTED,
        ranks=1,
        bound_s=HANG_S,
    ),
    Fault(
        "runs-frozen",
        "the run folder's file system is frozen (fsfreeze), until that is named",
        files.frozen,
        r"cannot be written|frozen|file system|has not been written",
        WELL,
        ranks=1,
        requests=120,
        prepare=files.small_runs,
        bound_s=HANG_S,
        undone_when_named=True,
    ),
    Fault(
        "grpc-port-taken",
        "another program takes the server's gRPC port while it loads",
        files.takes_port("grpc-port"),
        r"port|address already in use",
        START,
        moment=Moment.LOADS,
        ranks=1,
        bound_s=HANG_S,
        prepare=files.open_ports,
    ),
    Fault(
        "memory-limit",
        "the ranks may have 1.5 GB of address space (`ulimit -v`)",
        files.each_bash('case "$0" in */rank.sh) ulimit -v 1500000 ;; esac\n'),
        r"memory|ulimit",
        START,
        moment=Moment.BEFORE,
        ranks=1,
        bound_s=HANG_S,
    ),
    Fault(
        "runs-closed",
        "the folder of runs is not writable at the submission",
        settings.unwritable_runs,
        r"(cannot|could not|may not|not) .*(writ|creat|made)|permission",
        (3, 4, 5, 14),
        moment=Moment.BEFORE,
        ranks=1,
    ),
    Fault(
        "kill-with-long-log",
        "the leader's log grows by 400 MiB of lines with 'error', then its tritonserver is killed",
        files.long_log_and_kill,
        dies(0),
        START,
        ranks=1,
    ),
)


def _local(name: str, title: str, inject: kill.Injection, expected: str, **more: object) -> Fault:
    whole = {"exits": START, "ranks": 1, "prepare": settings.without_slurm, **more}
    return Fault(f"local-{name}", f"without Slurm: {title}", inject, expected, **whole)  # type: ignore[arg-type]


_SERVER = settings.here(name="tritonserver")
_LOCAL = (
    _local("kill-server", "`kill -9` of tritonserver", kill.killed(_SERVER), dies(0)),
    _local(
        "kill-supervisor", "`kill -9` of the rank's supervisor", kill.killed(settings.here("rank")), dies(0)
    ),
    _local(
        "stop-server", "SIGSTOP of tritonserver", kill.stopped(_SERVER), r"rank 0.*stopped", bound_s=HANG_S
    ),
    _local(
        "kill-script",
        "`kill -9` of the serve stage's script",
        kill.killed(settings.here(name="bash", script="serve.sbatch")),
        r"stage serve .*(killed|signal 9|SIGKILL|137)",
    ),
    _local(
        "kill-companion",
        "`kill -9` of the companion",
        kill.killed(settings.here(name="bash", script="companion.sh")),
        r"companion.*(killed|signal 9|SIGKILL|137)",
        exits=(9,),
    ),
    survivor(
        "local-kill-door",
        "without Slurm: `kill -9` of the door (HAProxy)",
        kill.killed(settings.here(name="haproxy")),
        prepare=settings.without_slurm,
    ),
)

_INSTANCES = (
    Fault(
        "instance-killed",
        "`kill -9` of one of two instances, which is started again",
        kill.killed(settings.instance),
        r"instance \d\b.*(killed|signal 9)",
        WELL,
        ranks=1,
        requests=120,
        prepare=settings.instances(minimum_instances=1),
    ),
    Fault(
        "instance-stopped",
        "SIGSTOP of one of two instances, which is started again",
        kill.stopped(settings.instance),
        r"instance \d\b.*stopped",
        WELL,
        ranks=1,
        requests=240,
        prepare=settings.instances(minimum_instances=1),
        bound_s=HANG_S,
    ),
    Fault(
        "instance-given-up",
        "`kill -9` of one of two instances, of which none may be missing or started again",
        kill.killed(settings.instance),
        r"instance \d\b",
        START,
        ranks=1,
        prepare=settings.instances(restarts=0),
    ),
)

_TRTLLM_SERVE = (
    # The stand-in answers without its workers, so that it cannot hang; `stop-rank1` can.
    Fault(
        "trtllm-serve-worker-stopped",
        "`trtllm-serve`: SIGSTOP of the worker of rank 1, until that is named",
        kill.stopped(kill.process("worker")),
        r"rank 1.*stopped",
        WELL,
        requests=60,
        undone_when_named=True,
        prepare=settings.trtllm_serve(),
    ),
    *(
        Fault(
            f"trtllm-serve-{name}",
            f"`trtllm-serve`: `kill -9` of {title}",
            kill.killed(found),
            dies(rank),
            START,
            prepare=settings.trtllm_serve(),
        )
        for name, title, found, rank in (
            ("leader", "what joins rank 0", kill.process("leader"), 0),
            ("worker", "the worker of rank 1", kill.process("worker"), 1),
            ("server", "the server", kill.upstream_server, 0),
        )
    ),
    # The killed part is started again. The requests that it held are more than the 1% of this benchmark.
    *(
        Fault(
            f"trtllm-serve-{name}",
            f"`trtllm-serve`: disaggregated, `kill -9` of {title}",
            kill.killed(found),
            rf"requests broke during .*\b{part} on \S+ was killed by signal 9",
            (int(ExitCode.MEASUREMENT),),
            requests=120,
            from_slurm=True,
            prepare=settings.trtllm_serve(**settings.PHASES),
        )
        for name, title, found, part in (
            ("phase", "a worker of the generation server", kill.process("worker"), "rank 1( of .*)?"),
            ("front", "the front", kill.process("disaggregated", name="python"), "front of the servers"),
        )
    ),
)

WAYS = (*_SIGNALS, *_SLURM, *_FILES, *_LOCAL, *_INSTANCES, *_TRTLLM_SERVE)

NOT_INJECTED = (
    (
        "a GPU falls off its bus, ECC or NVLink errors, CUDA out of memory",
        "the sandbox's GPUs are names only",
    ),
    ("an InfiniBand link goes down, or a subnet manager", "the nodes are joined by a bridge of Ethernet"),
    (
        "NCCL or UCX hangs in a collective",
        "the reference backend computes on CPUs with gloo; `network-cut` stands in",
    ),
    (
        "an engine that TensorRT cannot load, or that was built for another GPU",
        "no TensorRT here; its messages are tested with public logs (`tests/logs/excerpts`)",
    ),
    (
        "an NFS server that hangs while files are read",
        "the kernel has no NFS; `runs-frozen` stands in for what writes",
    ),
    ("quotas of Lustre or GPFS, lost targets of a file system", "no such file system here"),
    (
        "a job step killed by Slurm's own memory limit",
        "the sandbox's Slurm uses no cgroups; `memory-rank1` stands in, with a cgroup made by hand",
    ),
    (
        "a node without power, with torn writes",
        "the nodes are one machine's namespaces; `node-frozen` stands in",
    ),
    ("a clock that jumps while the run lives", "all namespaces share one clock; `clock-off` starts with it"),
)
"""What breaks on real clusters and cannot be injected on the sandbox, with the reason."""
