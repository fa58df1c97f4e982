"""What the options of ``trtllm-hpc bench`` make of the settings of a run."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import click
import pytest

from trtllm_hpc.cli.bench_run import command as bench_run
from trtllm_hpc.cli.bench_run import given_settings, settings_for
from trtllm_hpc.config.benchmark import EXCLUSIVE, Benchmark
from trtllm_hpc.config.engine import Engine
from trtllm_hpc.config.job import Companion, JobFile

TRACE = {"workload.kind": "trace", "workload.path": "/a.jsonl"}


def settings_of(base: Benchmark, given: dict[str, Any]) -> Benchmark:
    engine = Engine(backend="tensorrtllm", max_lora_rank=8)
    job = JobFile(name="demo", companion=Companion(benchmark=base), engine=engine)
    return settings_for(job, given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurrency": [2], "rate_per_second": [3.0]}, "--rate: an open loop has a rate"),
        ({"concurrency": [2], "arrival": "gamma"}, "--arrival: a closed loop has no gaps"),
        ({"concurrency": [2], "burstiness": 0.3}, "--burstiness: a closed loop has no gaps"),
        (
            {"burstiness": 0.3},
            "--burstiness: has an effect with --arrival gamma only",
        ),
        ({**TRACE, "rate_per_second": [5.0]}, "--rate: a trace has its own times; leave it out"),
        (
            {"requests": 20, "duration_seconds": 3.0},
            "--duration: the window ends after a number",
        ),
        ({"warmup_requests": 2, "warmup_seconds": 1.0}, "--warmup-seconds: the warm-up ends after"),
        ({"find_max": True, "slo": "latency<1s", "rate_per_second": [1.0, 2.0]}, "finds the others itself"),
        ({"rate_per_second": [2.0, 2.0]}, "--rate: 2.0 is listed twice; list each once"),
        ({"concurrency": [2, 2]}, "--concurrency: 2 is listed twice; list each once"),
        ({"requests": 5}, "--requests: that is 5 requests of a level, and figures need 10 (--min-requests)"),
        ({"rate_per_second": [50.0]}, "window of 0.4 s, and figures need 1 s (--min-window-seconds)"),
    ],
)
def test_options_without_effect_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        settings_of(Benchmark(), given)
    assert words in caught.value.message
    assert len(caught.value.message.splitlines()) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"concurrency": [2]},
        {"arrival": "gamma", "burstiness": 0.3},
        {**TRACE, "workload.speed": 2.0},
        {**TRACE, "rate_per_second": [5.0], "arrival": "poisson", "requests": 20},
        {**TRACE, "concurrency": [5]},
        {"find_max": True, "slo": "latency<1s", "rate_per_second": [2.0]},
    ],
)
def test_options_with_an_effect_are_accepted(given: dict[str, Any]) -> None:
    taken = settings_of(Benchmark(), given)
    for field, value in given.items():
        first = value[0] if isinstance(value, list) else value
        assert attrgetter(field)(taken) == first


VALUES: dict[str, Any] = {
    "concurrency": 32,
    "concurrencies": [1, 8, 33],
    "rate_per_second": 6.0,
    "rates_per_second": [2.0, 3.0],
    "requests": 50,
    "duration_seconds": 30.0,
    "warmup_requests": 0,
    "warmup_seconds": 0.0,
    "find_max": True,
}
"""A value of each key that excludes others. The keys with one such value have it in their names."""
NEEDED: dict[str, dict[str, Any]] = {
    "arrival=trace": {"workload.kind": "trace", "workload.path": "/a.jsonl", "requests": 50},
    "find_max": {"slo": "latency<1s"},
    "requests": {"rate_per_second": 5.0},
}
"""Other keys without which a key is refused."""
SWEPT = {"rates_per_second": "rate_per_second", "concurrencies": "concurrency"}
"""The option of a key that takes several values."""
WITHOUT_EFFECT = [
    (key, other)
    for key, others in {
        "rate_per_second": ("concurrency", "concurrencies", "rates_per_second", "arrival=trace"),
        "arrival=gamma": ("concurrency", "concurrencies"),
        "burstiness=0.5": ("concurrency", "concurrencies"),
    }.items()
    for other in others
]
"""Keys that would have no effect beside others, the only ones that the others do not exclude."""
PAIRS = [pair for first, second, *_ in EXCLUSIVE for pair in ((first, second), (second, first))]


def written(key: str) -> dict[str, Any]:
    """Return a benchmark that has a key, and what the key needs, by dotted key."""
    field, _, value = key.partition("=")
    return {**NEEDED.get(key, {}), field: (float(value) if value[:1].isdigit() else value) or VALUES[field]}


def section(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a section of a job file from dotted keys."""
    inner = {field.partition(".")[2]: value for field, value in fields.items() if "." in field}
    return {**{field: value for field, value in fields.items() if "." not in field}, "workload": inner}


def typed(key: str) -> dict[str, Any]:
    """Return the options that give the same."""
    given = {SWEPT.get(field, field): value for field, value in written(key).items()}
    return {
        field: [value] if field in SWEPT.values() and not isinstance(value, list) else value
        for field, value in given.items()
    }


def value_of(settings: Benchmark, key: str) -> Any:
    return attrgetter(key.partition("=")[0])(settings)


@pytest.mark.parametrize(("key", "other"), [*PAIRS, *WITHOUT_EFFECT])
def test_what_is_typed_replaces_what_the_job_file_has(key: str, other: str) -> None:
    base = Benchmark.model_validate(section(written(other)))
    given = typed(key)
    if key == "burstiness=0.5":
        given["arrival"] = "gamma"
    settings = settings_of(base, given)
    assert value_of(settings, key) == value_of(Benchmark.model_validate(section(written(key))), key)
    assert value_of(settings, other) != value_of(base, other)


@pytest.mark.parametrize(("first", "second"), [pair[:2] for pair in EXCLUSIVE])
def test_of_two_typed_options_that_exclude_each_other_none_is_chosen(first: str, second: str) -> None:
    fields = {SWEPT.get(key.partition("=")[0]) or key.partition("=")[0] for key in (first, second)}
    if len(fields) == 2:  # "--concurrency" is one option for both keys
        with pytest.raises(click.UsageError):
            settings_of(Benchmark(), {**typed(first), **typed(second)})


def test_no_slo_removes_the_limits_of_the_job_file() -> None:
    """They may be about tokens' times, and this measurement is without streaming."""
    context = bench_run.make_context("run", ["latest", "--no-slo", "--no-streaming"], resilient_parsing=True)
    given = given_settings(context)
    base = Benchmark(slo="ttft.p99<500ms", streaming=True)
    assert settings_of(base, given).slo is None
    assert settings_of(base, {}).slo == "ttft.p99<500ms"
    with pytest.raises(click.UsageError, match="--slo: the search needs limits"):
        settings_of(base.model_copy(update={"find_max": True}), given)


def test_settings_of_the_job_file_without_effect_are_accepted() -> None:
    base = Benchmark(arrival="gamma", burstiness=0.3, rate_per_second=3.0)
    assert settings_of(base, {"concurrency": [2]}).concurrency == 2
    assert settings_of(base, {"burstiness": 0.5}).burstiness == 0.5
    assert settings_of(base, {"arrival": "poisson"}).arrival == "poisson"
