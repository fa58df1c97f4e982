"""One rank from its start to its end, with a stand-in for the server at the process boundary."""

from __future__ import annotations

import http.server
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.runs.clock import Clock
from tests.runtime import fake_server
from tests.runtime.conftest import Runtime
from tests.runtime.test_local_tasks import is_alive
from tests.upstream.llm_api import LAUNCHER
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.logs.diagnose import first_failure
from trtllm_hpc.runtime import stop
from trtllm_hpc.runtime.engine_cache.cache import MANIFEST, Entry, Manifest
from trtllm_hpc.runtime.engine_cache.files import sha256_of
from trtllm_hpc.runtime.node import SCRATCH, SHM, free_ports
from trtllm_hpc.runtime.process import descendants
from trtllm_hpc.runtime.records import Endpoint, RankRecord, add_event, read_events
from trtllm_hpc.runtime.server_spec import ServerSpec, literal
from trtllm_hpc.runtime.stop import request_stop


@dataclass
class Ranks:
    """Ranks of one server, started as ``rank.sh`` does."""

    runtime: Runtime
    program: Path
    ports: list[int]

    @property
    def prefix(self) -> str:
        return f"trtTest{os.getpid()}_"

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
        **options: Any,
    ) -> subprocess.Popen[str]:
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
        return self.runtime.start(
            "rank",
            f"--rank={rank}",
            f"--world-size={world}",
            f"--ranks-per-node={world}",
            f"--prefix={prefix}",
            *extra,
            f"--spec={self.runtime.paths.server()}",
            FAKE=behaviour,
            FAKE_STARTED=str(self.started_file(rank)),
            FAKE_PREFIX=prefix,
            TRTLLM_HPC_JOB_ID="77",
            TRTLLM_HPC_ADDRESS="127.0.0.1",
            TRTLLM_HPC_HTTP_PORT=http,
            TRTLLM_HPC_GRPC_PORT=grpc,
            TRTLLM_HPC_METRICS_PORT=metrics,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=rendezvous,
            **(environment or {}),
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

    def endpoint(self) -> Endpoint:
        """The endpoint, once it is published."""
        found = eventually(lambda: Endpoint.read(self.runtime.paths.endpoint))
        assert isinstance(found, Endpoint)
        return found

    def left(self) -> list[str]:
        """What is left on this machine."""
        return [
            str(file) for folder in (SHM, SCRATCH) for file in folder.iterdir() if self.prefix in file.name
        ]


@pytest.fixture
def ranks(runtime: Runtime, tmp_path: Path) -> Ranks:
    program = tmp_path / "triton server"
    script = Path(__file__).with_name("fake_server.py")
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-I", "-S", str(script)])} "$@"\n')
    program.chmod(0o755)
    return Ranks(runtime, program, free_ports(4))


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    return process.returncode, output + errors


# Ready ----------------------------------------------------------------------------------


def test_the_endpoint_is_published_when_every_model_is_ready_and_withdrawn_at_the_end(ranks: Ranks) -> None:
    paths = ranks.runtime.paths
    add_event(paths, "serve", "stage_begin")
    add_event(paths, "serve", "preflight_ok")
    process = ranks.start()
    ranks.facts()
    assert not paths.endpoint.exists(), "the port is open, but nothing is loaded"
    endpoint = ranks.endpoint()
    assert endpoint.models == ["ensemble", "tensorrt_llm"]
    assert [endpoint.http_port, endpoint.grpc_port, endpoint.metrics_port] == ranks.ports[:3]
    assert (endpoint.address, endpoint.job_id) == ("127.0.0.1", "77")
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
        "ready",
        "server_stop",
    ]
    record = ranks.record()
    assert (record.stopped_by, record.exit_code) == ("companion", 0) and record.ended_at is not None
    assert first_failure(paths, over=True) is None
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
    [event] = [event for event in read_events(ranks.runtime.paths) if event.name == "ready_timeout"]
    assert event.data["reason"] == "the server was not ready within 1 s (not READY: tensorrt_llm)"
    assert not ranks.runtime.paths.endpoint.exists() and ranks.left() == []


def test_a_server_that_never_answers_has_its_own_message(ranks: Ranks) -> None:
    code, output = end(ranks.start(behaviour="mute", ready_timeout_seconds=0.6))
    assert code == ExitCode.READINESS and "the server does not answer" in output


# The end --------------------------------------------------------------------------------


