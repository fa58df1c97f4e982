"""One run into which a fault is injected, where its parts are, and what the catalogue calls injections."""

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
"""How long a process may take that is about to begin."""


@dataclass
class Scene:
    """One run, from before its submission to after its end."""

    site: Site
    person: Person
    sections: dict[str, Any]
    """Of the job file; changed only before the submission."""
    is_shared: bool = False
    """Whether other faults follow in the run, so that a changed file has to come back."""
    words: list[str | Path] = field(default_factory=list)
    """Further words for ``submit``."""
    job_file: Path = Path()
    runs: Path = Path()
    """Folder of the run folders."""
    run: RunPaths | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def paths(self) -> RunPaths:
        assert self.run is not None
        return self.run

    def node_of(self, rank: int) -> Node:
        """The node of one rank of the server."""
        file = self.paths.rank_record("serve", rank)
        assert eventually(file.exists, _APPEARS_S), f"rank {rank} did not begin"
        record = RankRecord.read(file)
        assert record is not None
        return next(node for node in self.site.sandbox.nodes if node.name == record.host)

    def nodes(self, where: str) -> Sequence[Node]:
        """Nodes by a word: all ``nodes``, the second one (``node1``), or that of a rank (``rank1``)."""
        every = self.site.sandbox.nodes
        if where == "nodes":
            return every
        number = int(where[-1])
        return [self.node_of(number) if where.startswith("rank") else every[number]]

    def filled(self, text: str) -> str:
        """A command or pattern of the catalogue with the values of its names in braces."""
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
        """The user's processes on some nodes, or those of a run without Slurm on this machine."""
        if self.person.profile.stem != "local":
            return [one for node in self.nodes(where) for one in user_processes(node)]
        mark = str(self.person.folder).encode()
        mine = (it for it in processes.all_processes() if processes.owner(it.pid) == USER.pw_uid)
        return sorted((it for it in mine if mark in _environment(it.pid)), key=lambda it: it.pid)

    def find(self, *words: str) -> int:
        """The process id of a process, which may be about to begin.

        Each word is ``rank=1`` or ``node=1`` for where it runs, ``name=bash`` for its program, or a pattern
        of one of its arguments.
        """
        named = dict(word.split("=") for word in words if word.startswith(("rank=", "node=", "name=")))
        patterns = [self.filled(word) for word in words if word.partition("=")[0] not in named]
        where = next((f"{kind}{number}" for kind, number in named.items() if kind != "name"), "nodes")
        deadline = time.monotonic() + _APPEARS_S
        while time.monotonic() < deadline:
            for one in self.processes(where):
                has_all = all(any(fnmatchcase(it, pattern) for it in one.arguments) for pattern in patterns)
                if has_all and named.get("name", "") in Path(one.arguments[0]).name:
                    return int(one.pid)
            time.sleep(0.1)
        raise AssertionError(f"no process {' '.join(words)}")


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


INJECTIONS: dict[str, Callable[..., AbstractContextManager[None]]] = {}
"""What the catalogue may name."""


def injection(
    function: Callable[Concatenate[Scene, _P], Iterator[None]],
) -> Callable[Concatenate[Scene, _P], AbstractContextManager[None]]:
    """Let the catalogue name a function; what stands after its ``yield`` takes the fault back."""
    made = INJECTIONS[function.__name__] = contextmanager(function)
    return made


@contextmanager
def injected(scene: Scene, commands: Sequence[str]) -> Iterator[None]:
    """Do what a row of the catalogue says, and take it back at the end."""
    with ExitStack() as stack:
        for command in commands:
            name, *words = shlex.split(command)
            stack.enter_context(INJECTIONS[name](scene, *words))
        yield


@injection
def shell(scene: Scene, where: str, command: str, undo: str = "") -> Iterator[None]:
    """A command of bash as root, on nodes or ``here``."""

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
