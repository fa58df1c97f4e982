"""The ranks of one server, with a stand-in for the server at the process boundary."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.waiting import eventually
from trtllm_hpc.runtime.leader import ReadyRecord
from trtllm_hpc.runtime.node import SCRATCH, SHM
from trtllm_hpc.runtime.records import Endpoint, RankRecord
from trtllm_hpc.runtime.server_spec import ServerSpec, literal

if TYPE_CHECKING:
    from tests.runtime.conftest import Runtime


@dataclass
class Ranks:
    """Ranks of one server, started as ``rank.sh`` does."""

    runtime: Runtime
    program: Path
    ports: list[int]

    @property
    def prefix(self) -> str:
        return f"trtTest{os.getpid()}_0_"

    def started_file(self, rank: int) -> Path:
        return self.runtime.paths.folder / f"started_{rank}"

    def start(
        self,
        rank: int = 0,
        *,
        world: int = 1,
        behaviour: str = "",
        server: str | None = None,
        environment: dict[str, str] | None = None,
        words: tuple[str, ...] = (),
        driver: Literal["triton", "openai"] = "triton",
        model: str | None = None,
        supervisor: dict[str, Any] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a rank; with the options of a ``supervisor`` as the only rank of the run's only instance."""
        prefix = f"{self.prefix}{rank}_"
        given = {"ready_timeout_seconds": 30, **options}
        extra = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        program = literal(server or str(self.program))
        own = ["--model-repository={repository}"] if driver == "triton" else []
        spec = ServerSpec(
            driver=driver,
            leader=[program, *own, *map(literal, words), f"--http-port={self.ports[0]}"],
            worker=[program, *own, *map(literal, words), "--load-model=tensorrt_llm"],
            model=model,
        )
        spec.write(self.runtime.paths.server())
        http, grpc, metrics, rendezvous = map(str, self.ports)
        command = [
            "rank",
            f"--rank={rank}",
            f"--world-size={world}",
            f"--ranks-per-node={world}",
            *extra,
            f"--spec={self.runtime.paths.server()}",
        ]
        if supervisor is not None:
            script = self.runtime.paths.script("instance")
            script.write_text(f"exec {shlex.join(self.runtime.command(*command))}\n")
            run = {"count": 1, "restarts": 0, "leaders": "0:0", **supervisor}
            command = ["instances", *(f"--{name.replace('_', '-')}={value}" for name, value in run.items())]
        return self.runtime.start(
            *command,
            FAKE=behaviour,
            FAKE_STARTED=str(self.started_file(rank)),
            FAKE_PREFIX=prefix,
            TRTLLM_HPC_JOB_ID=f"Test{os.getpid()}",
            TRTLLM_HPC_INSTANCE="0",
            TRTLLM_HPC_GRPC_PORT=grpc,
            TRTLLM_HPC_METRICS_PORT=metrics,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=rendezvous,
            **{"TRTLLM_HPC_ADDRESS": "127.0.0.1", "TRTLLM_HPC_HTTP_PORT": http, **(environment or {})},
        )

    def facts(self, rank: int = 0) -> dict[str, Any]:
        """What the server was started with, once it runs."""
        assert eventually(self.started_file(rank).exists)
        found: dict[str, Any] = json.loads(self.started_file(rank).read_text())
        return found

    def record(self, rank: int = 0) -> RankRecord:
        found = RankRecord.read(self.runtime.paths.rank_record("serve", rank))
        assert found is not None
        return found

    def ready(self) -> ReadyRecord:
        """What rank 0 records once its server is ready."""
        found = eventually(lambda: ReadyRecord.read(self.runtime.paths.ready_record("serve")))
        assert isinstance(found, ReadyRecord)
        return found

    def endpoint(self) -> Endpoint:
        """The endpoint, once the supervisor has published it."""
        found = eventually(lambda: Endpoint.read(self.runtime.paths.endpoint))
        assert isinstance(found, Endpoint)
        return found

    def left(self) -> list[str]:
        """What is left on this machine."""
        return [
            str(file) for folder in (SHM, SCRATCH) for file in folder.iterdir() if self.prefix in file.name
        ]


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    return process.returncode, output + errors
