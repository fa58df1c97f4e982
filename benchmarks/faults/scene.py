"""One run into which a fault is injected, and where its parts are."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.site import Site
from tests.slurm.conftest import Person, user_processes
from tests.slurm.test_backbone import server_process
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import RankRecord
from trtllm_hpc.sandbox import Node


@dataclass
class Scene:
    """One run, from before its submission to after its end."""

    site: Site
    person: Person
    sections: dict[str, Any]
    """Of the job file; changed only before the submission."""
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
        record = RankRecord.read(self.paths.rank_record("serve", rank))
        assert record is not None
        return next(node for node in self.site.sandbox.nodes if node.name == record.host)

    def job(self, stage: str) -> str:
        """The id of a stage's job."""
        return str(json.loads(self.paths.jobs.read_text())["stages"][stage]["job_id"])

    def server(self, rank: int) -> int:
        """The process id of one rank's tritonserver."""
        return server_process(self.node_of(rank))

    def stub(self, rank: int, model: str) -> int:
        """The process id of a model's process, of which there may be several."""
        mark = re.compile(rf"/{model}(/|$)")
        found = [
            one.pid
            for one in user_processes(self.node_of(rank))
            if one.arguments[0].endswith("triton_python_backend_stub")
            and any(mark.search(argument) for argument in one.arguments[1:])
        ]
        assert found, [one.arguments for one in user_processes(self.node_of(rank))]
        return int(found[0])

    def supervisor(self, rank: int) -> int:
        """The process id of a rank's supervisor."""
        found = [
            one.pid
            for one in user_processes(self.node_of(rank))
            if "rank" in one.arguments and f"--rank={rank}" in one.arguments
        ]
        assert found
        return int(found[0])

    def step_daemon(self, rank: int) -> int:
        """The process id of the slurmstepd above a rank."""
        node = self.node_of(rank)
        daemons = {one.pid for one in node.processes() if one.arguments[0].startswith("slurmstepd")}
        pid = self.supervisor(rank)
        while pid not in daemons:
            status = Path(f"/proc/{pid}/status").read_text()
            pid = int(re.findall(r"^PPid:\s+(\d+)", status, re.MULTILINE)[0])
            assert pid > 1
        return pid
