"""One rank from its start: ready, or not started; and its launcher."""

from __future__ import annotations

import http.server
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import fake_server
from tests.runtime.ranks import Ranks, end
from tests.runtime.test_local_tasks import is_alive
from tests.upstream.llm_api import LAUNCHER
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.logs.diagnose import first_failure
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.runtime.process import descendants
from trtllm_hpc.runtime.records import add_event, read_events
from trtllm_hpc.runtime.stop import request_stop

# Ready ----------------------------------------------------------------------------------


def test_the_endpoint_is_published_when_every_model_is_ready_and_withdrawn_at_the_end(ranks: Ranks) -> None:
    paths = ranks.runtime.paths
    add_event(paths, "serve", "stage_begin")
    add_event(paths, "serve", "preflight_ok")
    process = ranks.start(supervisor={})
    ranks.facts()
    assert not paths.endpoint.exists(), "the port is open, but nothing is loaded"
    endpoint = ranks.endpoint()
    assert endpoint.models == ["ensemble", "tensorrt_llm"]
    assert [endpoint.http_port, endpoint.grpc_port, endpoint.metrics_port] == ranks.ports[:3]
    assert (endpoint.address, endpoint.job_id) == ("127.0.0.1", f"Test{os.getpid()}")
    assert set(endpoint.phases_s) == {"preflight", "launch", "load", "total"}
    assert endpoint.phases_s["load"] >= 0.5 and all(seconds >= 0 for seconds in endpoint.phases_s.values())
    request_stop(paths, by="companion", reason="it is done (exit code 0)")
    code, output = end(process)
    assert code == 0, output
    assert "stops: requested by companion, it is done (exit code 0)" in output
    assert output.rstrip().endswith("rank 0 ended (exit code 0): it is done")
    assert not paths.endpoint.exists()
    assert [event.name for event in read_events(paths, "serve")][2:] == [
        "server_start",
        "instance_ready",
        "ready",
        "server_stop",
    ]
    record = ranks.record()
    assert (record.stopped_by, record.exit_code) == ("companion", 0) and record.ended_at is not None
    assert first_failure(RunSnapshot(paths)) is None
    assert ranks.left() == []


def test_the_server_gets_its_world_and_its_arguments_as_they_are(ranks: Ranks) -> None:
    process = ranks.start(rank=1, world=2, behaviour="exit=3")
    facts = ranks.facts(1)
    environment = facts["environment"]
    repository = f"--model-repository={environment['TRTLLM_HPC_SCRATCH']}/repository"
    assert facts["argv"] == [repository, "--load-model=tensorrt_llm"]
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["LOCAL_RANK"]) == ("1", "2", "1")
    assert environment["GLOO_SOCKET_IFNAME"] == environment["NCCL_SOCKET_IFNAME"] == "lo"
    assert environment["TRTLLM_HPC_SCRATCH"].startswith("/tmp/trtTest")
    assert end(process)[0] == 3


def test_the_server_gets_the_interfaces_of_the_profile(ranks: Ranks) -> None:
    interfaces = {"TRTLLM_HPC_INTERFACES": "hsn0,hsn1"}
    process = ranks.start(rank=1, world=2, behaviour="exit=3", environment=interfaces)
    environment = ranks.facts(1)["environment"]
    assert environment["GLOO_SOCKET_IFNAME"] == environment["NCCL_SOCKET_IFNAME"] == "hsn0,hsn1"
    assert end(process)[0] == 3


