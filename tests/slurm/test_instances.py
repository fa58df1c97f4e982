"""Several instances behind one proxy, on a real Slurm, as an ordinary user would have them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.proxies import ask
from tests.slurm.conftest import Person, user_processes
from tests.waiting import eventually
from trtllm_hpc.bench.records import read_records
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.process import descendants
from trtllm_hpc.runtime.records import Endpoint, read_events

pytestmark = pytest.mark.slurm

LENIENT = (
    *("--set", "min_requests=1", "--set", "max_late_share=1"),
    *("--set", "min_window_seconds=0", "--set", "max_error_share=1"),
)
NOTICED_S = 2.0
"""After this time nothing is sent to an instance that has died."""


def start(
    person: Person, engine: Path, serve: dict[str, Any], *, ranks: int = 2, **sections: Any
) -> RunPaths:
    whole = {
        "engine": {"tensor_parallel": ranks, "directory": str(engine)},
        "repository": {"bls_instances": 1, "decoupled": True},
        "serve": {"ready_timeout_seconds": 120, **serve},
        "companion": {"enabled": False},
        **sections,
    }
    name = f"i{time.monotonic_ns()}"
    run = person.serves(person.job(name, **whole))
    return run


def end(person: Person, run: RunPaths) -> None:
    person.types("cancel", run.folder)
    person.has_nothing_left()
    status = person.status(run)
    assert status["state"] == "cancelled", status
    # Neither the proxy nor an instance is blamed.
    assert not [event for event in read_events(run, "serve") if event.name in ("failed", "proxy_restarted")]


def endpoint_of(run: RunPaths) -> Endpoint:
    endpoint = Endpoint.read(run.endpoint)
    assert endpoint is not None
    return endpoint


def states(person: Person, run: RunPaths) -> list[str]:
    return [one["state"] for one in person.status(run)["instances"]]


def answered(run: RunPaths, model: str = "ensemble") -> list[int]:
    """Requests to a model that each instance has answered, by its own metrics; -1 while it does not say."""
    endpoint = endpoint_of(run)
    return [_answered(endpoint, path, model) for path in ("/metrics", "/metrics/1")]


def _answered(endpoint: Endpoint, path: str, model: str) -> int:
    _, page = ask(endpoint, endpoint.metrics_port, "GET", path)
    found = re.search(rf'nv_inference_request_success{{model="{model}"[^}}]*}} (\d+)', page)
    return int(found[1]) if found else -1


def server_of(person: Person, run: RunPaths, instance: int) -> int:
    """Process id of an instance's leading tritonserver."""
    job = endpoint_of(run).job_id
    mark = re.compile(rf"--http-address=unix:/dev/shm/trt{job}_proxy\d_\w+/{instance}/http")
    found = [
        process.pid
        for node in person.sandbox.nodes
        for process in user_processes(node)
        if any(map(mark.fullmatch, process.arguments)) and "rank" not in process.arguments
    ]
    assert len(found) == 1, found
    return int(found[0])


def test_two_instances_behind_one_proxy(person: Person, engine: Path) -> None:
    few = {"requests": 20, "rate_per_second": 4.0, "max_tokens": 8, "min_requests": 1, "max_late_share": 1.0}
    serve = {"instances": 2, "placement": "spread", "tls": True, "keep_running": True}
    run = start(person, engine, {**serve, "routing": "session"}, companion={"benchmark": few})
    assert_both_proxies_ask_for_the_key(run)
    assert_the_key_alone_is_taken(endpoint_of(run))
    assert_measured_through_the_proxy(person, run)
    assert_sessions_stay_with_an_instance(run)
    assert_a_killed_proxy_of_a_node_is_opened_again(person, run)
    assert_a_killed_instance_costs_only_what_it_had_begun(person, run)
    assert_a_dead_process_of_a_model_restarts_its_instance(person, run)
    end(person, run)


def assert_sessions_stay_with_an_instance(run: RunPaths) -> None:
    """Over OpenAI's protocol, by way of the gateway, and over gRPC."""
    endpoint = endpoint_of(run)
    [model] = over_openai(endpoint, "GET", "models")["data"]
    for name in range(4):
        asked = {"model": model["id"], "prompt": f"person {name}", "user": f"user {name}", "max_tokens": 2}
        before = answered(run, "tensorrt_llm")
        for _ in range(5):
            over_openai(endpoint, "POST", "completions", asked)
        # A run's own questions may come in between.
        assert max(map(int.__sub__, answered(run, "tensorrt_llm"), before)) >= 5
    with Client(endpoint) as client:
        before = answered(run)
        for _ in range(5):
            client.generate("person", max_tokens=2, session="one")
        assert max(map(int.__sub__, answered(run), before)) >= 5


def over_openai(endpoint: Endpoint, method: str, path: str, body: Any = None) -> Any:
    url = urlsplit(f"{endpoint.openai_url}/{path}")
    status, text = ask(endpoint, url.port or 0, method, url.path, body)
    assert status == 200, text
    return json.loads(text)


def assert_a_dead_process_of_a_model_restarts_its_instance(person: Person, served: RunPaths) -> None:
    """Its server says that it is ready, and fails every request."""
    processes = {pid: Path(f"/proc/{pid}/cmdline") for pid in descendants(server_of(person, served, 0))}
    [stub] = [pid for pid, file in processes.items() if b"/preprocessing/" in file.read_bytes()]
    os.kill(stub, signal.SIGKILL)

    def told() -> list[str]:
        ends = [event for event in read_events(served, "serve") if event.name == "instance_end"]
        return [event.data["why"] for event in ends if event.data["instance"] == 0]

    assert eventually(told, 40), person.status(served)
    assert "the Python process of model preprocessing was killed or crashed" in told()[0], told()
    assert eventually(lambda: states(person, served) == ["ready", "ready"], 60), person.status(served)


