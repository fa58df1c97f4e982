"""The benchmark against a real tritonserver with models that do as their prompt says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.client.echo_server import echo_server
from trtllm_hpc.bench.benchmark import Settings, summarise
from trtllm_hpc.bench.load import run_load
from trtllm_hpc.bench.metrics import LatencyFromSchedule
from trtllm_hpc.bench.progress import Progress
from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.schedule import send_times
from trtllm_hpc.bench.wire import text_request
from trtllm_hpc.cli.bench import command
from trtllm_hpc.errors import ExitCode, InvalidMeasurement, NotReady
from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.runtime.records import Endpoint

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with echo_server(tmp_path_factory.mktemp("server"), core_models=True) as ready:
        yield ready


@pytest.fixture
def run(tmp_path: Path, endpoint: Endpoint) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.make_folders()
    write_json(paths.plan, {"name": "demo"})
    endpoint.write(paths.endpoint)
    return paths


def bench(paths: RunPaths, *arguments: str) -> Result:
    """As the companion does it."""
    return by_hand(paths, "--save-as=benchmark", *arguments)


def by_hand(paths: RunPaths, *arguments: str) -> Result:
    return CliRunner().invoke(command, [str(paths.folder), "--runs", str(paths.folder.parent), *arguments])


def test_a_stalled_server_shows_at_full_size_in_the_latency_from_schedule(endpoint: Endpoint) -> None:
    """One request stalls the only instance for 1 s; 19 more fall due meanwhile, 50 ms apart."""
    prompts = ["fast", "sleep 1: slow", *["fast"] * 28]
    requests = [text_request("ensemble", prompt, 4, prompt) for prompt in prompts]
    times = send_times(30, 20.0, "constant", seed=0)
    load = run_load(endpoint, requests, times, timeout_s=30, progress=Progress(of=30))

    assert all(record.ok for record in load.records)
    waits_s = [record.ended_s - record.scheduled_s for record in load.records]
    # The k-th request after the stall began waits for what is left of it: no omission.
    for behind in range(19):
        assert waits_s[1 + behind] == pytest.approx(1 - behind * 0.05, abs=0.15)
    assert LatencyFromSchedule().of(load.records).max >= 1000
    assert waits_s[0] < 0.5 and waits_s[-1] < 0.5
    # It was the server's doing: every request was sent when it was due.
    assert max(record.sent_s - record.scheduled_s for record in load.records) < 0.15


def test_the_results_are_all_written(run: RunPaths) -> None:
    result = bench(run, "--requests", "20", "--rate", "100", "--max-tokens", "16")
    assert result.exit_code == 0, result.output
    summary = read_json(run.benchmark)
    assert summary is not None and summary["valid"] and summary["findings"] == []
    assert summary["requests"] == {"asked": 20, "finished": 20, "failed": 0}
    assert summary["settings"]["arrival"] == "poisson" and summary["endpoint"]["job_id"] == "1"
    assert summary["metrics"]["sent_rate_per_s"] == pytest.approx(100, rel=0.3)
    # This model says of itself that it stopped one token early.
    assert summary["tokens"] == {"input": None, "output": 300, "counted_by": ["model"]}
    records = read_records(run.benchmark_requests)
    assert [record.index for record in records] == list(range(20))
    assert [record.scheduled_s for record in records] == send_times(20, 100.0, "poisson", seed=0)
    assert read_json(run.benchmark_progress) == {"of": 20, "done": 20, "errors": 0}
    assert run.benchmark_table.read_text() == result.stdout
    assert "latency from schedule" in result.output and "p99 (ms)" in result.output


def test_a_measurement_by_hand_leaves_the_companions_alone(run: RunPaths) -> None:
    assert bench(run, "--requests", "2", "--rate", "100").exit_code == 0
    kept = {file.name: file.read_bytes() for file in run.results.iterdir()}
    unnamed = by_hand(run, "--requests", "3", "--rate", "100")
    named = by_hand(run, "--requests", "4", "--rate", "100", "--save-as", "rate.100_x-1")
    assert unnamed.exit_code == named.exit_code == 0, unnamed.output + named.output
    assert {name: (run.results / name).read_bytes() for name in kept} == kept
    files = run.measurement("rate.100_x-1")
    assert files.present == [files.summary, files.requests, files.table]
    assert f"written: {files.summary}" in named.stderr and files.table.read_text() == named.stdout
    [by_time] = run.results.glob("bench-????????-??????.json")
    assert str(by_time) in unnamed.stderr
    # The companion that is submitted again by hand measures again under its own name.
    assert bench(run, "--requests", "5", "--rate", "100").exit_code == 0
    assert len(read_records(run.benchmark_requests)) == 5


def test_tokens_are_counted_by_the_core_model_if_the_asked_one_does_not(run: RunPaths) -> None:
    result = bench(
        run, "--requests", "6", "--rate", "100", "--model", "uncounted", "--prompt", "héllo", "--json"
    )
    summary = json.loads(result.stdout)
    # "héllo" is 6 bytes, and so 6 tokens; the core model stops two tokens early.
    assert summary["tokens"] == {"input": 36, "output": 84, "counted_by": ["replay"]}
    assert not any("not counted" in warning for warning in summary["warnings"])


def test_many_failures_make_the_figures_useless_but_are_written_down(run: RunPaths) -> None:
    result = bench(run, "--requests", "10", "--rate", "200", "--prompt", "fail: no luck", "--prompt", "fine")
    assert isinstance(result.exception, InvalidMeasurement)
    assert result.exception.exit_code == ExitCode.MEASUREMENT
    assert "5 of 10 requests failed" in result.exception.message and "no luck" in result.exception.message
    summary = read_json(run.benchmark)
    assert summary is not None and not summary["valid"] and summary["errors"] == {"no luck": 5}
    assert sum(record.error == "no luck" for record in read_records(run.benchmark_requests)) == 5
    assert "not valid: 5 of 10 requests failed" in run.benchmark_table.read_text()


def test_a_request_that_takes_too_long_is_given_up(run: RunPaths) -> None:
    options = ["--timeout-seconds", "0.2", "--warmup", "0", "--prompt", "sleep 0.6: late"]
    result = bench(run, "--requests", "1", *options)
    assert isinstance(result.exception, InvalidMeasurement)
    (record,) = read_records(run.benchmark_requests)
    assert record.status == "DEADLINE_EXCEEDED" and record.ended_s - record.sent_s >= 0.2


def test_a_request_is_sent_through_no_proxy(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:9")
    assert bench(run, "--requests", "2", "--rate", "50").exit_code == 0


def test_an_interrupt_ends_it_at_once_without_a_traceback(run: RunPaths) -> None:
    arguments = [str(run.folder), "--save-as=benchmark", "--requests", "600", "--rate", "20", "--warmup", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trtllm_hpc", "bench", *arguments], stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 20
    while not (read_json(run.benchmark_progress) or {"done": 0})["done"] and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == ExitCode.INTERRUPTED and "Traceback" not in errors
    assert not run.benchmark.exists()


def test_a_run_without_a_server_is_not_measured(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    paths.make_folders()
    write_json(paths.plan, {"name": "demo"})
    write_json(paths.jobs, {})
    assert isinstance(bench(paths, "--requests", "1").exception, NotReady)
    assert not paths.benchmark.exists()


@pytest.mark.parametrize("ending", ["json", "jsonl", "txt"])
def test_a_name_that_is_taken_is_refused_before_anything_is_sent(tmp_path: Path, ending: str) -> None:
    paths = RunPaths(tmp_path / "run")
    paths.make_folders()
    write_json(paths.plan, {"name": "demo"})
    (paths.results / f"mine.{ending}").write_text("kept")
    refused = by_hand(paths, "--save-as", "mine")
    assert refused.exit_code == ExitCode.USAGE
    assert f"mine.{ending}" in refused.stderr and "Choose another name" in refused.stderr
    assert (paths.results / f"mine.{ending}").read_text() == "kept"


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "a b", "-x", "é", "a" * 101, "progress", "request"])
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    paths = RunPaths(tmp_path / "run")
    paths.make_folders()
    write_json(paths.plan, {"name": "demo"})
    assert by_hand(paths, f"--save-as={name}").exit_code == ExitCode.USAGE


def test_errors_that_differ_in_numbers_only_are_one_kind() -> None:
    errors = ["slot 3 of 8 is lost after 1.5 s", "slot 4 of 8 is lost after 2 s", "gone", "gone", None]
    records = [
        RequestRecord(number, 0.0, 0.0, 1.0, "UNAVAILABLE", error) for number, error in enumerate(errors)
    ]
    summary = summarise(Settings(5, 4.0, 16), Endpoint("7", "n", "10.0.0.1", 1, 2, 3, [], 1.0), 1.0, records)
    assert summary["errors"] == {"slot N of N is lost after N s": 2, "gone": 2, "UNAVAILABLE": 1}
