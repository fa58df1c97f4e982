"""One sandbox: up, down, and what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.paths import read_json, write_text
from trtllm_hpc.sandbox import files, machines, network, requirements, services
from trtllm_hpc.sandbox.cluster import Cluster
from trtllm_hpc.sandbox.layout import ROOT, Folder, Layout, Member, Shape, check_name, interface_name
from trtllm_hpc.sandbox.lock import lock
from trtllm_hpc.sandbox.machines import Machine, Starting
from trtllm_hpc.sandbox.status import Status, find_status

LOCK_TIMEOUT_S = 180.0
"""How long `up` and `down` wait for another `up` or `down` of the same sandbox."""

FURNISH_TIMEOUT_S = 20.0
END_TIMEOUT_S = 20.0


def _silent(_: str) -> None:
    """For callers who want no progress."""


class Sandbox:
    """A Slurm cluster on this machine, known by its name.

    Making the object touches nothing.

    Args:
        name: lower-case letters, digits and hyphens, up to 32 of them.

    Raises:
        SandboxError: the name cannot be one.
    """

    def __init__(self, name: str = "default") -> None:
        self.name = check_name(name)
        self.folder = Folder.of(name)

    def __repr__(self) -> str:
        return f"Sandbox({self.name!r})"

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF must be to use this sandbox."""
        return self.folder.slurm_conf

    def environment(self) -> dict[str, str]:
        """The variables that make Slurm's commands talk to this sandbox."""
        return {"SLURM_CONF": str(self.slurm_conf)}

    @property
    def layout(self) -> Layout | None:
        """Names and addresses, ``None`` if no sandbox of this name is there."""
        raw = self._state()
        if raw is None:
            return None
        return Layout(self.name, Shape(raw["nodes"], raw["gpus_per_node"]), raw["subnet"])

    @property
    def nodes(self) -> list[Machine]:
        """The nodes; none if no sandbox of this name is there."""
        layout = self.layout
        return [] if layout is None else [self._machine(member) for member in layout.nodes]

    @property
    def head(self) -> Machine:
        """Where slurmctld, slurmdbd, MariaDB and munge run.

        Raises:
            SandboxError: no sandbox of this name is there.
        """
        layout = self.layout
        if layout is None:
            raise SandboxError(f"There is no sandbox called {self.name}.", hint=self._command("up"))
        return self._machine(layout.head)

    def status(self) -> Status:
        """Whether it is up, with each daemon and node; asks, changes nothing."""
        raw = self._state()
        layout = self.layout
        cluster = None if layout is None else self._cluster(layout)
        return find_status(self.name, layout, cluster, complete=bool(raw and raw["complete"]))

    def up(
        self,
        nodes: int = 2,
        gpus_per_node: int = 4,
        *,
        tell: Callable[[str], None] = _silent,
    ) -> bool:
        """Start it and return when its nodes are idle.

        Args:
            nodes: how many, 1 to 32.
            gpus_per_node: how many each claims to have, 0 to 16.
            tell: called with a few words for each thing that is waited for.

        Returns:
            Whether anything had to be started.

        Raises:
            SandboxError: it cannot start here, one of another shape is up, or
                a daemon failed. Nothing of it is left then.
        """
        shape = Shape(nodes, gpus_per_node)
        requirements.check_platform()
        requirements.check_root()
        with self._locked(tell):
            if self._is_up_as(shape):
                return False
            requirements.check_packages()
            requirements.check_kernel()
            self._remove()
            try:
                self._start(shape, tell)
            except BaseException:  # Ctrl-C, too, must leave nothing behind
                tell("taking down what was started")
                self._remove()
                raise
        return True

    def down(self, *, tell: Callable[[str], None] = _silent) -> bool:
        """Remove every trace of it, whatever state it is in.

        Returns:
            Whether anything was there.

        Raises:
            SandboxError: not root, or something does not die.
        """
        requirements.check_root()
        if not self.folder.path.exists() and not machines.marked_processes(self.folder):
            network.remove(self.name)
            return False
        with self._locked(tell):
            self._remove()
        return True

    # Inside ----------------------------------------------------------------------------

    def _state(self) -> dict[str, Any] | None:
        raw = read_json(self.folder.state)
        return raw if isinstance(raw, dict) else None

    def _machine(self, member: Member) -> Machine:
        return Machine(member, self.folder)

    def _cluster(self, layout: Layout) -> Cluster:
        nodes = [self._machine(member) for member in layout.nodes]
        return Cluster(self.folder, self._machine(layout.head), nodes, interface_name(self.name))

    def _command(self, verb: str) -> str:
        chosen = "" if self.name == "default" else f" --name {self.name}"
        return f"trtllm-hpc sandbox {verb}{chosen}"

    def _is_up_as(self, shape: Shape) -> bool:
        """Whether it is up as wanted; what is left of a killed `up` counts as nothing.

        Raises:
            SandboxError: another shape is up, or it is not whole.
        """
        status = self.status()
        # The lock is ours: whoever was starting it has ended.
        if status.state in ("down", "starting"):
            return False
        again = f"{self._command('down')} && {self._command('up')}"
        again += f" --nodes {shape.nodes} --gpus-per-node {shape.gpus_per_node}"
        layout = self.layout
        if layout is not None and layout.shape != shape:
            raise SandboxError(
                f"The sandbox {self.name} is up with another shape: {layout.shape}, not {shape}.", hint=again
            )
        if status.state == "degraded":
            broken = "; ".join(status.problems)
            raise SandboxError(f"The sandbox {self.name} is not whole: {broken}.", hint=again)
        return True

    def _start(self, shape: Shape, tell: Callable[[str], None]) -> None:
        layout = self._choose_subnet(shape)
        cluster = self._cluster(layout)
        files.write_files(self.folder, layout)
        services.check_pmix(cluster)
        tell(f"namespaces and network {layout.subnet}.0/24")
        with ExitStack() as stack:
            members = [
                stack.enter_context(Starting(machine, cluster.environment))
                for machine in (cluster.head, *cluster.nodes)
            ]
            for member in members:
                member.wait(FURNISH_TIMEOUT_S)
            network.connect(layout, cluster.head, cluster.nodes)
            services.start(cluster, tell)
            for member in members:
                member.keep()
        self._write_state(layout, complete=True)

    def _choose_subnet(self, shape: Shape) -> Layout:
        """Take a subnet that neither the machine nor another sandbox uses.

        Writing it down is what claims it: sandboxes that start at the same
        moment have no routes yet.
        """
        with lock(ROOT, LOCK_TIMEOUT_S):
            others = (read_json(state) for state in ROOT.glob(f"*/{self.folder.state.name}"))
            layout = Layout(
                self.name, shape, network.free_subnet([other["subnet"] for other in others if other])
            )
            self._write_state(layout, complete=False)
        return layout

    def _write_state(self, layout: Layout, *, complete: bool) -> None:
        record = {**asdict(layout.shape), "subnet": layout.subnet, "complete": complete}
        write_text(self.folder.state, json.dumps(record) + "\n", mode=0o644)

    def _remove(self) -> None:
        machines.end_all(self.folder, END_TIMEOUT_S)
        network.remove(self.name)
        files.empty(self.folder)

    @contextmanager
    def _locked(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Alone with the state folder, which is removed at the end if it is empty then."""
        with files.umask(0o022):
            waiting = partial(tell, f"another `sandbox` command on {self.name}")
            with lock(self.folder.path, LOCK_TIMEOUT_S, waiting):
                try:
                    yield
                finally:
                    files.remove_if_empty(self.folder)