def assert_a_killed_instance_costs_only_what_it_had_begun(person: Person, served: RunPaths) -> None:
    words = ("trtllm-hpc", "bench", "run", served.folder, "--save-as", "killed", "--concurrency", "8")
    # Long enough that some surely stream when it dies: those of which nothing has come yet go elsewhere.
    load = ("--requests", "60", "--max-tokens", "150", "--warmup", "0", "--streaming")
    killed, before = server_of(person, served, 1), answered(served)
    bench = person.command(*words, *load, *LENIENT)
    loaded = [count + 3 for count in before]
    assert eventually(lambda: all(map(int.__gt__, answered(served), loaded)))
    assert bench.poll() is None, "its load was over before a server could be killed"
    # Stopped for a moment first: so it surely has requests when it dies.
    os.kill(killed, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(killed, signal.SIGKILL)
    killed_at = time.time()
    output, errors = bench.communicate(timeout=120)
    assert bench.returncode == 0, output + errors
    records = read_records(served.measurement("killed").requests)
    failed = [record for record in records if record.status != "ok"]
    # Those of which nothing had come yet were sent to the other instance; on a busy machine it may be all.
    assert len(failed) <= 8, [record.error for record in failed]
    assert len(records) == 60
    # All of them had been begun by the instance that died, and say what to do.
    sent_s = [record.sent_s for record in failed]
    assert not sent_s or max(sent_s) - min(sent_s) < NOTICED_S
    assert all("try again" in (record.error or "") for record in failed), [record.error for record in failed]
    # It is back, and used again.
    ends = [event for event in read_events(served, "serve") if event.name == "instance_end"]
    assert [event.data["instance"] for event in ends] == [1]
    assert "was killed by signal 9" in ends[0].data["why"] and "1 of 3 times" in ends[0].data["then"]
    assert eventually(lambda: states(person, served) == ["ready", "ready"], 60), person.status(served)
    back = [event.time for event in read_events(served, "serve") if event.name == "instance_ready"][-1]
    assert back > killed_at
    shown = person.types("status", served.folder)
    assert "instance 1: ready, restarts: 1; rank 0 on" in shown.stdout, shown.stdout
    again = person.types("bench", "run", served.folder, "--concurrency", "4", "--requests", "16", *LENIENT)
    assert again.returncode == 0, again.stdout + again.stderr
    assert answered(served)[1] > 0
    print(f"{len(failed)} of {len(records)} requests failed; back after {back - killed_at:.1f} s")


def assert_both_proxies_ask_for_the_key(served: RunPaths) -> None:
    """Over TLS; what the first one refuses in detail is in ``tests/local/test_proxy.py``."""
    endpoint = endpoint_of(served)
    [further] = [json.loads(file.read_text()) for file in served.ranks.glob("proxy_*.json")]
    places = [(endpoint.address, endpoint.http_port), (endpoint.address, endpoint.metrics_port)]
    places += [(further["address"], port) for name, port in further["ports"].items() if "grpc" not in name]
    assert len({address for address, _ in places}) == 2
    for address, port in places:
        trusted = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(address, port, timeout=5, context=trusted)
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 401, (address, port)


def assert_the_key_alone_is_taken(endpoint: Endpoint) -> None:
    bearer = endpoint.authorization["authorization"]
    for given, status in ((bearer, 200), (bearer.lower()[:7] + bearer[7:], 200), (bearer + " x", 401)):
        assert _status(endpoint, given) == status
    for given in (bearer + "\0", bearer + "\0x", bearer + ",x", "x, " + bearer, bearer.replace(" ", "  ")):
        # From HAProxy 3.0 on, a header with a NUL is not HTTP.
        assert _status(endpoint, given) in ((400, 401) if "\0" in given else (401,)), given


def _status(endpoint: Endpoint, authorization: str) -> int:
    key = {"Authorization": authorization}
    return ask(endpoint, endpoint.http_port, "GET", "/v2/health/ready", headers=key)[0]


def assert_a_killed_proxy_of_a_node_is_opened_again(person: Person, served: RunPaths) -> None:
    def proxy() -> list[int]:
        found = subprocess.run(["pgrep", "-f", f"haproxy.*{served.proxy(1)}"], capture_output=True, text=True)
        return [int(word) for word in found.stdout.split()]

    [killed] = proxy()
    os.kill(killed, signal.SIGKILL)
    assert eventually(lambda: proxy() not in ([], [killed]), 10)
    # The first proxy reaches the instance behind it again.
    before = answered(served)[1]
    few = ("--concurrency", "4", "--requests", "8", *LENIENT)
    assert eventually(
        lambda: (
            person.types("bench", "run", served.folder, *few).returncode == 0 and answered(served)[1] > before
        ),
        30,
    )


def assert_measured_through_the_proxy(person: Person, run: RunPaths) -> None:
    def companion() -> str:
        stages = {stage["stage"]: stage["state"] for stage in person.status(run)["stages"]}
        return str(stages["companion"])

    assert eventually(lambda: companion() == "COMPLETED", 90), person.status(run)
    measured = read_measurement(run.measurement("benchmark").summary)
    assert measured.verdict.valid, measured.verdict.findings
    server = measured.provenance["server"]
    assert server["instances"] == 2 and len(server["ranks"]) == 4 and len(server["nodes"]) == 2
    assert measured.levels[0].passes[0].failed == 0
