"""A server that outlives its job's time limit, on a real Slurm."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import Person, bare_server
from tests.waiting import eventually
from trtllm_hpc.bench.progress import read_progress
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.runtime.records import Endpoint, read_events
from trtllm_hpc.runtime.renewal import Renewal

pytestmark = pytest.mark.slurm


def renewing(person: Person, engine: Path, name: str, **sections: Any) -> Path:
    """The job file of a server of one rank that is renewed."""
    serve = {"renew": True, "keep_running": True, "ready_timeout_seconds": 120, **sections.pop("serve", {})}
    companion = {"companion": {"enabled": False}, **sections}
    return person.job(name, engine={"directory": str(engine)}, serve=serve, **companion)


def test_the_next_job_serves_on_and_clients_follow_it(person: Person, engine_alone: Path) -> None:
    streams = {"bls_instances": 1, "decoupled": True}
    run = person.serves(
        renewing(person, engine_alone, "renewed", serve={"drain_seconds": 20}, repository=streams)
    )
    first = serve_stage(person, run)
    assert first["next_job_id"] and f"job {first['next_job_id']} waits" in first["sentence"]
    with asking(person, run) as answers:
        assert eventually(lambda: len(answers) > 1, 30)
        # What Slurm sends some time before the time limit.
        person.slurm("scancel", "--signal=USR1", "--batch", first["job_id"])
        assert eventually(lambda: renewals(run) == [1], 90), person.status(run)
        asked = len(answers)
        assert eventually(lambda: len(answers) > asked + 1, 30)
    assert all(code == 0 for code, _ in answers), [errors for code, errors in answers if code]
    second = serve_stage(person, run)
    assert second["job_id"] == first["next_job_id"] and second["state"] == "RUNNING"
    assert (run.attempts / "1" / "logs" / "serve_0.out").exists()
    [renewed] = [event for event in read_events(run, "serve") if event.name == "renewed"]
    assert 0 < renewed.data["downtime_s"] < 90
    print(f"nobody served for {renewed.data['downtime_s']} s; {len(answers)} answers meanwhile")
    person.cancel(run)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_open_streams_end_before_the_next_job_serves_three_times_in_a_row(person: Person) -> None:
    """Each server is older than the minute within which a proxy must see a ready server."""
    limits = {"time_limit_minutes": 5, "ready_timeout_seconds": 60, "drain_seconds": 60}
    server = bare_server(person.folder, "0.2", renew=True, keep_running=True, **limits)
    run = person.serves(person.job("streams", **server))
    jobs: list[str] = []
    for _ in range(3):
        jobs.append(serve_stage(person, run)["job_id"])
        with person.command("trtllm-hpc", "client", run.folder, "--prompt=x", "--max-tokens=400") as stream:
            assert eventually(lambda: time.time() > ready_at(run) + 61, 90)
            person.slurm("scancel", "--signal=USR1", "--batch", jobs[-1])
            states = set()
            while stream.poll() is None:
                status = person.status(run)
                states.add((status["state"], "open requests may end" in status["sentence"]))
            said, errors = stream.communicate()
            assert stream.returncode == 0 and said.split()[399] == "399", errors
        assert states <= {("serving", False), ("running", True), ("running", False), ("pending", False)}
        assert ("running", True) in states
        assert eventually(lambda: renewals(run) == list(range(1, len(jobs) + 1)), 60), person.status(run)
    status = person.status(run)
    assert (status["state"], status["failed_jobs"]) == ("serving", [])
    assert "failed" not in {event.name for event in read_events(run, "serve")}
    accounted = person.slurm(
        "sacct", "--allocations", "--noheader", "--format=state,exitcode", "--jobs", ",".join(jobs)
    )
    assert [line.split() for line in accounted.splitlines()] == [["COMPLETED", "0:0"]] * 3
    person.cancel(run)


@pytest.mark.thorough
def test_the_companion_s_benchmark_outlives_the_job_that_it_began_with(
    person: Person, engine_alone: Path
) -> None:
    levels = {"rates_per_second": [20, 30], "requests": 200, "max_tokens": 4, "max_late_share": 1.0}
    sections = {"serve": {"drain_seconds": 5}, "companion": {"benchmark": levels}}
    job = renewing(person, engine_alone, "measured", **sections)
    _, run = person.submit(job, wait=False)

    def is_at_second_level() -> bool:
        now = read_progress(run.benchmark_progress)
        return now is not None and now.step.level == 1 and now.done > 0

    assert eventually(is_at_second_level, 120), person.status(run)
    person.slurm("scancel", "--signal=USR1", "--batch", serve_stage(person, run)["job_id"])
    summary = run.measurement(COMPANION_MEASUREMENT).summary
    assert eventually(lambda: run.measurement(COMPANION_MEASUREMENT).table.exists(), 90), person.status(run)
    measured = read_measurement(summary)
    assert measured.verdict.valid, measured.verdict.findings
    assert [one.measured for level in measured.levels for one in level.passes] == [200, 200]
    assert any("away" in str(warning) for warning in measured.verdict.warnings)
    companion = next(one for one in person.status(run)["stages"] if one["stage"] == "companion")
    assert companion["state"] in ("COMPLETED", "COMPLETING", "RUNNING")
    person.cancel(run)


@pytest.mark.thorough
def test_who_cancels_the_job_itself_ends_the_run(person: Person, engine_alone: Path) -> None:
    _, run = person.submit(renewing(person, engine_alone, "ended"), wait=False)
    assert eventually(lambda: waiting_job(run) is not None, 60), person.status(run)
    person.slurm("scancel", serve_stage(person, run)["job_id"])
    assert eventually(person.has_no_jobs, 60), person.slurm("squeue")
    assert not run.endpoint.exists()
    assert "was cancelled" in run.batch_log("serve").read_text() or waiting_job(run) is None
    assert person.status(run)["state"] != "serving"


@pytest.mark.thorough
def test_the_next_job_does_not_get_the_node_at_fault(person: Person, engine_alone: Path) -> None:
    """The job tells Slurm so at its end; where it no longer could, the next one sees it, and makes room."""
    run = person.serves(renewing(person, engine_alone, "moved", serve={"restarts": 0}))
    first = serve_stage(person, run)
    break_gpu(run)
    # Nothing is left that could tell anybody, or clean up, as on a node that is lost.
    node = person.node(first["nodes"])
    node.run(["pkill", "-KILL", "-f", "slurm_script|runtime.pyz"])
    assert eventually(lambda: renewals(run) == [1], 120), run.batch_log("serve").read_text()
    second = serve_stage(person, run)
    [bad] = person.status(run)["bad_nodes"]
    assert (bad["node"], bad["job_id"], bad["kept"]) == (first["nodes"], first["job_id"], None)
    assert "uncorrectable ECC error" in bad["why"] and second["nodes"] != first["nodes"]
    queued = person.slurm("scontrol", "--oneliner", "show", "job", second["next_job_id"])
    assert f"ExcNodeList={first['nodes']}" in queued
    assert person.types("cancel", run.folder).returncode == 0
    assert person.has_no_jobs(), person.slurm("squeue")
    # When such a node is started anew, these are gone.
    files = f"rm -rf /tmp/trt{first['job_id']}_* /dev/shm/trt{first['job_id']}_*"
    node.run(["bash", "-c", files])
    person.has_nothing_left()


def break_gpu(run: RunPaths) -> None:
    with run.rank_log("serve", 0).open("a") as log:
        log.write("RuntimeError: CUDA error: uncorrectable ECC error encountered\n")


def serve_stage(person: Person, run: RunPaths) -> dict[str, Any]:
    stages: list[dict[str, Any]] = person.status(run)["stages"]
    return next(stage for stage in stages if stage["stage"] == "serve")


def ready_at(run: RunPaths) -> float:
    endpoint = Endpoint.read(run.endpoint)
    assert endpoint is not None
    return endpoint.ready_at


def waiting_job(run: RunPaths) -> str | None:
    renewal = Renewal.read(run.renewal)
    return None if renewal is None else renewal.next_job_id


def renewals(run: RunPaths) -> list[int]:
    events = read_events(run, "serve")
    ready = Endpoint.read(run.endpoint) is not None
    return [event.data["number"] for event in events if event.name == "renewed"] if ready else []


@contextmanager
def asking(person: Person, run: RunPaths) -> Iterator[list[tuple[int, str]]]:
    """Ask one question after the other, as somebody would who knows nothing of renewals."""
    answers: list[tuple[int, str]] = []
    enough = threading.Event()

    def ask() -> None:
        while not enough.is_set():
            answer = person.types("client", run.folder, "--prompt", "Hello", "--max-tokens", "4")
            answers.append((answer.returncode, answer.stderr))
            time.sleep(0.2)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        enough.set()
        thread.join()
