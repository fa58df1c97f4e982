"""The network, nodes and daemons of a sandbox: start them, and check which of them answer.

The network is a bridge in the head's network namespace, connected to the machine by a veth pair. The bridge
is not on the machine itself, where a firewall (Docker's, for example) would filter the traffic between the
nodes.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path

from trtllm_hpc.errors import SandboxError, SandboxImpossible
from trtllm_hpc.paths import write_text
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.hosts import JOB_IDS, POOLS, Folder, Shape, interface_name
from trtllm_hpc.sandbox.nodes import Node, tail
from trtllm_hpc.sandbox.processes import Progress

PARTITIONS = ("batch", "debug")
"""Partitions of every sandbox; the first is the default."""

START_TIMEOUT_S = 60.0
"""Seconds for the start of a daemon, which takes a second or two on an idle machine."""

HEALTHY = ("idle", "mixed", "allocated", "completing", "reserved", "planned")
"""States in sinfo of a node that takes jobs; a trailing ``*`` means that the node does not respond."""


@dataclass(frozen=True)
class NodeStatus:
    """Status of a compute node."""

    name: str
    address: str
    state: str
    """State of the node in sinfo."""
    answers: bool
    """Whether the node's slurmd accepts connections; sinfo shows a lost slurmd only after a while."""
    gpus: tuple[str, ...] = ()
    """Device files of the node's real GPUs, such as ``nvidia0``; empty if its GPUs exist only in Slurm."""


@dataclass(frozen=True)
class Status:
    """The state of a sandbox, of its daemons and of its nodes."""

    name: str
    state: str
    """``up``, ``down``, ``starting`` (another command is starting it) or ``degraded``."""
    gpus_per_node: int = 0
    real_gpus: bool = False
    """Whether the GPUs are those of this machine; otherwise they exist only in Slurm."""
    slurm_conf: str = ""
    """Value of ``SLURM_CONF`` for the sandbox's Slurm; empty if the sandbox is down."""
    partitions: tuple[str, ...] = ()
    logs: str = ""
    """Folder of the daemons' logs."""
    daemons: dict[str, bool | None] = field(default_factory=dict)
    """Whether each daemon answers; ``None`` if only root can find out."""
    nodes: tuple[NodeStatus, ...] = ()
    problems: tuple[str, ...] = ()
    """Faults, in a few words each."""