@contextmanager
def answering(port: int) -> Iterator[None]:
    """Answers in the server's place from the start: it may itself need longer for that than it is given."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), fake_server.Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield
        finally:
            server.shutdown()


def test_threads_of_the_server_have_room_for_a_large_request(ranks: Ranks) -> None:
    """Triton 2.51 crashes where the body of a request does not fit onto a stack."""
    limits = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, limits[1]))
    try:
        process = ranks.start(rank=1, world=2, behaviour="exit=3")
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, limits)
    assert end(process)[0] == 3
    assert ranks.facts(1)["stack"] == 64 << 20


def test_a_server_that_is_not_ready_in_time_is_stopped_and_the_model_named(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_server, "BEHAVIOUR", ["stuck"])
    with answering(ranks.ports[0]):
        code, output = end(ranks.start(behaviour="mute", ready_timeout_seconds=1))
    assert code == ExitCode.READINESS
    assert "not ready within 1 s (not READY: tensorrt_llm)" in output
    assert ranks.record().reason == "the server was not ready within 1 s (not READY: tensorrt_llm)"
    assert not ranks.runtime.paths.ready_record("serve").exists() and ranks.left() == []


# A server that cannot be started --------------------------------------------------------


def test_a_missing_server_is_the_recorded_reason(ranks: Ranks) -> None:
    code, output = end(ranks.start(server="no-such-tritonserver"))
    assert code == ExitCode.START
    assert (
        "no program 'no-such-tritonserver'" in output and "set triton.server in the cluster profile" in output
    )
    failure = first_failure(RunSnapshot(ranks.runtime.paths))
    assert failure is not None and "no program 'no-such-tritonserver'" in failure.sentence
    assert ranks.left() == []


def test_a_step_with_other_tasks_than_ranks_starts_no_server(ranks: Ranks) -> None:
    code, output = end(ranks.start(world=2, environment={"SLURM_NTASKS": "3"}))
    assert code == ExitCode.START and "next: give srun in the run's scripts --ntasks=2 again" in output
    failure = first_failure(RunSnapshot(ranks.runtime.paths))
    assert failure is not None and "the step has 3 tasks, but the plan says 2 ranks" in failure.sentence
    assert not ranks.started_file(0).exists() and ranks.left() == []


# The LLM API's launcher ---------------------------------------------------------------------


@dataclass
class Launched:
    """Ranks that a stand-in of upstream's launcher starts."""

    ranks: Ranks
    over: Path

    def start(self, rank: int = 0, behaviour: str = "", **options: Any) -> subprocess.Popen[str]:
        environment = dict.fromkeys(("SLURM_PROCID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"), str(rank))
        environment["FAKE_LAUNCH_OVER"] = str(self.over)
        return self.ranks.start(
            rank, world=2, behaviour=behaviour, launcher=LAUNCHER, environment=environment, **options
        )


@pytest.fixture
def launched(ranks: Ranks, tmp_path: Path) -> Launched:
    return Launched(ranks, tmp_path / "workers end")


def test_a_launched_server_gets_its_arguments_unchanged_and_is_signalled(launched: Launched) -> None:
    """The program's name has a space in it, which the launcher would take apart."""
    ranks = launched.ranks
    worker, leader = launched.start(1), launched.start(0)
    assert ranks.ready().endpoint["http_port"] == ranks.ports[0]
    facts = ranks.facts()
    assert facts["argv"][1:] == [f"--http-port={ranks.ports[0]}"]
    assert "SLURM_PROCID" not in facts["environment"] and "PMIX_RANK" not in facts["environment"]
    assert "RANK" not in facts["environment"], "the launcher joins the ranks by itself"
    assert facts["environment"]["NCCL_SOCKET_IFNAME"] == "lo"
    request_stop(ranks.runtime.paths, by="companion", reason="it is done")
    assert end(leader)[0] == 0 and end(worker)[0] == 0
    assert ranks.record().exit_code == 0 and ranks.left() == []


def test_a_launcher_that_dies_ends_its_server(launched: Launched) -> None:
    process = launched.start()
    launched.ranks.ready()
    server = launched.ranks.facts()["pid"]
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(process.pid)}
    os.kill(next(pid for pid, words in commands.items() if b"nodes.py\0leader" in words), signal.SIGKILL)
    code, _ = end(process)
    assert code == 137
    assert eventually(lambda: not is_alive(server)) and launched.ranks.left() == []
