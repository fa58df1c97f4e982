"""What ``bench run`` refuses before and after it has measured, with the next thing to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from tests.report.make import make, write_run
from trtllm_hpc.api.measurement import Measurement
from trtllm_hpc.bench.levels import OpenLoop
from trtllm_hpc.bench.records import append_records
from trtllm_hpc.bench.results import Finding, Verdict, write_measurement
from trtllm_hpc.cli.bench_run import settings_for
from trtllm_hpc.config.engine import Engine
from trtllm_hpc.config.job import Companion, JobFile
from trtllm_hpc.errors import InvalidMeasurement

JOB = JobFile(
    name="demo",
    companion=Companion(enabled=False),
    engine=Engine(max_input_len=200, max_seq_len=256),
)


def test_lengths_within_the_engine_s_limits_are_accepted() -> None:
    just_fits = {"max_tokens": 255, "workload.kind": "normal", "workload.input_tokens": 200}
    assert settings_for(JOB, just_fits).max_tokens == 255


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_tokens": 256}, "--max-tokens: 256 tokens and a prompt do not fit"),
        ({"workload.kind": "normal", "workload.output_tokens": 999}, "--output-tokens: 999 tokens"),
        ({"workload.kind": "normal", "workload.input_tokens": 99999}, "--input-tokens: prompts of 99999"),
    ],
)
def test_lengths_beyond_the_engine_s_limits_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        settings_for(JOB, given)
    assert refused.value.message.startswith(words)


@pytest.mark.parametrize(
    ("status", "error", "hint", "answered"),
    [
        ("DEADLINE_EXCEEDED", "no whole answer in 2 s", "raise --timeout-seconds (now 2.0)", 0),
        ("DEADLINE_EXCEEDED", "no whole answer in 2 s", "raise --timeout-seconds (now 2.0)", -2),
        ("DEADLINE_EXCEEDED", "no whole answer in 2 s", "trtllm-hpc logs {} --rank 0 shows what", 5),
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
    settings = {**made.measurement.settings, "request_timeout_seconds": 2.0}
    measurement = replace(
        made.measurement,
        settings=settings,
        errors={error: 10},
        verdict=Verdict([Finding(code, sentence="It failed.")]),
    )
    write_measurement(found.files.summary, measurement)
    with pytest.raises(InvalidMeasurement) as refused:
        found.check()
    assert (refused.value.hint or "").startswith(hint.format(paths.folder))
    assert refused.value.message == f"It failed. Most frequent error (10 times): {error}"