def test_a_companion_without_a_heartbeat_stops_the_server(ranks: Ranks) -> None:
    process = ranks.start(companion_silence_seconds=1.0)
    ranks.endpoint()
    ranks.runtime.paths.heartbeat.touch()
    code, output = end(process)
    assert code == ExitCode.START and "no sign of life for 1 s" in output
    assert ranks.runtime.paths.stop_request.exists()


def test_only_a_companion_that_began_and_then_fell_silent_is_missing(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, heartbeat = Clock(), runtime.paths.heartbeat
    monkeypatch.setattr(stop, "time", clock)
    watch = stop.CompanionWatch(runtime.paths, None, 15.0)
    watch.begin()
    clock.sleep(3600)
    assert watch.missing() is None, "a companion that never began is not one that fell silent"
    for beat in range(1, 20):
        heartbeat.touch()
        os.utime(heartbeat, (beat, beat))
        assert watch.missing() is None
        clock.sleep(14)
    assert watch.missing() is None
    clock.sleep(2)
    assert watch.missing() == "the companion gave no sign of life for 15 s"


@pytest.mark.parametrize(("behaviour", "code"), [("exit=3", 3), ("exit=0", ExitCode.START)])
def test_a_server_that_ends_by_itself_has_failed_whatever_its_exit_code(
    ranks: Ranks, behaviour: str, code: int
) -> None:
    got, output = end(ranks.start(behaviour=behaviour))
    assert got == code and "error: rank 0 ended" in output
    record = ranks.record()
    assert record.stopped_by is None and record.exit_code == int(behaviour[-1])
    if code == ExitCode.START:
        assert record.reason is not None and "without a request to stop" in record.reason


def test_a_worker_that_ends_with_the_leader_has_not_failed(ranks: Ranks) -> None:
    leader = RankRecord("serve", 0, 2, "77", "n1", 1, 1.0, ended_at=2.0, exit_code=0)
    process = ranks.start(rank=1, world=2, behaviour="exit=0")
    ranks.facts(1)
    leader.write(ranks.runtime.paths.rank_record("serve", 0))
    assert end(process)[0] == 0
    assert ranks.record(1).stopped_by == "leader"


@pytest.mark.thorough
def test_a_worker_that_outlives_the_leader_after_a_stop_request_is_killed_soon(ranks: Ranks) -> None:
    leader = RankRecord("serve", 0, 2, "77", "n1", 1, 1.0, ended_at=2.0, exit_code=0)
    process = ranks.start(rank=1, world=2, behaviour="deaf")
    facts = ranks.facts(1)
    request_stop(ranks.runtime.paths, by="companion", reason="it is done")
    leader.write(ranks.runtime.paths.rank_record("serve", 0))
    assert end(process)[0] == 0
    assert ranks.record(1).stopped_by == "companion" and not is_alive(facts["pid"])


def test_a_killed_server_is_recorded_and_leaves_nothing(ranks: Ranks) -> None:
    process = ranks.start(behaviour="children")
    ranks.endpoint()
    facts = ranks.facts()
    os.kill(facts["pid"], signal.SIGKILL)
    code, output = end(process)
    assert code == 137 and "error: rank 0 ended (signal 9)" in output
    assert (ranks.record().exit_code, ranks.record().stopped_by) == (-9, None)
    assert not any(is_alive(pid) for pid in facts["children"])
    assert ranks.left() == []
    assert not ranks.runtime.paths.endpoint.exists(), "nobody is ready there"


def test_a_killed_server_leaves_no_folder_of_the_python_backend(ranks: Ranks, tmp_path: Path) -> None:
    """Two ranks of a node start at once, and one of them lives on."""
    server = tmp_path / "tritonserver"
    script = Path(__file__).with_name("fake_server.py").read_text()
    server.write_text(f"#!{sys.executable} -IS\n{script}")  # so the kernel keeps the name of the real one
    server.chmod(0o755)
    processes = [ranks.start(rank, world=2, behaviour="environment", server=str(server)) for rank in (0, 1)]
    folders = [Path(ranks.facts(rank)["python_environment"]) for rank in (0, 1)]
    links = [next(SCRATCH.glob(f"{ranks.prefix}{rank}_*")) / "python_environment" for rank in (0, 1)]
    assert eventually(lambda: all(link.is_symlink() for link in links))
    assert [link.readlink() for link in links] == folders
    os.kill(ranks.facts(1)["pid"], signal.SIGKILL)
    end(processes[1])
    assert [folder.exists() for folder in folders] == [True, False]
    os.kill(ranks.facts(0)["pid"], signal.SIGKILL)
    end(processes[0])
    assert not folders[0].exists()


def test_the_servers_own_reason_is_recorded(ranks: Ranks) -> None:
    assert end(ranks.start(behaviour="says-why exit=1"))[0] == 1
    assert ranks.record().reason == "rank 0 was silent for 10 s"


def test_a_signal_ends_the_server_and_its_descendants(ranks: Ranks) -> None:
    process = ranks.start(behaviour="children")
    ranks.endpoint()
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 143
    facts = ranks.facts()
    assert not any(is_alive(pid) for pid in (facts["pid"], *facts["children"]))
    assert ranks.record().stopped_by == "SIGTERM" and ranks.left() == []


def test_a_rank_that_is_ended_by_another_does_not_hide_the_first_exit_code(ranks: Ranks) -> None:
    process = ranks.start(rank=0, world=2)
    ranks.facts()
    other = RankRecord("serve", 1, 2, "77", "n2", 1, 1.0, ended_at=2.0, exit_code=-9)
    other.write(ranks.runtime.paths.rank_record("serve", 1))
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 0


def test_a_signal_at_any_moment_of_the_start_leaves_nothing(ranks: Ranks) -> None:
    """A cancelled job signals ranks that have only just begun."""
    for wait_s in (0.05, 0.1, 0.2, 0.3, 0.5):
        process = ranks.start()
        time.sleep(wait_s)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert ranks.left() == [], wait_s


@pytest.mark.long
def test_a_server_that_ignores_signals_is_killed_before_slurm_would(ranks: Ranks) -> None:
    """Slurm's KillWait is 30 s, and then the record could not be written any more."""
    process = ranks.start(rank=1, world=2, behaviour="deaf")
    facts = ranks.facts(1)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 143
    assert time.monotonic() - started < 15
    assert not is_alive(facts["pid"]) and ranks.record(1).exit_code == -9


def test_a_killed_rank_leaves_only_what_the_cleanup_removes(ranks: Ranks) -> None:
    process = ranks.start()
    facts = ranks.facts()
    process.kill()
    process.communicate()
    assert eventually(lambda: not is_alive(facts["pid"]))
    assert ranks.left() != []
    assert ranks.runtime("sweep", ranks.prefix).returncode == 0
    assert ranks.left() == []


# A server that serves nobody any more ---------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        (
            "dies",
            "answers every request with an error (Stub process 'preprocessing_0_0' is not healthy)",
        ),
        ("hangs", "has answered nothing for "),
    ],
)
def test_a_server_that_answers_no_request_is_ended_though_it_is_ready(
    ranks: Ranks, behaviour: str, sentence: str
) -> None:
    # Without metrics it may be busy, and gets ten times as long.
    process = ranks.start(behaviour=behaviour, hang_seconds=0.5)
    ranks.endpoint()
    code, output = end(process)
    assert code == ExitCode.START and sentence in output
    assert not ranks.runtime.paths.endpoint.exists()
    record = ranks.record()
    assert (record.stopped_by, record.blames) == ("probe", 0)
    failure = first_failure(ranks.runtime.paths, over=True)
    assert failure is not None and sentence in failure.sentence
    assert any(event.name == "server_lost" for event in read_events(ranks.runtime.paths, "serve"))


