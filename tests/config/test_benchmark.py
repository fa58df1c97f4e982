"""The settings of the benchmark in a job file: defaults that give way; conflicts are in ``outcomes.py``."""

from __future__ import annotations

import pytest

from tests.config.files import JOB, Folder
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


def test_a_rate_of_a_list_is_above_zero(files: Folder) -> None:
    diagnostic = files.diagnostic(f"{JOB}{HEAD}    rates_per_second: [4.0, 0]\n")
    assert (diagnostic.code, diagnostic.field) == (
        "out-of-range",
        "companion.benchmark.rates_per_second[1]",
    )


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (Benchmark(requests=20, rate_per_second=2.0, warmup_requests=0), 10),
        (Benchmark(requests=20, rate_per_second=2.0, warmup_requests=4, repeats=3), 36),
        (Benchmark(requests=20, rates_per_second=[2.0, 4.0], warmup_seconds=1.0), 17),
        (Benchmark(duration_seconds=7.0, concurrencies=[1, 2], warmup_seconds=1.0), 16),
        (Benchmark(requests=20, concurrency=4), 0),
        (Benchmark(workload=Workload(kind="trace", path="/a")), 0),
    ],
)
def test_how_long_the_load_takes_at_least(settings: Benchmark, seconds: float) -> None:
    assert scheduled_seconds(settings) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("slo", "words"), [("foo<1", "no metric is called"), ("ttft.p98<1s", "no statistic")]
)
def test_wrong_limits_are_named_with_the_other_errors(slo: str, words: str) -> None:
    [problem] = settings_problems(Benchmark(slo=slo))
    assert (problem.code, problem.field) == ("bad-value", "slo") and words in problem.message
