"""The settings of the benchmark in a job file: defaults that give way, and conflicts."""

from __future__ import annotations

import pytest

from tests.config.files import CLUSTER, JOB, Folder
from trtllm_hpc.config.benchmark import Benchmark, Workload
from trtllm_hpc.validation.benchmark_rules import scheduled_seconds, settings_problems

HEAD = "companion:\n  benchmark:\n"


def benchmark(files: Folder, lines: str) -> Benchmark:
    found = files.load(JOB + HEAD + "".join(f"    {line}\n" for line in lines.splitlines())).job.companion
    assert found.benchmark is not None
    return found.benchmark


def test_seconds_take_the_place_of_the_default_number_of_requests(files: Folder) -> None:
    settings = benchmark(files, "duration_seconds: 5\nwarmup_seconds: 1")
    assert (settings.requests, settings.warmup_requests) == (None, None)
    assert benchmark(files, "warmup_seconds: 1").requests == 20


def test_a_trace_brings_its_own_times_and_length(files: Folder) -> None:
    settings = benchmark(files, "workload: {kind: trace, path: /a.jsonl}")
    assert (settings.arrival, settings.requests, settings.warmup_requests) == ("trace", None, 0)
    other = benchmark(files, "arrival: constant\nrequests: 15\nworkload: {kind: trace, path: /a.jsonl}")
    assert (other.arrival, other.requests) == ("constant", 15)


def test_a_relative_file_lies_beside_the_job_file(files: Folder) -> None:
    settings = benchmark(files, "workload: {kind: dataset, path: ../data/a.json, tokenizer: t}")
    assert settings.workload.path == str(files.folder.parent / "data" / "a.json")
    assert settings.workload.tokenizer == str(files.folder / "t")


@pytest.mark.parametrize(
    ("lines", "code", "field"),
    [
        ("workload: {prompts: [a], kind: normal}", "conflict", "workload.prompts"),
        ("workload: {prefixes: 2}", "conflict", "workload.prefixes"),
        ("workload: {kind: dataset}", "missing", "workload.path"),
        ("workload: {path: /a}", "conflict", "workload.path"),
        ("arrival: trace", "conflict", "arrival"),
        ("concurrency: 2\nconcurrencies: [1, 2]", "conflict", "concurrencies"),
        ("concurrency: 2\nrates_per_second: [1, 2]", "conflict", "rates_per_second"),
        ("concurrency: 2\nramp_to_per_second: 2", "conflict", "ramp_to_per_second"),
        ("rates_per_second: [1, 2]\nramp_to_per_second: 2", "conflict", "ramp_to_per_second"),
        ("workload: {kind: trace, path: /a}\nramp_to_per_second: 2", "conflict", "ramp_to_per_second"),
        ("requests: 5\nduration_seconds: 5", "conflict", "duration_seconds"),
        ("requests: null", "missing", "requests"),
        ("warmup_requests: 1\nwarmup_seconds: 1", "conflict", "warmup_seconds"),
        ("find_max: true", "missing", "slo"),
        ("find_max: true\nslo: ttft<1s\nconcurrency: 4", "conflict", "concurrency"),
        ("find_max: true\nslo: ttft<1s\nrates_per_second: [1]", "conflict", "rates_per_second"),
        ("workload: {kind: normal, input_tokens: 257}", "conflict", "workload.input_tokens"),
        ("workload: {kind: shared-prefix, input_tokens: 1}", "conflict", "workload.input_tokens"),
        ("workload: {kind: normal, output_tokens: 512}", "conflict", "workload.output_tokens"),
        ("duration_seconds: 3600", "conflict", "duration_seconds"),
        ("rates_per_second: [4.0, 0.001]", "conflict", "requests"),
        ("models: [a, b, a]", "conflict", "models"),
        ("rates_per_second: [2.0, 4.0, 2.0]", "conflict", "rates_per_second"),
        ("concurrencies: [2, 2]", "conflict", "concurrencies"),
        ("requests: 9", "conflict", "requests"),
        ("requests: 9\nconcurrency: 2", "conflict", "requests"),
        ("rates_per_second: [4.0, 20.1]", "conflict", "requests"),
        ("rate_per_second: 10.0\nramp_to_per_second: 30.1", "conflict", "requests"),
        ("duration_seconds: 0.9\nrate_per_second: 20.0", "conflict", "duration_seconds"),
        ("duration_seconds: 0.9\nconcurrency: 2", "conflict", "duration_seconds"),
        ("duration_seconds: 2\nrates_per_second: [20.0, 4.5]", "conflict", "duration_seconds"),
        ("find_max: true\nslo: ttft<1s\nduration_seconds: 2", "conflict", "duration_seconds"),
        ("find_max: true\nslo: ttft<1s\nrequests: 5\nrate_per_second: 0.5", "conflict", "requests"),
        ("rates_per_second: [4.0, 0]", "out-of-range", "rates_per_second[1]"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together(files: Folder, lines: str, code: str, field: str) -> None:
    small = "engine: {max_input_len: 256, max_seq_len: 512}\n"
    section = HEAD + "".join(f"    {line}\n" for line in lines.splitlines())
    # Several bounds of time may be broken at once: each names the same setting.
    diagnostics = files.diagnostics(JOB + small + section, CLUSTER)
    assert {(diagnostic.code, diagnostic.field) for diagnostic in diagnostics} == {
        (code, f"companion.benchmark.{field}")
    }
    assert all(diagnostic.hint or diagnostic.code == "out-of-range" for diagnostic in diagnostics)


@pytest.mark.parametrize(
    "lines",
    [
        "requests: 10",
        "rate_per_second: 20.0",
        "requests: 5\nmin_requests: 5",
        "rate_per_second: 100.0\nmin_window_seconds: 0.2",
        "duration_seconds: 1\nrate_per_second: 10.0",
        "duration_seconds: 1\nconcurrency: 1",
        "requests: 10\nconcurrency: 1000",
        "workload: {kind: trace, path: /a}",
        # A search makes windows that are long enough of whatever number.
        "find_max: true\nslo: ttft<1s\nrequests: 5\nrate_per_second: 3.0",
    ],
)
def test_what_may_be_long_enough_is_measured(files: Folder, lines: str) -> None:
    assert settings_problems(benchmark(files, lines)) == []


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (Benchmark(requests=20, rate_per_second=2.0, warmup_requests=0), 10),
        (Benchmark(requests=20, rate_per_second=2.0, warmup_requests=4, repeats=3), 36),
        # A rate that moves evenly from 2 to 8 is 5 on average.
        (Benchmark(requests=20, rate_per_second=2.0, ramp_to_per_second=8.0, warmup_requests=0), 4),
        (Benchmark(requests=20, rates_per_second=[2.0, 4.0], warmup_seconds=1.0), 17),
        (Benchmark(duration_seconds=7.0, concurrencies=[1, 2], warmup_seconds=1.0), 16),
        (Benchmark(requests=20, concurrency=4), 0),
        (Benchmark(workload=Workload(kind="trace", path="/a")), 0),
    ],
)
def test_how_long_the_load_takes_at_least(settings: Benchmark, seconds: float) -> None:
    assert scheduled_seconds(settings) == pytest.approx(seconds)