@pytest.mark.long
def test_a_stopped_leader_is_noticed_and_named_by_its_worker(ranks: Ranks) -> None:
    processes = [ranks.start(rank, world=2, hang_seconds=10) for rank in (0, 1)]
    ranks.endpoint()
    leader = ranks.runtime.paths.rank_heartbeat("serve", 0)
    seen = leader.read_text()
    assert eventually(lambda: leader.read_text() != seen)
    processes[0].send_signal(signal.SIGSTOP)
    code, output = end(processes[1])
    assert code == ExitCode.START and "it has given no sign of life for " in output
    assert not ranks.runtime.paths.endpoint.exists()
    failure = first_failure(ranks.runtime.paths, over=True)
    assert failure is not None and failure.record.rank == 0
    assert failure.sentence.startswith("rank 0 on ") and "it has given no sign of life" in failure.sentence
    processes[0].send_signal(signal.SIGCONT)
    processes[0].send_signal(signal.SIGTERM)
    assert end(processes[0])[0] == 0


def test_a_damaged_engine_is_named_while_the_server_starts(ranks: Ranks, tmp_path: Path) -> None:
    """One byte, which no size shows."""
    entry = Entry(tmp_path / "engines" / "build-0123456789abcdef")
    entry.output.mkdir(parents=True)
    (entry.folder / "uses").mkdir()
    part = entry.output / "rank0.engine"
    part.write_bytes(bytes(4096))
    manifest = Manifest({part.name: [4096, sha256_of(part)]}, 1.0, 1.0, "n1", "7", {})
    manifest.write(entry.output / MANIFEST)
    ranks.runtime.paths.engine.symlink_to(entry.output)
    process = ranks.start()
    assert eventually(entry.verified.exists)
    ranks.endpoint()
    request_stop(ranks.runtime.paths, by="companion", reason="it is done")
    code, output = end(process)
    assert code == 0 and f"engine {entry.name}: verified in " in output
    ranks.runtime.paths.stop_request.unlink()
    with part.open("r+b") as file:
        file.seek(1000)
        file.write(b"\1")
    code, output = end(ranks.start())
    assert code == ExitCode.START
    told = f"the engine {entry.name} is damaged: rank0.engine is not what was built: its SHA-256 differs"
    assert told in output
    assert not entry.is_complete(), "the next build makes it again"
    failure = first_failure(ranks.runtime.paths, over=True)
    assert failure is not None and told in failure.sentence