@dataclass(frozen=True)
class Cluster:
    """The hosts and addresses of a sandbox, and its Slurm."""

    name: str
    shape: Shape
    subnet: str
    """The first three numbers of a /24, such as ``10.97.0``."""
    machine_gpus: tuple[str, ...] = ()
    """Device files of all GPUs of the machine, such as ``nvidia0``; empty for a shape without real GPUs."""

    @property
    def folder(self) -> Folder:
        """The state folder."""
        return Folder(self.name)

    @property
    def head(self) -> Node:
        """The head node, which runs munge, the database, slurmdbd and slurmctld, and has the bridge."""
        return Node(f"sbx-{self.name}-head", f"{self.subnet}.1", self.folder)

    @property
    def nodes(self) -> list[Node]:
        """The compute nodes, which run slurmd."""
        return [
            Node(f"sbx-{self.name}-n{index}", f"{self.subnet}.{10 + index}", self.folder)
            for index in range(1, self.shape.nodes + 1)
        ]

    def gpus_of(self, node: str) -> tuple[str, ...]:
        """Return the device files of a compute node's GPUs; empty if its GPUs exist only in Slurm."""
        index = [host.name for host in self.nodes].index(node)
        count = self.shape.gpus_per_node
        return self.machine_gpus[index * count : (index + 1) * count]

    @property
    def hides_gpus(self) -> bool:
        """Whether the machine has GPUs that a node must not see, because they belong to other nodes."""
        return len(self.machine_gpus) > self.shape.gpus_per_node

    @property
    def first_job_id(self) -> int:
        """Slurm's FirstJobId, different in every running sandbox.

        All nodes see the machine's ``/tmp``, where the names of ranks' folders contain the job ID.
        """
        pool, number = self.subnet.rsplit(".", 1)
        return 1 + JOB_IDS * (256 * POOLS.index(pool) + int(number))

    @property
    def cluster(self) -> str:
        """Slurm's ClusterName, which is part of the names of database tables."""
        return "sbx_" + self.name.replace("-", "_")

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of the daemons, so that the environment of `up` does not leak into jobs."""
        return {
            "PATH": processes.search_path(),
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.folder.slurm_conf),
            # slurmdbd.conf cannot name a socket, but the client library reads this variable.
            "MYSQL_UNIX_PORT": str(self.folder.database_socket),
        }

    def slurm(self, *arguments: str) -> str:
        """Run one of Slurm's commands on the machine, outside the sandbox's nodes, as any user would."""
        return processes.run(arguments, timeout_s=20, environment=self.environment)

    def munge_answers(self) -> bool:
        """Return whether munged signs a credential."""
        path = self.folder.munge_socket
        return _listens(path) and self._answer("munge", "--no-input", f"--socket={path}") is not None

    def database_answers(self) -> bool | None:
        """Return whether MariaDB greets a client; ``None`` if this is not root, who alone can find out."""
        if os.geteuid() != 0:
            return None
        # The socket is in a file system that is mounted only on the head.
        return _listens(Path(f"/proc/{self.head.pid}/root{self.folder.database_socket}"), greets=True)

    def accounting_answers(self) -> bool:
        """Return whether slurmdbd accepts connections."""
        return self._accepts(self.head, 6819)

    def node_answers(self, node: Node) -> bool:
        """Return whether a node's slurmd accepts connections."""
        return self._accepts(node, 6818)

    def controller_answers(self) -> bool:
        """Return whether slurmctld is up."""
        # Connect first, because scontrol alone would retry for most of a minute.
        reachable = self._accepts(self.head, 6817) and self.munge_answers()
        return reachable and self._answer("scontrol", "ping") is not None

    def node_states(self) -> dict[str, str]:
        """Return the state of each node in sinfo; empty if slurmctld does not answer."""
        states = self._answer("sinfo", "--Node", "--noheader", "--format=%N %T") or ""
        return dict(line.split(" ", 1) for line in states.split("\n") if " " in line)

    def status(self) -> Status:
        """Return which daemons and nodes answer, and the faults."""
        daemons = {
            "munged": self.munge_answers(),
            "mariadbd": self.database_answers(),
            "slurmdbd": self.accounting_answers(),
            "slurmctld": self.controller_answers(),
        }
        states = self.node_states() if daemons["slurmctld"] else {}
        nodes = tuple(
            NodeStatus(
                node.name,
                node.address,
                "gone" if node.pid is None else states.get(node.name, "unknown"),
                self.node_answers(node),
                self.gpus_of(node.name),
            )
            for node in self.nodes
        )
        problems = [f"{daemon} does not answer" for daemon, answers in daemons.items() if answers is False]
        problems += [f"slurmd on {node.name} does not answer" for node in nodes if not node.answers]
        problems += [f"{node.name} is {node.state}" for node in nodes if node.state not in HEALTHY]
        return Status(
            name=self.name,
            state="degraded" if problems else "up",
            gpus_per_node=self.shape.gpus_per_node,
            real_gpus=self.shape.real_gpus,
            slurm_conf=str(self.folder.slurm_conf),
            partitions=PARTITIONS,
            logs=str(self.folder.logs),
            daemons=daemons,
            nodes=nodes,
            problems=tuple(problems),
        )

    def _accepts(self, node: Node, port: int) -> bool:
        interface = interface_name(self.name).encode()
        with socket.socket() as client:
            client.settimeout(2)
            try:
                # Bind to the interface: the address of a dead sandbox would otherwise use the default route.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface)
                client.connect((node.address, port))
            except OSError:
                return False
        return True

    def _answer(self, *arguments: str) -> str | None:
        """Return the output of one of Slurm's commands; ``None`` if it fails."""
        try:
            return self.slurm(*arguments)
        except SandboxError:
            return None


