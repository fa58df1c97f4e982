"""``trtllm-serve`` on a real cluster, by stand-ins that behave as upstream's server and launcher do."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.proxies import ask
from tests.slurm.conftest import Person, user_processes
from tests.slurm.upstream_site import Site, answers, stages, upstream_site
from tests.upstream.container import add_llm_api
from tests.upstream.llm_api import NEW_LAUNCHER
from tests.upstream.transformers_serve import make_model, transformers_serve
from tests.waiting import eventually
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.runtime.records import Endpoint, RankRecord, read_events
from trtllm_hpc.scheduler.submission_record import read_submission

pytestmark = pytest.mark.slurm


TWO_RANKS = {"backend": "pytorch", "tensor_parallel": 2, "max_input_len": None}


@pytest.fixture
def site(person: Person, engine: Path) -> Iterator[Site]:
    with upstream_site(person, engine / "tokenizer", "1.2.0", {}) as made:
        add_llm_api(made.container)
        yield made


def chain(site: Site, name: str, *words: str, **sections: Any) -> RunPaths:
    """A run over two nodes, to its end: no build, a question of nine tokens, and twelve requests measured."""
    few = {"requests": 12, "rate_per_second": 8.0, "max_tokens": 4, "min_requests": 1, "max_late_share": 1.0}
    asked = {"request": {"prompt": "the river", "max_tokens": 9}, "benchmark": few}
    job = site.job(name, **{"repository": {}, "engine": TWO_RANKS, "companion": asked, **sections})
    _, run = site.submit(job, *words)
    assert stages(run) == ["serve", "companion"]
    ranks = [RankRecord.read(run.rank_record("serve", rank)) for rank in range(2)]
    assert len({rank.host for rank in ranks if rank}) == 2
    measured = read_measurement(run.measurement(COMPANION_MEASUREMENT).summary)
    [only] = measured.levels[0].passes
    assert (measured.protocol, only.measured, only.failed) == ("openai", 12, 0)
    assert measured.tokens["output_by"] == ["server"]
    site.has_nothing_left()
    return run


def test_a_model_is_served_over_two_nodes_without_a_build(site: Site) -> None:
    """From copies of the model on the nodes' own disks."""
    words = ["--set", "model.stage=node", "--set", "cluster.node_models_folder=/dev/shm/models"]
    run = chain(site, "served", *words)
    assert answers(run) == ["the river the river"]
    assert "files were copied" in run.rank_log("staging", 1).read_text()


@pytest.mark.thorough
def test_the_launcher_of_1_3_joins_the_ranks_through_a_socket(site: Site) -> None:
    add_llm_api(site.container, NEW_LAUNCHER)
    job = site.job("newer", repository={}, engine=TWO_RANKS)
    _, run = site.submit(job)
    assert answers(run) == ["hello hello"]
    site.has_nothing_left()


@pytest.mark.thorough
def test_a_real_server_computes_behind_the_launcher(site: Site, tmp_path: Path) -> None:
    """It is ready some seconds after ``trtllm-serve`` listens, and the run no sooner."""
    model, log = site.folder / "a site" / "with weights", tmp_path / "log"
    make_model(model)
    layout = site.sandbox.layout
    assert layout is not None
    with transformers_serve(model, f"{layout.subnet}.254", log) as url:
        behind = {"FAKE_SERVE_WITH": url, "FAKE_SERVE_MODEL": str(model)}
        settings = [f"cluster.environment.{name}={json.dumps(value)}" for name, value in behind.items()]
        words = [word for each in settings for word in ("--set", each)]
        run = chain(site, "computed", *words, model={"path": str(model)})
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            alone = client.completions.create(model=str(model), prompt="the river", max_tokens=9)
    assert answers(run) == [alone.choices[0].text]
    assert log.read_text().count('POST /v1/completions HTTP/1.1" 200') > 12
    assert read_measurement(run.measurement(COMPANION_MEASUREMENT).summary).tokens["output"] == 48
    assert "</html>" in run.report.read_text()