# A server that cannot be started --------------------------------------------------------


def test_a_missing_server_is_the_recorded_reason(ranks: Ranks) -> None:
    code, output = end(ranks.start(server="no-such-tritonserver"))
    assert code == ExitCode.START
    assert (
        "no program 'no-such-tritonserver'" in output and "set triton.server in the cluster profile" in output
    )
    failure = first_failure(ranks.runtime.paths, over=True)
    assert failure is not None and "no program 'no-such-tritonserver'" in failure.sentence
    assert ranks.left() == []


def test_a_step_with_other_tasks_than_ranks_starts_no_server(ranks: Ranks) -> None:
    code, output = end(ranks.start(world=2, environment={"SLURM_NTASKS": "3"}))
    assert code == ExitCode.START and "next: give srun in the run's scripts --ntasks=2 again" in output
    failure = first_failure(ranks.runtime.paths, over=True)
    assert failure is not None and "the step has 3 tasks, but the plan says 2 ranks" in failure.sentence
    assert not ranks.started_file(0).exists() and ranks.left() == []


def test_a_server_that_cannot_be_executed_is_the_recorded_reason(ranks: Ranks, tmp_path: Path) -> None:
    broken = tmp_path / "tritonserver"
    broken.write_bytes(b"\x7fELF, but not for this machine")
    broken.chmod(0o755)
    code, output = end(ranks.start(server=str(broken)))
    assert code == ExitCode.START and "cannot be started" in output
    failure = first_failure(ranks.runtime.paths, over=True)
    assert failure is not None and "cannot be started" in failure.sentence


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
    assert ranks.endpoint().http_port == ranks.ports[0]
    facts = ranks.facts()
    assert facts["argv"][1:] == [f"--http-port={ranks.ports[0]}"]
    assert "SLURM_PROCID" not in facts["environment"] and "PMIX_RANK" not in facts["environment"]
    assert "RANK" not in facts["environment"], "the launcher joins the ranks by itself"
    assert facts["environment"]["NCCL_SOCKET_IFNAME"] == "lo"
    request_stop(ranks.runtime.paths, by="companion", reason="it is done")
    assert end(leader)[0] == 0 and end(worker)[0] == 0
    assert ranks.record().exit_code == 0 and ranks.left() == []


@pytest.mark.long
def test_a_launcher_that_ignores_its_servers_failure_is_ended(launched: Launched) -> None:
    code, output = end(launched.start(behaviour="exit=3"))
    assert code == 3 and "error: rank 0 ended (exit code 3)" in output
    assert launched.ranks.left() == []


def test_a_launcher_that_dies_ends_its_server(launched: Launched) -> None:
    process = launched.start()
    launched.ranks.endpoint()
    server = launched.ranks.facts()["pid"]
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(process.pid)}
    os.kill(next(pid for pid, words in commands.items() if b"nodes.py\0leader" in words), signal.SIGKILL)
    code, _ = end(process)
    assert code == 137
    assert eventually(lambda: not is_alive(server)) and launched.ranks.left() == []


