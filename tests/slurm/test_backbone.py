"""The whole story on a real Slurm, as an ordinary user would live it."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ended import ended_when_asked
from tests.schemas.check import documented
from tests.slurm.conftest import Person, bare_server, user_processes
from tests.slurm.openai_clients import assert_answered_as_by_ensemble
from tests.waiting import eventually
from trtllm_hpc.bench.records import read_records
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.bench.server_metrics import read_samples
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.lock import Lock
from trtllm_hpc.runtime.records import Endpoint, RankRecord
from trtllm_hpc.sandbox import Node

pytestmark = pytest.mark.slurm

LENIENT = {"min_requests": 1, "max_late_share": 1.0}
"""Whether figures can be believed is no matter of these tests: on two cores the ranks hold the client up."""
FEW_PROCESSES = "repository.bls_instances=1"
"""Each instance is a process, and takes a second to stop."""
SMALL = {"requests": 6, "rate_per_second": 3.0, "max_tokens": 4, "warmup_requests": 1, **LENIENT}


def two_ranks(engine: Path | None = None, **more: Any) -> dict[str, Any]:
    """Sections of a job file: two ranks on two nodes, and a short benchmark."""
    sections: dict[str, Any] = {
        "engine": {"tensor_parallel": 2, "directory": str(engine) if engine else None},
        "repository": {"bls_instances": 1},
        "serve": {"nodes": 2, "ready_timeout_seconds": 120},
        "companion": {"request": {"prompt": "Grüße, world", "max_tokens": 12}, "benchmark": SMALL},
    }
    for section, values in more.items():
        sections[section] = {**sections.get(section, {}), **values}
    return sections


def one_rank(engine: Path, **more: Any) -> dict[str, Any]:
    """The same for one rank, which is ready sooner: for what has nothing to do with other ranks."""
    sections = two_ranks(engine, serve={"nodes": 1}, **more)
    sections["engine"]["tensor_parallel"] = 1
    return sections


def expected_answer(engine: Path, prompt: str, max_tokens: int) -> str:
    """What transformers' own ``generate`` says on the same weights, by itself."""
    import torch
    from transformers import AutoTokenizer

    from trtllm_hpc.reference import synthetic

    tokenizer = AutoTokenizer.from_pretrained(engine / "tokenizer")
    model = synthetic.make_model(seed=0, dtype="float32", max_seq_len=512)
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
    return str(tokenizer.decode(output[0], skip_special_tokens=True))


def answers_of(run: RunPaths) -> list[str]:
    record = read_json(run.answer)
    assert record is not None
    return [answer["text"] for answer in record["answers"]]


def assert_served_and_measured(run: RunPaths, hosts: int = 2) -> None:
    ranks = [RankRecord.read(run.rank_record("serve", rank)) for rank in range(2)]
    assert len({rank.host for rank in ranks if rank}) == hosts
    assert all(ended_when_asked(run, rank) for rank in range(2)), ranks
    measured = read_measurement(run.measurement("benchmark").summary)
    assert measured.verdict.valid, measured.verdict.findings
    [only] = measured.levels[0].passes
    assert (only.sent, only.measured, only.failed) == (7, 6, 0)
    assert len(read_records(run.measurement("benchmark").requests)) == 7
    server = measured.provenance["server"]
    assert server["job_id"] and len(server["nodes"]) == hosts and len(server["ranks"]) == 2
    written = run.measurement("benchmark")
    seen = [sample.values for sample in read_samples(written.samples)]
    # The server's view, from beginning to end. Requests this short may begin and end between two looks:
    # its steps are counted all the same.
    assert all("kv_used_share" in values for values in seen)
    assert any(values.get("iterations_per_s") for values in seen)
    assert "valid: the figures may be used" in run.measurement("benchmark").table.read_text()
    assert "</html>" in run.report.read_text() and len(written.workload.read_text().splitlines()) == 7


def test_one_job_file_to_a_measured_model(person: Person) -> None:
    job = person.job(
        "whole", **two_ranks(companion={"request": {"prompt": "Grüße, world", "max_tokens": 12}})
    )
    said, run = person.submit(job)
    assert "completed" in said and "endpoint: http" in said
    assert "answer (grpc)" in said
    expected = expected_answer(run.engine, "Grüße, world", 12)
    assert answers_of(run) == [expected]
    assert_served_and_measured(run)
    assert stat.S_IMODE(run.folder.stat().st_mode) == 0o700
    lock = Lock.read(run.lock)
    assert lock is not None and len(lock.nodes) == 2 and "torch" in lock.nodes[0]["packages"]
    status = person.status(run)
    assert (status["state"], status["exit_code"]) == ("completed", 0)
    assert {stage["stage"]: stage["state"] for stage in status["stages"]} == {
        "build": "COMPLETED",
        "serve": "COMPLETED",
        "companion": "COMPLETED",
    }
    assert not run.endpoint.exists()
    person.has_nothing_left()
    listing = person.types("logs", run.folder)
    for word in ("preflight", "serve", "companion", *(person.rank(run, rank).host for rank in (0, 1))):
        assert word in listing.stdout
    one = person.types("logs", run.folder, "--stage", "serve", "--rank", "1")
    assert "rank 1 on" in one.stdout and "rank 0 on" not in one.stdout


