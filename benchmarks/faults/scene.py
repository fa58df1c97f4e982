"""A run into which a fault is injected, ways to find the run's parts, and the registry of injections."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from benchmarks.faults.site import Site
from tests.slurm.conftest import USER, Person, user_processes
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import RankRecord
from trtllm_hpc.sandbox import Node, processes

_P = ParamSpec("_P")
_APPEARS_S = 20.0
"""Longest wait in seconds for a process that is about to start."""


@dataclass
class Scene:
    """A run, from before its submission until after its end."""

    site: Site
    person: Person
    sections: dict[str, Any]
    """Sections of the job file; changed only before the submission."""
    is_shared: bool = False
    """Whether more faults follow in this run, so that an injection must restore a changed file."""
    words: list[str | Path] = field(default_factory=list)
    """Further arguments of ``submit``."""
    job_file: Path = Path()
    runs: Path = Path()
    """Folder of the run folders."""
    run: RunPaths | None = None
    """The run's folder; ``None`` until it exists."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the page."""

    @property
    def paths(self) -> RunPaths:
        assert self.run is not None
        return self.run

    def node_of(self, rank: int) -> Node:
        """Return the node of a rank of the server."""
        file = self.paths.rank_record("serve", rank)
        assert eventually(file.exists, _APPEARS_S), f"rank {rank} did not begin"
        record = RankRecord.read(file)
        assert record is not None
        return next(node for node in self.site.sandbox.nodes if node.name == record.host)

    def nodes(self, where: str) -> Sequence[Node]:
        """Return all nodes (``nodes``), a node by index (``node1``), or the node of a rank (``rank1``)."""
        every = self.site.sandbox.nodes
        if where == "nodes":
            return every
        number = int(where[-1])
        return [self.node_of(number) if where.startswith("rank") else every[number]]

    def filled(self, text: str) -> str:
        """Return a command or pattern of the catalogue, with values for the names in braces."""
        return text.format_map(self)

    def __getitem__(self, name: str) -> object:
        if name in ("build", "serve", "companion"):
            return json.loads(self.paths.jobs.read_text())["stages"][name]["job_id"]
        known: dict[str, Callable[[], object]] = {
            "run": lambda: self.paths.folder,
            "runs": lambda: self.runs,
            "folder": lambda: self.person.folder,
            "engine": lambda: self.sections["engine"]["directory"],
            "user": lambda: USER.pw_name,
            "node1": lambda: self.site.sandbox.nodes[1].name,
            "address0": lambda: self.node_of(1).run(["getent", "ahostsv4", self.node_of(0).name]).split()[0],
        }
        return known[name]()

    def processes(self, where: str = "nodes") -> list[Any]:
        """Return the user's processes on some nodes; without Slurm, the run's processes on this machine."""
        if self.person.profile.stem != "local":
            return [process for node in self.nodes(where) for process in user_processes(node)]
        mark = str(self.person.folder).encode()
        owned = (each for each in processes.all_processes() if processes.owner(each.pid) == USER.pw_uid)
        return sorted((each for each in owned if mark in _environment(each.pid)), key=lambda each: each.pid)

    def find(self, *words: str) -> int:
        """Wait for a process, and return its process ID.

        Args:
            words: ``rank=1`` or ``node=1`` selects the node, ``name=bash`` the program; any other word is a
                pattern that an argument of the process must match.
        """
        named = dict(word.split("=") for word in words if word.startswith(("rank=", "node=", "name=")))
        patterns = [self.filled(word) for word in words if word.partition("=")[0] not in named]
        where = next((f"{kind}{number}" for kind, number in named.items() if kind != "name"), "nodes")
        deadline = time.monotonic() + _APPEARS_S
        while time.monotonic() < deadline:
            for process in self.processes(where):
                words_of_process = process.arguments
                has_all = all(
                    any(fnmatchcase(word, pattern) for word in words_of_process) for pattern in patterns
                )
                if has_all and named.get("name", "") in Path(words_of_process[0]).name:
                    return int(process.pid)
            time.sleep(0.1)
        raise AssertionError(f"no process {' '.join(words)}")


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


INJECTIONS: dict[str, Callable[..., AbstractContextManager[None]]] = {}
"""Functions that the catalogue may use in ``inject`` and ``prepare``, by name."""


def injection(
    function: Callable[Concatenate[Scene, _P], Iterator[None]],
) -> Callable[Concatenate[Scene, _P], AbstractContextManager[None]]:
    """Register a function for the catalogue. The code after the function's ``yield`` undoes the fault."""
    manager = INJECTIONS[function.__name__] = contextmanager(function)
    return manager


@contextmanager
def injected(scene: Scene, commands: Sequence[str]) -> Iterator[None]:
    """Run the injections of a row of the catalogue, and undo them at the end."""
    with ExitStack() as stack:
        for command in commands:
            name, *words = shlex.split(command)
            stack.enter_context(INJECTIONS[name](scene, *words))
        yield


@injection
def shell(scene: Scene, where: str, command: str, undo: str = "") -> Iterator[None]:
    """Run a bash command as root on nodes or, with ``here``, on this machine; run ``undo`` at the end."""

    def run(line: str) -> None:
        if where == "here":
            assert os.system(f"bash -c {shlex.quote(line)}") == 0, line
            return
        for node in scene.nodes(where):
            node.run(["bash", "-c", line], timeout_s=60)

    undo = scene.filled(undo)
    run(scene.filled(command))
    try:
        yield
    finally:
        if undo:
            run(undo)