def test_a_rank_whose_slurmstepd_is_killed_ends_itself_and_says_so(ranks: Ranks, tmp_path: Path) -> None:
    """Nobody else would: Slurm has lost it, and shows the job as running."""
    daemon = tmp_path / "slurmstepd"
    shutil.copy("/bin/bash", daemon)
    ranks.runtime.under = [str(daemon), "-c", '"$@"; exit', "step"]
    process = ranks.start(1, world=2)
    server = ranks.facts(1)["pid"]
    os.kill(process.pid, signal.SIGKILL)
    _, output = end(process)
    assert "error: rank 1 ended" in output and not is_alive(server)
    record = ranks.record(1)
    assert record.blames == 1 and "slurmstepd" in str(record.reason)
    failure = first_failure(ranks.runtime.paths)
    assert failure is not None and failure.sentence.startswith("rank 1 on ")
    assert "its slurmstepd was killed" in failure.sentence
    assert ranks.left() == []


@pytest.mark.long
def test_a_stopped_process_is_named_though_the_server_was_asked_to_stop(ranks: Ranks) -> None:
    """A companion that gets no answers asks for it before anybody knows why."""
    process = ranks.start(hang_seconds=45)
    ranks.endpoint()
    server = ranks.facts()["pid"]
    os.kill(server, signal.SIGSTOP)
    request_stop(ranks.runtime.paths, by="companion", reason="it is done (exit code 10)")
    code, _ = end(process)
    assert code == ExitCode.START and not is_alive(server)
    failure = first_failure(ranks.runtime.paths, over=True)
    assert failure is not None and "is stopped (SIGSTOP)" in failure.sentence


@pytest.mark.long
@pytest.mark.parametrize(("stopped", "dies"), [(1, 0), (0, 1)])
def test_a_stopped_rank_is_named_if_another_dies_of_waiting_for_it(
    ranks: Ranks, stopped: int, dies: int
) -> None:
    processes = [ranks.start(rank, world=2, hang_seconds=45) for rank in (0, 1)]
    ranks.endpoint()
    os.kill(ranks.facts(stopped)["pid"], signal.SIGSTOP)
    heartbeat = ranks.runtime.paths.rank_heartbeat("serve", stopped)
    assert eventually(lambda: len(heartbeat.read_text().split()) > 1, 30)
    read_by = ranks.runtime.paths.rank_heartbeat("serve", dies)
    for _ in range(2):  # between its own beats each rank looks at the others'
        seen = read_by.read_text()
        assert eventually(lambda seen=seen: read_by.read_text() != seen)  # type: ignore[misc]
    os.kill(ranks.facts(dies)["pid"], signal.SIGKILL)
    assert end(processes[dies])[0] == ExitCode.START
    failure = first_failure(ranks.runtime.paths, over=True)
    assert failure is not None and failure.record.rank == stopped
    assert failure.sentence.startswith(f"rank {stopped} on ") and "is stopped (SIGSTOP)" in failure.sentence
    told = time.monotonic()
    processes[stopped].terminate()
    end(processes[stopped])
    assert time.monotonic() - told < 5, "Slurm may wait so long before it kills (KillWait)"


@pytest.mark.long
def test_a_killed_process_of_a_model_ends_the_server(ranks: Ranks, tmp_path: Path) -> None:
    """Triton would go on saying that it is ready."""
    stub, model = tmp_path / "triton_python_backend_stub", tmp_path / "preprocessing" / "1" / "model.py"
    shutil.copy("/bin/bash", stub)
    model.parent.mkdir(parents=True)
    model.write_text("sleep 120\n:\n")
    process = ranks.start(environment={"FAKE_STUB": f"{stub}:{model}"})
    ranks.endpoint()
    heartbeat = ranks.runtime.paths.rank_heartbeat("serve", 0)
    # Seen alive: in ten seconds it has searched twice for such processes.
    assert eventually(lambda: int(heartbeat.read_text().split()[0]) >= 3)
    os.kill(ranks.facts()["children"][0], signal.SIGKILL)
    code, _ = end(process)
    assert code == ExitCode.START
    failure = first_failure(ranks.runtime.paths)
    assert failure is not None
    assert "the Python process of model preprocessing was killed or crashed" in failure.sentence