def test_files_written_by_init_and_sbatch_by_hand_do_the_same(person: Person) -> None:
    """From the wheel, in a folder with a space and quotes in its name, asking the live Slurm."""
    person.environment = {"SLURM_CONF": str(person.sandbox.slurm_conf)}
    assert person.types("init", "job", "mine.yaml").returncode == 0
    written = person.types("init", "cluster", "site.yaml")
    assert written.returncode == 0, written.stderr
    profile = (person.folder / "site.yaml").read_text()
    assert "partition: batch" in profile and "gpus_per_node: 4" in profile and "mpi: pmix" in profile
    companion = json.dumps(two_ranks()["companion"])
    settings = [
        *("cluster.triton.server=pytriton", "serve.nodes=2", FEW_PROCESSES),
        *("model.synthetic=stand-in", f"companion={companion}"),
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    files = ("mine.yaml", "--cluster", "./site.yaml", "--runs", "my runs")
    rendered = person.types("render", *files, *words, "--json")
    assert rendered.returncode == 0, rendered.stderr
    run = RunPaths(documented("render", rendered.stdout)["folder"])
    assert person.status(run)["state"] == "rendered"
    build = person.slurm("sbatch", "--parsable", run.sbatch("build")).strip()
    serve = person.slurm("sbatch", "--parsable", f"--dependency=afterok:{build}", run.sbatch("serve")).strip()
    person.slurm(
        "sbatch", "--parsable", f"--dependency=after:{serve},afterok:{build}", run.sbatch("companion")
    )
    assert eventually(lambda: person.status(run)["state"] == "completed", 180), person.status(run)
    [answer] = answers_of(run)
    assert len(answer) > 12
    assert_served_and_measured(run)


def server_process(node: Node) -> int:
    """Process id, on this machine, of a node's tritonserver."""
    found = [process for process in user_processes(node) if process.arguments[0].endswith("bin/tritonserver")]
    assert len(found) == 1, user_processes(node)
    return int(found[0].pid)


def test_a_killed_rank_fails_the_run_and_ends_its_benchmark(person: Person, engine: Path) -> None:
    sections = two_ranks(engine, companion={"benchmark": {**SMALL, "requests": 600}})
    run = person.serves(person.job("killed", **sections))
    assert eventually(lambda: run.benchmark_progress.exists())
    host = person.rank(run, 1).host
    os.kill(server_process(person.node(host)), signal.SIGKILL)
    killed_at = time.monotonic()
    status = person.failed(run)
    assert time.monotonic() - killed_at < 15
    assert status["exit_code"] == ExitCode.START
    assert f"rank 1 on {host} died first" in status["sentence"]
    person.has_nothing_left()


EXPORTED = {
    "SLURM_GRES": "gpu:9",
    "SLURM_EXCLUSIVE": "1",
    "SLURM_LABELIO": "1",
    "SLURM_HINT": "nomultithread",
    "SBATCH_PARTITION": "nosuch",
    "SBATCH_TIMELIMIT": "1",
    "http_proxy": "http://127.0.0.1:9",
}
"""What a person may have exported; it must change nothing."""


@pytest.mark.thorough
def test_a_server_kept_running_answers_until_it_is_cancelled(person: Person, engine: Path) -> None:
    """Whatever the person has exported, and whatever lies in the folder where they submit."""
    shadowing = person.folder / "click.py"
    shadowing.write_text("raise SystemExit('the click.py of the working directory was run')\n")
    person.environment = {**EXPORTED, "TMPDIR": str(person.folder)}
    streams = {"decoupled": True}
    sections = two_ranks(
        engine, serve={"keep_running": True}, companion={"benchmark": None}, repository=streams
    )
    run = person.serves(person.job("kept", **sections))
    endpoint = Endpoint.read(run.endpoint)
    assert endpoint is not None
    assert eventually(lambda: person.status(run)["stages"][-1]["state"] == "COMPLETED", 60), person.status(
        run
    )
    shadowing.unlink()
    person.environment = {}
    assert run.rank_log("serve", 0).read_text(errors="replace").startswith("rank 0 on")
    assert person.status(run)["state"] == "serving"
    asked = person.types("client", run.folder, "--prompt", "Hello", "--max-tokens", "4", "--json")
    assert asked.returncode == 0, asked.stderr
    few = ("--requests", "8", "--rate", "4", "--max-tokens", "2")  # a window of well over a second
    measured = person.types("bench", run.folder, *few, "--set", "min_requests=1", "--set", "max_late_share=1")
    assert measured.returncode == 0, measured.stderr
    assert_answered_as_by_ensemble(endpoint)
    # A worker opens no port, and the ports are not the well-known ones.
    worker = next(node for node in person.sandbox.nodes if node.address != endpoint.address)
    listening = worker.run(["cat", "/proc/net/tcp"])
    for port in (endpoint.http_port, endpoint.grpc_port, endpoint.metrics_port):
        assert f":{port:04X} 00000000:0000 0A" not in listening
        assert port not in (8000, 8001, 8002)
    cancelled = person.types("cancel", run.folder)
    assert cancelled.returncode == 0, cancelled.stderr
    assert person.status(run)["state"] == "cancelled"
    person.has_nothing_left()
    again = person.types("client", run.folder, "--prompt", "Hello")
    assert again.returncode in (ExitCode.READINESS, ExitCode.START)


def test_a_failed_run_is_resumed_in_its_folder(person: Person, engine: Path) -> None:
    companion = {"benchmark": {**SMALL, "requests": 600}}
    _, run = person.submit(person.job("again", **two_ranks(engine, companion=companion)), wait=False)
    assert eventually(lambda: run.benchmark_progress.exists(), 90), person.status(run)
    record = person.rank(run, 0)
    os.kill(server_process(person.node(record.host)), signal.SIGKILL)
    person.failed(run)
    assert person.has_no_jobs()
    person.run("sed", "-i", "s/requests: 600/requests: 6/", run.spec)  # the folder is theirs to edit
    resumed = person.types("resume", run.folder, "--wait")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "serve: job " in resumed.stdout and "companion: job " in resumed.stdout
    assert_served_and_measured(run)
    assert "rank 0 on" in (run.attempts / "1" / "logs" / "serve_0.out").read_text()
    assert person.status(run)["state"] == "completed"


def test_names_reach_slurm_as_they_are(person: Person) -> None:
    """sbatch's own reading of a quoted #SBATCH value."""
    comment = 'it\'s "a" #1 \\ \\" é $(x) `y` %j a=b'
    script = person.types(
        "render",
        person.job("named"),
        "--cluster",
        person.profile,
        "--set",
        f"cluster.sbatch_options=[{json.dumps('--comment=' + comment)}]",
        "--json",
    )
    assert script.returncode == 0, script.stderr
    run = RunPaths(json.loads(script.stdout)["folder"])
    job = person.slurm("sbatch", "--parsable", "--hold", run.sbatch("build")).strip()
    shown = person.slurm("scontrol", "show", "job", job)
    person.slurm("scancel", job)
    assert f"Comment={comment}" in shown
    assert f"StdOut={run.batch_log('build')}" in shown


@pytest.mark.thorough
def test_a_companion_cancelled_in_the_queue_leaves_no_server(person: Person, engine_alone: Path) -> None:
    job = person.job("no-companion", **one_rank(engine_alone))
    # For longer than that partition allows: it waits for ever.
    held = ["--set", "cluster.companion_partition=debug", "--set", "companion.start_timeout_seconds=5"]
    held += ["--ignore", "partition-limits"]
    _, run = person.submit(job, *held, wait=False)
    companion = person.status(run)["stages"][-1]["job_id"]
    person.slurm("scancel", companion)
    person.has_nothing_left()
    assert "companion" in person.status(run)["sentence"]


@pytest.mark.thorough
def test_a_job_has_no_limits_of_its_shell_and_the_next_job_removes_what_it_left(person: Person) -> None:
    """SIGUSR1 ends every process of the job, with the batch script that would clean up."""
    job = person.job("signalled", **bare_server(person.folder))
    words = ("trtllm-hpc", "submit", job, "--cluster", person.profile)
    assert person.run("prlimit", "--nofile=64:", "--fsize=100000000:", *words).returncode == 0
    [job_id] = person.jobs_in_queue()
    run = RunPaths(max((person.folder / "runs").glob("signalled-*")))
    assert eventually(run.endpoint.exists, 60), person.status(run)
    person.slurm("scancel", "--signal=USR1", "--full", job_id)
    assert person.has_no_jobs()
    left = [name for name in person.leftovers() if f"trt{job_id}_" in name]
    assert left
    following = person.serves(job)
    assert [name for name in person.leftovers() if f"trt{job_id}_" in name] == []
    person.cancel(following)