SPLIT = {
    "mode": "disaggregated",
    "placement": "spread",
    "ready_timeout_seconds": 120,
    "disaggregated": {"context": {"tensor_parallel": 1}, "generation": {"servers": 2}},
}


def test_each_phase_has_servers_of_its_own_and_the_front_is_the_endpoint(site: Site) -> None:
    """One context server and two of two ranks for the generation, each on a node of its own."""
    job = site.job("split", repository={}, engine=TWO_RANKS, serve=SPLIT)
    said, run = site.submit(job)
    assert "context server 0: 1 rank on node 0, GPU 0" in said
    assert "generation server 2: 2 ranks on node 2, GPUs 0-1" in said
    hosts = [RankRecord.read(run.rank_record(f"serve.{server}", 0)) for server in range(3)]
    assert len({record.host for record in hosts if record}) == 3
    # The answer went through both phases.
    assert answers(run) == ["hello hello"]
    generation = run.rank_log("serve.1", 0).read_text() + run.rank_log("serve.2", 0).read_text()
    assert "generation after context process" in generation
    site.has_nothing_left()


@pytest.mark.thorough
def test_the_servers_take_requests_of_a_phase_from_the_front_only(site: Site) -> None:
    """In an image that knows a key for it, which the job makes and no process list shows."""
    library = site.container.folder / "site" / "tensorrt_llm" / "llmapi"
    library.mkdir(parents=True)
    (library / "disagg_utils.py").write_text("internal_request_auth_key: str | None = None\n")
    _, run = site.submit(site.job("signed", repository={}, engine=TWO_RANKS, serve=SPLIT))
    assert answers(run) == ["hello hello"]
    key = run.servers_key.read_text().strip()
    assert len(key) > 30 and run.servers_key.stat().st_mode & 0o777 == 0o600
    having = [file for file in run.folder.rglob("*") if file.is_file() and key.encode() in file.read_bytes()]
    assert sorted(having) == sorted([run.servers_key, run.front_started])
    assert run.front_started.stat().st_mode & 0o777 == 0o600
    shown = run.rank_log("serve.1", 0).read_text()
    assert "/llm_api.yaml" in shown and str(run.llm_api("generation")) not in shown


PHASES = {"context": {"partition": "debug"}, "generation": {"partition": "batch", "gpus_per_node": 2}}
"""Nodes of two partitions: the serve job is heterogeneous."""


@pytest.mark.thorough
def test_phases_on_nodes_of_their_own_kinds_are_one_heterogeneous_job(site: Site) -> None:
    over = ["--set", f"cluster.phases={json.dumps(PHASES)}"]
    limits = {**SPLIT, "time_limit_minutes": 20}
    said, run = site.submit(site.job("kinds", repository={}, engine=TWO_RANKS, serve=limits), *over)
    assert "context server 0: 1 rank on context node 0, GPU 0" in said
    assert "generation server 2: 2 ranks on generation node 1, GPUs 0-1" in said
    assert answers(run) == ["hello hello"]
    record = read_submission(run)
    assert record is not None
    job = record.stages["serve"].job_id
    used = site.slurm("sacct", "--noheader", "--allocations", "--format=JobID%20,Partition", f"--jobs={job}")
    assert used.split() == [f"{job}+0", "debug", f"{job}+1", "batch"]
    logs = site.types("logs", run.folder)
    assert "preflight.1" in logs.stdout
    site.has_nothing_left()


@pytest.mark.thorough
@pytest.mark.parametrize("option", ["gpus", "gres"])
def test_steps_of_a_heterogeneous_job_get_their_gpus(site: Site, option: str) -> None:
    """Also with the companion in the allocation of the first component, and ranks joined by mpirun."""
    # Whole nodes: what --gpus counts may else be shared out unevenly.
    four = {**TWO_RANKS, "tensor_parallel": 4}
    whole = {**PHASES, "generation": {"partition": "batch"}}
    keys = {"phases": whole, "gpu_request": option, "companion": "overlap", "mpi": "mpirun"}
    words = [word for key, value in keys.items() for word in ("--set", f"cluster.{key}={json.dumps(value)}")]
    limits = {**SPLIT, "time_limit_minutes": 20}
    _, run = site.submit(site.job(f"by-{option}", repository={}, engine=four, serve=limits), *words)
    assert answers(run) == ["hello hello"]
    site.has_nothing_left()


