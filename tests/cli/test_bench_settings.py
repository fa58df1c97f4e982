"""What the options of ``trtllm-hpc bench`` make of the settings of a run, and what they are refused for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from tests.report.make import make, write_run
from trtllm_hpc.api.measurement import Measurement
from trtllm_hpc.bench.records import append_records
from trtllm_hpc.bench.results import Caveat, OpenLoop, Verdict, write_measurement
from trtllm_hpc.cli.bench import given_settings, settings_for
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.config.engine import Engine
from trtllm_hpc.config.job import Companion, JobFile
from trtllm_hpc.errors import InvalidMeasurement

TRACE = {"workload.kind": "trace", "workload.path": "/a.jsonl"}
NORMAL = {"workload.kind": "normal"}
LIMITS = {"max_input_len": 200, "max_seq_len": 256}


def settings_of(base: Benchmark, given: dict[str, Any], **engine: Any) -> Benchmark:
    built = Engine.model_validate({"backend": "tensorrtllm", "max_lora_rank": 8, **engine})
    return settings_for(JobFile(name="demo", companion=Companion(benchmark=base), engine=built), given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurrency": [2], "rate_per_second": [3.0]}, "--rate: an open loop has a rate"),
        ({"concurrency": [2], "arrival": "gamma"}, "--arrival: a closed loop sends when an answer arrives"),
        ({"burstiness": 0.3}, "burstiness: needs --arrival gamma"),
        ({**TRACE, "rate_per_second": [5.0]}, "--rate: a trace has its own times; remove it"),
        ({"find_max": True, "slo": "latency<1s", "rate_per_second": [1.0, 2.0]}, "finds the others itself"),
        ({"rate_per_second": [2.0, 2.0]}, "--rate: 2.0 is listed twice; list each once"),
        ({"requests": 5}, "--requests: gives 5 requests per level, but valid figures need 10 (min_requests)"),
        ({"rate_per_second": [50.0]}, "window of 0.4 s, but valid figures need 1 s (min_window_seconds)"),
        (
            {"extra_body": {"stream": False}},
            "extra_body.stream: the benchmark sets this key itself, from its own settings; remove it",
        ),
        (
            {"headers": {"Host": "a"}},
            "headers.Host: must be an ASCII header that the client does not set itself",
        ),
        ({"headers": {"a b": "c"}}, "headers.a b: must be an ASCII header"),
        ({"no_such": 1}, "no_such: Extra inputs are not permitted"),
    ],
)
def test_options_without_effect_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        settings_of(Benchmark(), given)
    assert words in caught.value.message
    assert len(caught.value.message.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_tokens": 256}, "--max-tokens: 256 tokens leave no room for a prompt"),
        ({**NORMAL, "workload.output_tokens": 999}, "--output-tokens: 999 tokens"),
        ({**NORMAL, "workload.input_tokens": 99999}, "--input-tokens: prompts of 99999"),
    ],
)
def test_lengths_beyond_the_engine_s_limits_are_refused(given: dict[str, Any], words: str) -> None:
    just_fits = {**NORMAL, "max_tokens": 255, "workload.input_tokens": 200}
    assert settings_of(Benchmark(), just_fits, **LIMITS).max_tokens == 255
    with pytest.raises(click.UsageError) as refused:
        settings_of(Benchmark(), given, **LIMITS)
    assert refused.value.message.startswith(words)


@pytest.mark.parametrize(
    ("base", "given", "gone"),
    [
        ({"concurrency": 32}, {"rate_per_second": [3.0]}, "concurrency"),
        ({"concurrency": 32}, {"concurrency": [1, 8, 32]}, "concurrency"),
        ({"rates_per_second": [2.0, 3.0]}, {"concurrency": [1, 8]}, "rates_per_second"),
        ({"concurrency": 32, "requests": 50}, {"duration_seconds": 30.0}, "requests"),
        ({"warmup_requests": 3}, {"warmup_seconds": 1.0}, "warmup_requests"),
        ({"rate_per_second": 6.0, "find_max": True, "slo": "latency<1s"}, {"concurrency": [2]}, "find_max"),
        ({"arrival": "gamma", "burstiness": 0.3}, {"concurrency": [2]}, ""),
    ],
)
def test_what_is_typed_replaces_what_the_job_file_has(
    base: dict[str, Any], given: dict[str, Any], gone: str
) -> None:
    before = Benchmark.model_validate(base)
    settings = settings_of(before, given)
    [(field, value)] = given.items()
    swept = {"concurrency": "concurrencies"} if isinstance(value, list) and len(value) > 1 else {}
    expected = value[0] if isinstance(value, list) and not swept else value
    assert getattr(settings, swept.get(field, field)) == expected
    assert not gone or getattr(settings, gone) != getattr(before, gone)


def test_keys_without_an_option_are_set_and_removed_by_set() -> None:
    given = given_settings({"rate_per_second": [4.0]}, ("slo=null", "workload.turns=6", "concurrency=3"))
    assert given == {"rate_per_second": [4.0], "slo": None, "workload.turns": 6, "concurrency": [3]}
    base = Benchmark(slo="ttft.p99<500ms", streaming=True)
    assert settings_of(Benchmark(extra_body={"n": 1, "top_k": 2}), {"extra_body": {"n": 3}}).extra_body == {
        "n": 3,
        "top_k": 2,
    }
    # The limits may be about tokens' times, and this measurement is without streaming.
    assert settings_of(base, {"slo": None, "streaming": False}).slo is None


@pytest.mark.parametrize(
    ("status", "error", "hint", "answered"),
    [
        ("DEADLINE_EXCEEDED", "no whole answer in 2 s", "raise request_timeout_seconds (now 2.0)", 0),
        ("DEADLINE_EXCEEDED", "no whole answer in 2 s", "raise request_timeout_seconds (now 2.0)", -2),
        (
            "DEADLINE_EXCEEDED",
            "no whole answer in 2 s",
            "trtllm-hpc logs {} --rank 0 shows the server's last lines",
            5,
        ),
        ("UNAVAILABLE", "no connection to n1:8001", "trtllm-hpc status ", 0),
        ("INTERNAL", "no luck", "trtllm-hpc logs ", 0),
    ],
)
def test_the_hint_depends_on_the_error(
    tmp_path: Path, status: str, error: str, hint: str, answered: int
) -> None:
    made = make([OpenLoop(4.0)], requests=10)
    paths = write_run(tmp_path / "run", made)
    found = Measurement(paths, "benchmark")
    found.files.requests.unlink()
    code = "server-gone" if status == "UNAVAILABLE" else "errors"
    failed = [replace(one, status=status, error=error, chunks_s=()) for one in made.records[answered:]]
    append_records(found.files.requests, [*made.records[:answered], *failed])
    measurement = replace(
        made.measurement,
        settings={**made.measurement.settings, "request_timeout_seconds": 2.0},
        errors={error: 10},
        verdict=Verdict([Caveat(code, sentence="It failed.")]),
    )
    write_measurement(found.files.summary, measurement)
    with pytest.raises(InvalidMeasurement) as refused:
        found.check()
    assert (refused.value.hint or "").startswith(hint.format(paths.folder))
    assert refused.value.message == f"It failed. Most frequent error (10 times): {error}"
