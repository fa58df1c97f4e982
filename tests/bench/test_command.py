"""``trtllm-hpc bench`` against a real tritonserver with models that do as their prompt says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.bench.workload.helpers import read_workload
from tests.plans import write_plan
from tests.waiting import eventually
from trtllm_hpc.bench.passes import Passes, PassOutcome
from trtllm_hpc.bench.progress import Step, read_progress
from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.results import Level, MeasurementSummary, read_measurement
from trtllm_hpc.bench.server_metrics import read_samples
from trtllm_hpc.cli import command as trtllm_hpc
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.config.dump import job_yaml
from trtllm_hpc.config.job import Companion, JobFile
from trtllm_hpc.errors import ExitCode, InvalidMeasurement, NotReady
from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.reference.synthetic import make_tokenizer
from trtllm_hpc.runtime.records import Endpoint

pytestmark = pytest.mark.triton

LENIENT = ("--set", "min_requests=1", "--set", "min_window_seconds=0", "--set", "max_late_share=1")
"""For a handful of requests, of which some may be sent late."""


def make_run(folder: Path, settings: Benchmark | None) -> RunPaths:
    paths = RunPaths(folder)
    paths.make_folders()
    write_plan(paths)
    job = JobFile(name="demo", companion=Companion(benchmark=settings))
    paths.spec.write_text(job_yaml(job), encoding="utf-8")
    return paths


@pytest.fixture
def run(tmp_path: Path, endpoint: Endpoint) -> RunPaths:
    paths = make_run(tmp_path / "run", None)
    endpoint.write(paths.endpoint)
    return paths


def types(*words: object) -> Result:
    return CliRunner().invoke(trtllm_hpc, [str(word) for word in words])


def prompts(*texts: str) -> tuple[str, str]:
    return "--set", f"workload.prompts={json.dumps(texts)}"


def bench(paths: RunPaths, *options: object, name: str = "mine") -> Result:
    result = types("bench", paths.folder, "--save-as", name, *LENIENT, *options)
    print(result.output, result.exception)  # for who reads of a failure
    return result


def measured(paths: RunPaths, name: str = "mine") -> MeasurementSummary:
    return read_measurement(paths.measurement(name).summary)


def records(paths: RunPaths, name: str = "mine") -> list[RequestRecord]:
    return read_records(paths.measurement(name).requests)


# What is measured, and what is left behind --------------------------------------------------


def test_everything_is_written(run: RunPaths) -> None:
    result = bench(run, "--requests", 20, "--rate", 100, "--warmup", 3, *prompts("x"))
    files, found = run.measurement("mine"), measured(run)
    [level] = found.levels
    [only] = level.passes
    assert (only.sent, only.measured, only.failed) == (23, 20, 0)
    assert only.metrics["asked_rate_per_s"] == pytest.approx(100)
    assert found.model == "ensemble" and found.settings["arrival"] == "poisson"
    assert found.tokens["output"] is None and found.tokens["output_by"] == []
    lines = records(run)
    assert [record.phase for record in lines] == ["warm-up"] * 3 + ["measured"] * 20
    assert [record.index for record in lines] == list(range(23))
    asked = read_workload(files.workload)
    assert len(asked) == 23 and len({request.prompt for request in asked}) == 1
    assert read_samples(files.samples)
    assert files.table.read_text(encoding="utf-8") == result.stdout
    assert found.provenance["run"]["id"] == "run" and found.provenance["workload"]["sha256"]


def test_a_sweep_with_repeats_sends_no_prompt_twice(run: RunPaths, tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "tokenizer")
    drawn = ("--tokenizer", tmp_path / "tokenizer", "--workload", "normal", "--input-tokens", 12)
    options = (*drawn, "--model", "tensorrt_llm")
    bench(run, "--rate", "100,200", "--requests", 5, "--warmup", 1, "--repeats", 2, *options)
    found, lines = measured(run), records(run)
    assert [len(result.passes) for result in found.levels] == [2, 2]
    assert [(record.level, record.repeat) for record in lines] == [
        (level, repeat) for level in (0, 1) for repeat in (0, 1) for _ in range(6)
    ]
    assert [record.index for record in lines] == list(range(24))
    prompts = [request.token_ids for request in read_workload(run.measurement("mine").workload)]
    assert len(set(prompts)) == 24 and {len(ids or ()) for ids in prompts} == {12}
    spread = found.levels[0].metrics["latency_ms"]
    assert isinstance(spread, dict) and spread["p50"].low is not None
    assert {record.input_by for record in lines} == {"workload"}


def test_a_timed_closed_loop_sends_every_prompt_before_it_repeats_one(run: RunPaths, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(f'{{"prompt": "say {place}"}}\n' for place in range(30)))
    of_file = ("--workload", "dataset", "--file", file)
    bench(run, *of_file, "--concurrency", 1, "--duration", 1.5, "--set", "warmup_seconds=0")
    asked = read_workload(run.measurement("mine").workload)
    assert len(asked) == 30 and len({request.prompt for request in asked}) == 30
    assert {record.index for record in records(run)} == set(range(30))
    [warning] = [it for it in measured(run).verdict.warnings if it.code == "repeated-prompts"]
    assert (warning.value, warning.limit) == (len(records(run)), 30)


def test_a_recorded_workload_can_be_sent_again(run: RunPaths, tmp_path: Path) -> None:
    recorded = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 1000 + 20 * at, "prompt": f"question {at}", "output_tokens": 5} for at in range(6)]
    recorded.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    result = bench(run, "--workload", "trace", "--file", recorded)
    assert run.measurement("mine").requests.exists(), result.output + str(result.exception)
    first = records(run)[0].scheduled_s
    assert [record.scheduled_s - first for record in records(run)] == pytest.approx(
        [0, 0.02, 0.04, 0.06, 0.08, 0.1]
    )
    asked = [request.prompt for request in read_workload(run.measurement("mine").workload)]
    assert asked == [f"question {at}" for at in range(6)]
    too_many = ("--concurrency", 2, "--requests", 7)
    refused = bench(run, "--workload", "trace", "--file", recorded, *too_many, name="more")
    assert "The trace has 6 requests, but 7 are needed" in str(refused.exception)


# What goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "ensemble"), "limits ttft, which need streamed answers, but the model 'ensemble'"),
        (("--model", "ensemble", "--streaming"), "repository.decoupled: true"),
        (("--model", "decoupled", "--no-streaming", "--find-max"), "answers are not streamed"),
    ],
)
def test_limits_that_need_streaming_are_refused_without_it(
    run: RunPaths, options: tuple[str, ...], words: str
) -> None:
    result = bench(run, "--slo", "latency<1s,ttft.p99<1s", *options)
    assert isinstance(result.exception, InvalidMeasurement) and words in str(result.exception)
    assert run.measurement("mine").present == []


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("end_by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_measured(run: RunPaths, end_by: signal.Signals, processes: int) -> None:
    # The companion's name: its progress can be read.
    options = ("--requests", "600", "--rate", "20", "--warmup", "0", "--set", f"processes={processes}")
    process = started(run, *options, "--save-as", "benchmark")
    assert eventually(lambda: answered(run) >= 11)
    os.killpg(process.pid, end_by)  # as a terminal and Slurm do: to every process
    output, errors = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED and "Traceback" not in errors
    kept = records(run, "benchmark")
    assert 10 < len(kept) < 600 and all(record.ok for record in kept)
    assert "ended-interrupted" in [it.code for it in measured(run, "benchmark").verdict.findings]
    assert "interrupted" in output


def test_a_killed_measurement_keeps_the_passes_before(run: RunPaths) -> None:
    options = ("--requests", "20", "--rate", "100", "--warmup", "0", "--repeats", "100")
    process = started(run, *options, *LENIENT, "--save-as", "mine")
    files = run.measurement("mine")
    assert eventually(files.summary.exists)
    process.kill()
    process.communicate()
    found, kept = measured(run), records(run)
    passes = found.levels[0].passes
    assert len(kept) >= 20 * len(passes) >= 20 and "unfinished" in [it.code for it in found.verdict.findings]
    assert types("bench", "list", run.folder).stdout.splitlines()[-1].split()[-1] == "no"


GONE = "The measurement ended early: the server was gone."


@pytest.mark.parametrize(("before", "kept"), [(True, 5), (False, 10)])
def test_a_measurement_without_its_server_ends_and_keeps_its_records(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, before: bool, kept: int
) -> None:
    whole_pass = Passes.run

    def one_pass(self: Passes, level: Level, step: Step) -> PassOutcome:
        if before and step.repeat:
            raise NotReady("No connection.")
        return replace(whole_pass(self, level, step), gone=step.repeat > 0)

    monkeypatch.setattr(Passes, "run", one_pass)
    result = bench(run, "--requests", 5, "--rate", 50, "--warmup", 0, "--repeats", 3)
    assert isinstance(result.exception, InvalidMeasurement) and GONE in result.exception.message
    assert (result.exception.hint or "").startswith("trtllm-hpc status ")
    assert GONE in result.stdout and len(records(run)) == kept
    assert str(measured(run).verdict.findings[0]) == GONE
    assert len(read_samples(run.measurement("mine").samples)) >= 2


def answered(run: RunPaths) -> int:
    """Requests of the companion's measurement that have ended, by its progress."""
    now = read_progress(run.benchmark_progress)
    return 0 if now is None else now.done