def _listens(path: Path, *, greets: bool = False) -> bool:
    """Return whether a server accepts connections on a Unix socket. With ``greets``, it must also greet."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        try:
            client.connect(str(path))
            return not greets or bool(client.recv(1))
        except OSError:
            return False


def check_pmix(cluster: Cluster) -> None:
    """Raise SandboxImpossible if Slurm was built without PMIx, as Ubuntu 22.04's was.

    srun can answer before any daemon runs, because it needs only the configuration.
    """
    if "pmix" not in cluster.slurm("srun", "--mpi=list"):
        raise SandboxImpossible(
            "This machine's Slurm was built without PMIx, which starts the ranks. "
            "The packages of Debian 12, Debian 13 and Ubuntu 24.04 have it; Ubuntu 22.04's do not.",
            hint="trtllm-hpc submit tiny-llama --cluster local",
        )


def start_daemons(cluster: Cluster, tell: Progress) -> None:
    """Start every daemon and return when the nodes are idle; ``tell`` receives each step.

    Raises SandboxError, with the end of the log, if a daemon died or did not answer in time.
    """
    folder, head, environment = cluster.folder, cluster.head, cluster.environment
    tell("munge")
    munged = [
        *("munged", "--foreground", f"--key-file={folder.munge_key}", f"--socket={folder.munge_socket}"),
        *(f"--pid-file={folder.munge}/munged.pid", f"--seed-file={folder.munge}/munged.seed"),
        f"--log-file={folder.log('munged')}",
    ]
    head.start_daemon(munged, folder.output("munged"), environment)
    tell("MariaDB (a new database)")
    new_database = [
        *("mariadb-install-db", f"--defaults-file={folder.database_conf}", "--user=root"),
        # "normal" means root without a password: only root on the head can reach the socket.
        *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
    ]
    head.run(new_database, timeout_s=START_TIMEOUT_S, environment=environment)
    # Make slurmdbd's database, which is just a folder. slurmdbd could make it, but its first connection,
    # without the database, fails, and after that MariaDB 11.8.9's client library (Connector/C 3.4.10) refuses
    # all results.
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
        idle = partial(lambda host: cluster.node_states().get(host.name) == "idle", node)
        _await(node, "slurmd", idle, folder.log(f"slurmd-{node.name}"))


def _await(node: Node, program: str, answers: Callable[[], bool], log: Path) -> None:
    """Wait until a daemon answers; raise SandboxError with the end of its log if it does not."""
    if processes.wait_until(answers, START_TIMEOUT_S):
        return
    # A daemon that ended before it opened its log has written only to its output.
    opened = log.exists() and log.stat().st_size > 0
    raise SandboxError(
        f"{program} on {node.name} did not answer within {START_TIMEOUT_S:g} s.\n"
        f"{tail(log if opened else log.with_suffix('.out'))}"
    )


# Network -------------------------------------------------------------------------------------


def free_subnet(claimed: Iterable[str]) -> str:
    """Return the first three numbers of a /24 that is neither routed nor claimed; raise SandboxError."""
    routes = json.loads(processes.run(["ip", "-json", "-4", "route", "show", "table", "all"]) or "[]")
    routed = []
    for route in routes:
        # Skip the default route, which covers every network.
        if route["dst"] not in ("default", "0.0.0.0/0"):
            with suppress(ValueError):
                routed.append(ipaddress.ip_network(route["dst"], strict=False))
    taken = [*routed, *(ipaddress.ip_network(f"{subnet}.0/24") for subnet in claimed)]
    for pool in POOLS:
        for number in range(256):
            candidate = ipaddress.ip_network(f"{pool}.{number}.0/24")
            if not any(candidate.overlaps(network) for network in taken):
                return f"{pool}.{number}"
    pools = ", ".join(f"{pool}.0.0/16" for pool in POOLS)
    raise SandboxError(
        f"Routes of this machine cover all of {pools}.",
        hint="ip route shows them; trtllm-hpc sandbox down ends a sandbox",
    )


def connect_nodes(cluster: Cluster) -> None:
    """Make the bridge in the head, and connect the machine and every node to it by veth pairs.

    The interface of a node is called ``eth0``.
    """
    head, nodes = cluster.head, cluster.nodes
    interface = interface_name(cluster.name)
    _ip(
        f"link add {interface} type veth peer name machine netns {head.pid}",
        f"address add {cluster.subnet}.254/24 dev {interface}",
        f"link set {interface} up",
    )
    lines = [
        "link add bridge0 type bridge forward_delay 0",
        f"address add {head.address}/24 dev bridge0",
        "link set bridge0 up",
        "link set machine master bridge0",
        "link set machine up",
    ]
    for index, node in enumerate(nodes, start=1):
        lines += [
            f"link add n{index} type veth peer name eth0 netns {node.pid}",
            f"link set n{index} master bridge0",
            f"link set n{index} up",
        ]
    _ip(*lines, inside=head)
    for node in nodes:
        _ip(f"address add {node.address}/24 dev eth0", "link set eth0 up", inside=node)


def remove_interface(name: str) -> None:
    """Remove the machine's end of the veth pair; the rest of the network ends with the namespaces."""
    interface = interface_name(name)
    if _exists(interface):
        with suppress(SandboxError):  # the kernel may just be removing the interface
            _ip(f"link delete {interface}")
    if not processes.wait_until(lambda: not _exists(interface), 10):
        raise SandboxError(
            f"The interface {interface} cannot be removed.", hint=f"ip link delete {interface}"
        )