@pytest.mark.thorough
def test_a_node_of_the_second_component_that_fails_is_left_out_of_both(site: Site) -> None:
    limits = {**SPLIT, "time_limit_minutes": 20}
    job = site.job("node-fails", repository={}, engine=TWO_RANKS, serve=limits, companion={"enabled": False})
    run = site.serves(job, "--set", f"cluster.phases={json.dumps(PHASES)}")
    conf = {**os.environ, "SLURM_CONF": str(site.sandbox.slurm_conf)}
    record = RankRecord.read(run.rank_record("serve.2", 0))
    assert record is not None
    node = record.host
    change = ["scontrol", "update", f"nodename={node}"]
    subprocess.run([*change, "state=down", "reason=broken"], env=conf, check=True)
    try:
        assert node in eventually_failed(site, run)
        assert site.types("resume", run.folder).returncode == 0
        assert site.slurm("squeue", "--noheader", "--me", "--format=%x").split() == [node, node]
    finally:
        subprocess.run([*change, "state=idle"], env=conf, check=True)
    assert site.types("cancel", run.folder).returncode == 0


@pytest.mark.thorough
def test_a_server_and_the_front_that_die_are_back(site: Site) -> None:
    """Behind TLS, under load: only what the dead server had begun fails. Nobody else reaches a server."""
    phases = {"context": {"tensor_parallel": 1}, "generation": {"servers": 3}}
    serve = {**SPLIT, "tls": True, "disaggregated": phases}
    job = site.job("split-back", repository={}, engine=TWO_RANKS, serve=serve, companion={"enabled": False})
    run = site.serves(job)
    assert_servers_hear_their_own_node_only(site)
    with under_load(run) as failures:
        os.kill(process_of(site, "llm_api.generation.yaml", node=2), signal.SIGKILL)
        assert eventually(lambda: restarts(site, run) == ["ready 0", "ready 0", "ready 1", "ready 0"], 60)
        before = run.rank_log("serve.2", 0).read_text().count("generation after")
        assert eventually(lambda: run.rank_log("serve.2", 0).read_text().count("generation after") > before)
    # As many as ask at once, and each request has two phases.
    assert len(failures) <= LOAD, failures
    [end] = [it for it in read_events(run, "serve") if it.name == "instance_end"]
    assert end.data["instance"] == 2 and "1 of 3 times" in end.data["then"], end
    os.kill(process_of(site, "disaggregated", node=0), signal.SIGKILL)
    assert eventually(lambda: site.status(run)["front_restarts"] != [] and asks(run) is None, 30)
    said = site.types("status", run.folder).stdout
    name = site.sandbox.nodes[0].name
    assert f"front: restarts: 1; the front of the servers on {name} was killed by signal 9" in said, said
    site.cancel(run)


LOAD = 4
"""Clients that ask all the time."""


@contextmanager
def under_load(run: RunPaths) -> Iterator[list[str]]:
    """Ask again and again; give the errors so far."""
    failures: list[str] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            if (error := asks(run)) is not None:
                failures.append(error)

    with ThreadPoolExecutor(LOAD) as clients:
        asking = [clients.submit(ask) for _ in range(LOAD)]
        try:
            yield failures
        finally:
            is_over.set()
    assert all(it.result() is None for it in asking)