def started(run: RunPaths, *options: str) -> subprocess.Popen[str]:
    words = ["bench", str(run.folder), *options]
    return subprocess.Popen(
        [sys.executable, "-m", "trtllm_hpc", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


# Names ---------------------------------------------------------------------------------------


def test_a_later_attempt_of_the_companion_leaves_nothing_of_the_earlier(run: RunPaths) -> None:
    """Killed half-way, it would else stand beside the report of another server."""
    files = run.measurement("benchmark")
    for file in (files.summary, files.requests, files.table, files.report):
        file.write_text("old", encoding="utf-8")
    bench(run, "--requests", 2, "--rate", 100, name="benchmark")
    assert files.report.read_text(encoding="utf-8") != "old"
    assert files.table.read_text(encoding="utf-8") != "old" and len(records(run, "benchmark")) == 4


def test_a_measurement_by_hand_leaves_the_companions_alone(run: RunPaths) -> None:
    bench(run, "--requests", 2, "--rate", 100, name="benchmark")
    kept = {file.name: file.read_bytes() for file in run.results.iterdir()}
    unnamed = types("bench", run.folder, *LENIENT, "--requests", 3, "--rate", 100)
    named = bench(run, "--requests", 4, "--rate", 100, name="rate.100_x-1")
    assert {name: (run.results / name).read_bytes() for name in kept} == kept
    files = run.measurement("rate.100_x-1")
    assert f"written: {files.summary}" in named.stderr
    [by_time] = run.results.glob("bench-????????-??????.json")
    assert str(by_time) in unnamed.stderr
    # The companion that is submitted again by hand measures again under its own name.
    bench(run, "--requests", 5, "--rate", 100, "--warmup", 0, name="benchmark")
    assert len(records(run, "benchmark")) == 5
    assert set(run.measurements()) == {"benchmark", "rate.100_x-1", by_time.stem}
    progress = read_json(run.benchmark_progress)
    assert progress is not None and progress["done"] == 5


def test_a_run_without_a_server_is_not_measured(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "run", None)
    write_json(paths.jobs, {})
    assert isinstance(bench(paths, "--requests", 1).exception, NotReady)
    assert paths.measurement("mine").present == []


@pytest.mark.parametrize("ending", ["json", "jsonl", "txt", "workload.jsonl", "html"])
def test_a_name_that_is_taken_is_refused_before_anything_is_sent(tmp_path: Path, ending: str) -> None:
    paths = make_run(tmp_path / "run", None)
    (paths.results / f"mine.{ending}").write_text("kept")
    refused = bench(paths)
    assert refused.exit_code == ExitCode.USAGE
    assert f"mine.{ending}" in refused.stderr and "Choose another name" in refused.stderr
    assert (paths.results / f"mine.{ending}").read_text() == "kept"


@pytest.mark.parametrize("name", ["mine", "benchmark"])
def test_a_name_is_taken_as_soon_as_the_measurement_begins(run: RunPaths, name: str) -> None:
    words = ("--requests", "20", "--rate", "10", "--warmup", "0", *LENIENT, "--save-as", name)
    both = [started(run, *words) for _ in range(2)]
    errors = {process.communicate(timeout=60)[1]: process.returncode for process in both}
    [refusal] = [words for words, code in errors.items() if code == ExitCode.USAGE]
    assert sorted(errors.values()) == [0, ExitCode.USAGE]
    # The second may have begun when the first had ended.
    assert "Choose another name" in " ".join(refusal.split())
    assert len(records(run, name)) == 20
    assert list(run.results.glob(".*")) == []


@pytest.mark.parametrize(
    "name", ["", ".", "../x", "a/b", "a b", "-x", "é", "a" * 101, "progress", "request", "a.workload"]
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    paths = make_run(tmp_path / "run", None)
    refused = types("bench", paths.folder, f"--save-as={name}")
    assert refused.exit_code == ExitCode.USAGE
