"""``trtllm-serve`` on a real cluster, by stand-ins that behave as upstream's server and launcher do."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
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


PHASES = {"context": {"partition": "debug"}, "generation": {"partition": "batch", "gpus_per_node": 2}}
"""Nodes of two partitions: the serve job is heterogeneous."""


@pytest.mark.thorough
def test_phases_on_nodes_of_their_own_kinds_are_one_heterogeneous_job(site: Site) -> None:
    over = ["--set", f"cluster.phases={json.dumps(PHASES)}"]
    limits = {**SPLIT, "time_limit_minutes": 20}
    _, run = site.submit(site.job("kinds", repository={}, engine=TWO_RANKS, serve=limits), *over)
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