def asks(run: RunPaths) -> str | None:
    """Ask for a completion; return the error, if it is not answered."""
    endpoint = Endpoint.read(run.endpoint)
    assert endpoint is not None
    port = int(endpoint.place.rpartition(":")[2].partition("/")[0])
    try:
        body = {"model": "any", "prompt": "hello", "max_tokens": 2}
        status, text = ask(endpoint, port, "POST", "/v1/completions", body)
        return None if status == 200 and "hello hello" in text else f"{status} {text}"
    except (OSError, http.client.HTTPException) as error:
        return repr(error)


def restarts(site: Site, run: RunPaths) -> list[str]:
    return [f"{it['state']} {it['restarts']}" for it in site.status(run)["instances"]]


def process_of(site: Site, word: str, *, node: int) -> int:
    """The process of ``trtllm-serve`` on a node with a word in its command line."""
    found = [
        it.pid
        for it in user_processes(site.sandbox.nodes[node])
        if "python" in it.arguments[0] and any(word in argument for argument in it.arguments)
    ]
    assert len(found) == 1, found
    return int(found[0])


def assert_servers_hear_their_own_node_only(site: Site) -> None:
    """Another user on each node asks every port of all nodes that HAProxy or a server listens at."""
    other_user = ["setpriv", "--reuid=daemon", "--regid=daemon", "--clear-groups", "sh", "-c"]
    for node in site.sandbox.nodes:
        lines = node.run(["ss", "-H", "-t", "-l", "-n", "-p"]).splitlines()
        # MPI's ports and Slurm's are open to all, and answer nothing.
        found = [(line, *line.split()[3].rpartition(":")) for line in lines]
        places = [it for it in found if "haproxy" in it[0] or it[1] == "127.0.0.1"]
        servers = re.findall(r"--port=(\d+)", " ".join(" ".join(it.arguments) for it in user_processes(node)))
        assert servers and {*servers} <= {port for _, address, _, port in places if address == "127.0.0.1"}
        for asking in site.sandbox.nodes:
            for line, address, _, port in places if asking is not node else ():
                url = f"https://{node.address}:{port}/v1/models"
                curl = f"curl -sk -m 2 -o /dev/null -w '%{{http_code}}' {url} || true"
                said = asking.run([*other_user, curl])
                is_proxy = "haproxy" in line and address != "127.0.0.1"
                assert said == ("401" if is_proxy else "000"), (asking.name, line, said)


@pytest.mark.thorough
def test_a_request_that_is_not_streamed_ends_with_its_client(site: Site, tmp_path: Path) -> None:
    """HAProxy closes its connection to the server, and upstream looks once a second whether it is closed."""
    engine = {**TWO_RANKS, "llm_api": {"return_perf_metrics": True}}
    job = site.job("left", repository={}, engine=engine, companion={"enabled": False})
    run = site.serves(job, "--set", "cluster.environment.FAKE_SERVE=waits")
    endpoint = Endpoint.read(run.endpoint)
    assert endpoint is not None and endpoint.openai_url is not None
    key = run.key.read_text().strip()
    log = run.rank_log("serve", 0)
    client = openai.OpenAI(base_url=endpoint.openai_url, api_key=key, max_retries=0, timeout=2.5)
    with client, pytest.raises(openai.APITimeoutError):
        client.completions.create(model="any", prompt="the river")
    # Documented are 2 s; the rest is for a busy machine.
    assert eventually(lambda: "is disconnected, abort 1" in log.read_text(), 10)
    site.cancel(run)


def kill(site: Site, role: str) -> None:
    """Kill a process that joins the ranks: a ``leader`` of rank 0, or a ``worker``."""
    found = (
        process.pid
        for node in site.sandbox.nodes
        for process in user_processes(node)
        if process.arguments[-1] == role and process.arguments[-2].endswith("nodes.py")
    )
    os.kill(next(found), signal.SIGKILL)


def eventually_failed(site: Site, run: RunPaths) -> str:
    """What ``status`` says once the run has failed, of which nothing may be left."""
    status = site.failed(run, 40)
    assert not run.endpoint.exists()
    site.has_nothing_left()
    return json.dumps(status)