def _exists(interface: str) -> bool:
    try:
        socket.if_nametoindex(interface)
    except OSError:
        return False
    return True


def _ip(*lines: str, inside: Node | None = None) -> None:
    """Run several `ip` commands in one process, in a node's network namespace if a node is given."""
    enter = [] if inside is None else ["nsenter", f"--target={inside.pid}", "--net", "--"]
    processes.run([*enter, "ip", "-batch", "-"], text_in="\n".join(lines) + "\n")


# Files of the state folder ----------------------------------------------------------------------

CPUS_PER_NODE = 16
"""Processors of each node in Slurm's configuration; in fact all nodes share the machine's."""

SHM_SIZE = "4g"
"""Size of /dev/shm on a node."""

DEVICES = Path("/dev")
"""Folder of the machine's device files."""


def write_files(cluster: Cluster) -> None:
    """Write the files that the daemons read: readable for all users, except the key and slurmdbd.conf."""
    folder = cluster.folder
    for path in (folder.etc, folder.logs, folder.private, folder.munge, folder.devices):
        path.mkdir(mode=0o755)
    folder.controller.mkdir(mode=0o700)
    key = os.open(folder.munge_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(key, "wb") as file:
        file.write(os.urandom(128))
    for index in range(cluster.shape.gpus_per_node):
        # The files have the device numbers of /dev/null, so that opening them does no harm. Real GPUs need
        # these files as well: on every node Slurm must count from 0, as CUDA does, but the machine's device
        # files do not.
        os.mknod(folder.device(index), 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    values: dict[str, object] = {
        "folder": folder,
        "layout": cluster,
        "cpus": CPUS_PER_NODE,
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "shm_size": SHM_SIZE,
        "machine_devices": DEVICES,
        "machine_hosts": Path("/etc/hosts").read_text(errors="replace").rstrip("\n"),
        "version": slurm_version(),
        # The base interpreter, because a virtual environment may be removed while the sandbox is up.
        "python": os.path.realpath(sys.executable),
        "slurmstepd": processes.which("slurmstepd"),
    }
    for path, mode in {
        folder.slurm_conf: 0o644,
        folder.etc / "gres.conf": 0o644,
        folder.etc / "cgroup.conf": 0o644,
        folder.etc / "slurmdbd.conf": 0o600,
        folder.database_conf: 0o644,
        folder.hosts: 0o644,
        folder.init: 0o644,
        folder.stepd_source: 0o644,
        folder.epilog_source: 0o644,
    }.items():
        write_text(path, rendered(path.name, values), mode=mode)


def slurm_version() -> tuple[int, int]:
    """Return Slurm's release as ``(year, month)``, e.g. (22, 5); raise SandboxError if slurmd prints none."""
    output = processes.run([processes.which("slurmd") or "slurmd", "-V"])
    match = re.search(r"(\d+)\.(\d+)", output)
    if match is None:
        raise SandboxError(f"`slurmd -V` prints no version: {output.strip()!r}.")
    return int(match[1]), int(match[2])


def rendered(name: str, values: dict[str, object]) -> str:
    """Render one of the templates in ``slurm/sandbox``."""
    from trtllm_hpc.render.environment import environment

    source = resources.files("trtllm_hpc.slurm").joinpath(f"sandbox/{name}.j2")
    return environment().from_string(source.read_text(encoding="utf-8")).render(values)
