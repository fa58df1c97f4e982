"""Open the doors of a run, if it has any, and start its instances."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import RunPaths, serve_steps
from trtllm_hpc.runtime.certificate import make_certificate, take_certificate
from trtllm_hpc.runtime.door import DOOR_RESTARTS, SOCKETS_VARIABLE, Door, DoorRecord, write_key
from trtllm_hpc.runtime.front import FRONT_RESTARTS, Front, Gateway
from trtllm_hpc.runtime.heartbeat import watch_ranks
from trtllm_hpc.runtime.instances.instance import Instance, SupervisorOptions
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.process import start_bound, start_ticks
from trtllm_hpc.runtime.records import try_event
from trtllm_hpc.runtime.stop import SUPERVISOR_VARIABLE

_TICK_S = 0.2
_OPEN_TIMEOUT_S = 60.0
"""For the doors of the other nodes to open."""
_CLOSE_TIMEOUT_S = 10.0
_SETTLE_S = 1.0
"""For a signal to the job to arrive here, when something else has ended first."""


class Doors:
    """The door on this node, which knows the doors of the other nodes, and what stands behind it."""

    def __init__(self, paths: RunPaths, options: SupervisorOptions, is_signalled: Callable[[], bool]) -> None:
        self._paths, self._options, self._is_signalled = paths, options, is_signalled
        self.ports: dict[str, int] = {}
        self.certificate_name: str | None = None
        self.front: Front | None = None
        self.gateway: Gateway | None = None
        self._own: Door | None = None
        self._others: list[subprocess.Popen[bytes]] = []
        self._restarts = 0
        self._sockets: set[Path] = set()
        self._hint = f"read {paths.batch_log('door')}"

    def open(self) -> list[Instance]:
        """Open all of them; returns the instances, which are not started yet. Raises StartFailed."""
        options, paths = self._options, self._paths
        if options.door is None:
            return [Instance(number, step, None) for number, step in enumerate(serve_steps(options.count))]
        kinds = options.door.kinds
        self.ports = dict(zip(kinds, free_ports(len(kinds)), strict=True))
        if options.key:
            write_key(paths.key)
        if options.roles:
            write_key(paths.servers_key)
        if options.certificate is not None:
            self.certificate_name = take_certificate(paths, options.certificate)
        elif options.tls:
            make_certificate(paths, options.door.address)
        others = {node: instances for node, instances in options.leaders.items() if node != 0}
        for node, instances in others.items():
            paths.door_ports(node).unlink(missing_ok=True)
            words = [str(paths.script("door")), str(node), *map(str, instances)]
            self._others.append(start_bound(["bash", *words], os.environ))
        records = {node: self._record_of(node) for node in others}
        further: dict[str, str] = {}
        for record in records.values():
            further |= {name: f"{record.address}:{port}" for name, port in record.ports.items()}
        local, ports = options.leaders.get(0, ()), dict(self.ports)
        if options.roles:
            fronts = free_ports(1 + FRONT_RESTARTS)
            further |= {f"openai_front_{start}": f"127.0.0.1:{port}" for start, port in enumerate(fronts)}
            for numbers in options.roles.values():
                ports |= {
                    f"server_{it}": free for it, free in zip(numbers, free_ports(len(numbers)), strict=True)
                }
            servers = {
                role: [f"127.0.0.1:{ports[f'server_{it}']}" for it in numbers]
                for role, numbers in options.roles.items()
            }
            self.front = Front(paths, servers, fronts, options.hang_seconds)
        self._own = Door(paths, 0, options.door, ports, local, further)
        folders = {instance: self._own.sockets(instance) for instance in local}
        for node, record in records.items():
            folders |= {instance: Path(record.folder) / str(instance) for instance in others[node]}
        if "openai" in self.ports and "http" in self.ports:
            self.gateway = Gateway(paths, self._own.gateway)
        return [
            Instance(number, step, folders.get(number, self._own.sockets(number)))
            for number, step in enumerate(serve_steps(options.count))
        ]

    def _record_of(self, node: int) -> DoorRecord:
        """Return where the door of another node is, once it is open."""
        deadline = time.monotonic() + _OPEN_TIMEOUT_S
        while (record := DoorRecord.read(self._paths.door_ports(node))) is None:
            ended = any(door.poll() is not None for door in self._others)
            if ended or self._is_signalled() or time.monotonic() > deadline:
                raise StartFailed(f"the door of node {node} of the job did not open", hint=self._hint)
            time.sleep(_TICK_S)
        return record

    @property
    def is_open(self) -> bool:
        """Whether there is a door on this node."""
        return self._own is not None

    @property
    def own(self) -> Door:
        """The door on this node; it must be open."""
        assert self._own is not None
        return self._own

    def watch(self, *, may_restart: bool) -> bool:
        """Open an ended door again, or raise StartFailed; returns whether Slurm ends the job."""
        if self._own is None:
            return False
        ended = [door for door in self._others if door.poll() is not None]
        if self.own.is_open() and not ended:
            return False
        time.sleep(_SETTLE_S)
        # A door ends with 0 only after a signal: Slurm ends the job's steps.
        if self._is_signalled() or any(door.returncode == 0 for door in ended):
            return True
        if ended:
            raise StartFailed("the door of another node has ended", hint=self._hint)
        sentence = f"the door (HAProxy) ended by itself, with exit code {self.own.process.returncode}"
        if self._restarts >= DOOR_RESTARTS or not may_restart:
            raise StartFailed(sentence, hint=self._hint)
        self._restarts += 1
        try_event(self._paths, "serve", "door_restarted", why=sentence)
        self.own.restart()
        return False

    def missing_sockets(self, *, all_ready: bool) -> dict[str, str]:
        """Return what somebody has removed of this node's sockets, in a sentence, under ``sockets``."""
        seen = set() if self._own is None else set(self.own.folder.rglob("*"))
        # An instance that ends takes its sockets with it, and HAProxy renames its own.
        self._sockets = {it for it in self._sockets | seen if all_ready and it.suffix not in (".tmp", ".bak")}
        missing = sorted(map(str, self._sockets - seen))
        return {"sockets": f"sockets of the server were removed: {missing[0]}"} if missing else {}

    def remove_folder(self) -> None:
        """Let no further request reach a server, if a door is open on this node."""
        if self._own is not None:
            self._own.remove_folder()

    @property
    def pids(self) -> set[int]:
        """The processes of all doors."""
        own = set() if self._own is None else {self._own.process.pid}
        return own | {door.pid for door in self._others}

    def close(self) -> None:
        """Let open requests end, for a moment, and close all of them."""
        for part in (self.front, self.gateway, self._own):
            if part is not None:
                part.close()
        for door in self._others:
            door.terminate()
        for door in self._others:
            with suppress(subprocess.TimeoutExpired):
                door.wait(_CLOSE_TIMEOUT_S)


def start_instance(paths: RunPaths, instance: Instance, hang_seconds: float | None, own: Path) -> None:
    """Start the ranks of an instance; ``own`` is the supervisor's heartbeat."""
    paths.ready_record(instance.step).unlink(missing_ok=True)
    for record in paths.ranks.glob(f"{instance.step}_*.json"):
        record.unlink(missing_ok=True)
    instance.state, instance.over_since = "starting", None
    instance.leader = watch_ranks(paths, instance.step, range(1), hang_seconds, own)
    try_event(paths, "serve", "server_start", instance=instance.number)
    command = ["bash", str(paths.script("instance")), str(instance.number)]
    sockets = {} if instance.sockets is None else {SOCKETS_VARIABLE: str(instance.sockets)}
    supervisor = {SUPERVISOR_VARIABLE: f"{os.getpid()} {start_ticks(os.getpid())}"}
    instance.child = start_bound(command, {**os.environ, **sockets, **supervisor})
