"""The class Sandbox: start a sandbox, stop it, and show its status."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from typing import Any

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.paths import read_json, write_text
from trtllm_hpc.runtime.node import SCRATCH, remove_leftovers
from trtllm_hpc.sandbox import nodes, requirements
from trtllm_hpc.sandbox.cluster import (
    Cluster,
    Status,
    check_pmix,
    connect_nodes,
    free_subnet,
    remove_interface,
    start_daemons,
    write_files,
)
from trtllm_hpc.sandbox.hosts import JOB_IDS, ROOT, Folder, Shape, check_name
from trtllm_hpc.sandbox.nodes import Node, end_all, marked_processes
from trtllm_hpc.sandbox.processes import Progress, lock, silent

DEFAULT_GPUS = 4
"""Default number of GPUs per node; without real GPUs they exist only in Slurm."""


class Sandbox:
    """A Slurm cluster on this machine, identified by its name. Creating the object starts nothing.

    Raises SandboxError unless the name consists of up to 32 lower-case letters, digits and inner hyphens.
    """

    def __init__(self, name: str = "default") -> None:
        self.name = check_name(name)
        self.folder = Folder(name)
        self.slurm_conf = self.folder.slurm_conf
        """Value of SLURM_CONF for this sandbox."""

    def __repr__(self) -> str:
        return f"Sandbox({self.name!r})"

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which Slurm's commands use this sandbox."""
        return {"SLURM_CONF": str(self.slurm_conf)}

    @property
    def layout(self) -> Cluster | None:
        """Hosts and addresses of the sandbox; ``None`` if there is no sandbox of this name."""
        raw = self._state()
        if raw is None:
            return None
        shape = Shape(raw["nodes"], raw["gpus_per_node"], raw.get("real_gpus", False))
        return Cluster(self.name, shape, raw["subnet"], tuple(raw.get("machine_gpus", ())))

    @property
    def nodes(self) -> list[Node]:
        """The compute nodes; empty if there is no sandbox of this name."""
        layout = self.layout
        return [] if layout is None else layout.nodes

    @property
    def head(self) -> Node:
        """The node of slurmctld, slurmdbd, MariaDB and munge. Raises SandboxError if there is no sandbox."""
        layout = self.layout
        if layout is None:
            raise SandboxError(f"There is no sandbox called {self.name}.", hint=self._command("up"))
        return layout.head

    def status(self) -> Status:
        """Return the status of the sandbox, of its daemons and nodes, without changing anything."""
        if not marked_processes(self.folder):
            return Status(self.name, "down")
        raw, layout = self._state(), self.layout
        if raw is None or layout is None:
            return Status(self.name, "degraded", problems=("its state file is gone",))
        return layout.status() if raw["complete"] else Status(self.name, "starting")

    def up(
        self,
        nodes: int = 2,
        gpus_per_node: int | None = None,
        *,
        real_gpus: bool = False,
        tell: Progress = silent,
    ) -> bool:
        """Start the sandbox and wait until its nodes are idle; return whether anything had to be started.

        Args:
            nodes: number of nodes, 1 to 32.
            gpus_per_node: 0 to 16, by default 4; with ``real_gpus`` by default all GPUs, divided among
                the nodes.
            real_gpus: whether the GPUs are the machine's own; otherwise they exist only in Slurm.
            tell: receives a few words before each wait.

        Raises SandboxError if the sandbox cannot start here, in which case nothing of it is left, or if it is
        up with another shape.
        """
        requirements.check_platform()
        requirements.check_root()
        if real_gpus:
            shape = requirements.real_shape(nodes, gpus_per_node)
        else:
            shape = Shape(nodes, DEFAULT_GPUS if gpus_per_node is None else gpus_per_node)
        with self._locked(tell):
            if self._is_up_as(shape):
                return False
            requirements.check_packages()
            requirements.check_kernel()
            self._remove()
            try:
                self._start(shape, tell)
            except BaseException:  # after Ctrl-C, too, nothing may be left behind
                tell("stopping what was started")
                self._remove()
                raise
        return True

    def down(self, *, tell: Progress = silent) -> bool:
        """Remove every trace of the sandbox in any state; return whether there was anything to remove.

        Raises SandboxError if this is not root, or a process cannot be killed.
        """
        requirements.check_root()
        existed = self.folder.path.exists() or bool(marked_processes(self.folder))
        with self._locked(tell):
            self._remove()
        return existed

    def _state(self) -> dict[str, Any] | None:
        raw = read_json(self.folder.state)
        return raw if isinstance(raw, dict) else None

    def _command(self, verb: str) -> str:
        option = "" if self.name == "default" else f" --name {self.name}"
        return f"trtllm-hpc sandbox {verb}{option}"

    def _is_up_as(self, shape: Shape) -> bool:
        """Return whether the sandbox is up with this shape; leftovers of a killed `up` do not count.

        Raises SandboxError if the sandbox is up with another shape, or is broken.
        """
        status = self.status()
        # This process holds the lock, so a command that was starting the sandbox has ended.
        if status.state in ("down", "starting"):
            return False
        again = f"{self._command('down')} && {self._command('up')}"
        again += f" --nodes {shape.nodes} --gpus-per-node {shape.gpus_per_node}"
        again += " --gpus real" * shape.real_gpus
        layout = self.layout
        if layout is not None and layout.shape != shape:
            raise SandboxError(
                f"The sandbox {self.name} is up with another shape: {layout.shape}, not {shape}.", hint=again
            )
        if status.state == "degraded":
            broken = "; ".join(status.problems)
            raise SandboxError(f"The sandbox {self.name} is broken: {broken}.", hint=again)
        return True

    def _start(self, shape: Shape, tell: Progress) -> None:
        with lock("state folders"):
            self.folder.path.mkdir(mode=0o755, parents=True)
            # Choose a subnet that neither the machine nor another sandbox uses. The state file claims the
            # subnet, because a sandbox that is being started has no route yet.
            others = (read_json(state) for state in ROOT.glob(f"*/{self.folder.state.name}"))
            subnet = free_subnet([other["subnet"] for other in others if other])
            cluster = Cluster(self.name, shape, subnet, requirements.gpu_devices() if shape.real_gpus else ())
            self._write_state(cluster, complete=False)
        write_files(cluster)
        tell(f"namespaces and network {cluster.subnet}.0/24")
        with ExitStack() as stack:
            hosts = (cluster.head, *cluster.nodes)
            starting = [stack.enter_context(nodes.start(node, cluster.environment)) for node in hosts]
            for node, process in zip(hosts, starting, strict=True):
                nodes.await_mounts(node, process)
            check_pmix(cluster)
            connect_nodes(cluster)
            start_daemons(cluster, tell)
            for process in starting:
                nodes.keep(process)
        self._write_state(cluster, complete=True)

    def _write_state(self, layout: Cluster, *, complete: bool) -> None:
        addresses = {"subnet": layout.subnet, "machine_gpus": layout.machine_gpus}
        record = {**asdict(layout.shape), **addresses, "complete": complete}
        write_text(self.folder.state, json.dumps(record) + "\n", mode=0o644)

    def _remove(self) -> None:
        layout = self.layout
        end_all(self.folder)
        if layout is not None:
            for file in SCRATCH.iterdir():
                job = re.match(r"trt(\d+)_", file.name)
                if job and 0 <= int(job[1]) - layout.first_job_id < JOB_IDS:
                    remove_leftovers(job[0])
        remove_interface(self.name)
        with lock("state folders"), suppress(FileNotFoundError):
            shutil.rmtree(self.folder.path)
            with suppress(OSError):  # the folder has other sandboxes
                ROOT.rmdir()

    @contextmanager
    def _locked(self, tell: Progress) -> Iterator[None]:
        """Lock this sandbox against other commands."""
        previous = os.umask(0o022)  # root's own umask might make files unreadable for users
        try:
            with lock(f"sandbox {self.name}", tell):
                yield
        finally:
            os.umask(previous)
