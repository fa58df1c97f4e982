"""The daemons of a sandbox, in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from trtllm_hpc.errors import SandboxError, SandboxImpossible
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.cluster import Cluster
from trtllm_hpc.sandbox.layout import Folder
from trtllm_hpc.sandbox.nodes import Node, tail

START_TIMEOUT_S = 60.0
"""Limit for each daemon; on an idle machine each takes a second or two."""

MISSES = 5
"""Consecutive polls that must not see a daemon's process before it counts as ended. Under load
a single poll misses a live slurmctld in its first moments, about once in 400 starts."""

Progress = Callable[[str], None]


def check_pmix(cluster: Cluster) -> None:
    """Check that Slurm was built with PMIx; Ubuntu 22.04's was not.

    srun reads that from the configuration, before any daemon runs.

    Raises:
        SandboxError: it was not built with PMIx.
    """
    if "pmix" not in cluster.slurm("srun", "--mpi=list"):
        raise SandboxImpossible(
            "This machine's Slurm was built without PMIx, which starts the ranks. "
            "The packages of Debian 12, Debian 13 and Ubuntu 24.04 have it; Ubuntu 22.04's do not.",
            hint="trtllm-hpc submit JOB --cluster local",
        )


def start(cluster: Cluster, tell: Progress) -> None:
    """Start every daemon and return when the nodes are idle.

    Raises:
        SandboxError: a daemon died or did not answer in time; the message has the end of its log.
    """
    folder, head, environment = cluster.folder, cluster.head, cluster.environment
    tell("munge")
    head.start_daemon(_munged(folder), folder.output("munged"), environment)
    tell("MariaDB (a new database)")
    head.run(_new_database(folder), timeout_s=START_TIMEOUT_S, environment=environment)
    # slurmdbd would make its database itself, but after the connection that fails without the database, the
    # client library of MariaDB 11.8.9 (Connector/C 3.4.10) refuses every result. A folder is a database.
    head.run(["mkdir", str(folder.private / "mysql/slurm")])
    mariadbd = ["mariadbd", f"--defaults-file={folder.database_conf}"]
    head.start_daemon(mariadbd, folder.output("mariadbd"), environment)
    _await(head, "munged", cluster.munge_answers, folder.log("munged"))
    _await(head, "mariadbd", lambda: bool(cluster.database_answers()), folder.log("mariadbd"))
    tell("slurmdbd")
    head.start_daemon(["slurmdbd", "-D"], folder.output("slurmdbd"), environment)
    _await(head, "slurmdbd", cluster.accounting_answers, folder.log("slurmdbd"))
    tell("slurmctld")
    slurmctld = ["slurmctld", "-D", "-f", str(folder.slurm_conf)]
    head.start_daemon(slurmctld, folder.output("slurmctld"), environment)
    _await(head, "slurmctld", cluster.controller_answers, folder.log("slurmctld"))
    tell(f"slurmd on {', '.join(node.name for node in cluster.nodes)}")
    for node in cluster.nodes:
        slurmd = ["slurmd", "-D", "-N", node.name, "-f", str(folder.slurm_conf), "-d", str(folder.stepd)]
        node.start_daemon(slurmd, folder.output(f"slurmd-{node.name}"), environment)
    for node in cluster.nodes:
        idle = partial(_is_idle, cluster, node)
        _await(node, "slurmd", idle, folder.log(f"slurmd-{node.name}"))


def _munged(folder: Folder) -> list[str]:
    return [
        "munged",
        "--foreground",
        f"--key-file={folder.munge_key}",
        f"--socket={folder.munge_socket}",
        f"--pid-file={folder.munge / 'munged.pid'}",
        f"--seed-file={folder.munge / 'munged.seed'}",
        f"--log-file={folder.log('munged')}",
    ]


def _new_database(folder: Folder) -> list[str]:
    # "normal" means root without a password: only root on the head can reach the socket.
    return [
        "mariadb-install-db",
        f"--defaults-file={folder.database_conf}",
        "--user=root",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
    ]


def _is_idle(cluster: Cluster, node: Node) -> bool:
    return cluster.node_states().get(node.name) == "idle"


def _await(node: Node, program: str, answers: Callable[[], bool], log: Path) -> None:
    """Wait until a daemon answers, or is seen to have ended."""
    misses = 0

    def answered_or_ended() -> bool:
        nonlocal misses
        if answers():
            return True
        misses = 0 if node.has_process(program) else misses + 1
        return misses == MISSES

    if processes.wait_until(answered_or_ended, START_TIMEOUT_S) and misses < MISSES:
        return
    what = f"did not answer within {START_TIMEOUT_S:g} s" if misses < MISSES else "ended"
    # A daemon that ends before it opens its log has written to its output only.
    opened = log.exists() and log.stat().st_size > 0
    raise SandboxError(
        f"{program} on {node.name} {what}.\n{tail(log if opened else log.with_suffix('.out'))}"
    )
