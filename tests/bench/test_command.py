"""``trtllm-hpc bench`` against a real tritonserver with models that do as their prompt says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.bench.workload.helpers import read_workload
from tests.plans import write_plan
from tests.schemas.check import documented
from tests.waiting import eventually
from trtllm_hpc.bench.analysis.compare import DifferentWorkloads, Worse
from trtllm_hpc.bench.levels import Level
from trtllm_hpc.bench.load.loops import Count
from trtllm_hpc.bench.passes import Passes, PassOutcome
from trtllm_hpc.bench.progress import Step, read_progress
from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.request_feed import PassRequests, RequestFeed
from trtllm_hpc.bench.results import MeasurementSummary, read_measurement
from trtllm_hpc.bench.server_metrics.sampling import read_samples
from trtllm_hpc.cli import command as trtllm_hpc
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.config.dump import job_yaml
from trtllm_hpc.config.job import Companion, JobFile
from trtllm_hpc.errors import ExitCode, InvalidMeasurement, NotReady
from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.runtime.records import Endpoint

pytestmark = pytest.mark.triton

LENIENT = (
    "--set",
    "min_requests=1",
    "--set",
    "min_window_seconds=0",
    "--set",
    "max_late_share=1",
    "--set",
    "check=false",
)
"""For a handful of requests; whether any was sent late is not these tests' matter, nor are other requests."""


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


def byte_tokenizer(folder: Path) -> Path:
    """Encodes as the server's ``preprocessing`` does: each byte is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab=names, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = letters, decoders.ByteLevel()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


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


def test_the_settings_of_the_run_are_the_defaults(tmp_path: Path, endpoint: Endpoint) -> None:
    own = Benchmark(
        requests=6, rate_per_second=200.0, warmup_requests=0, max_tokens=9, seed=5, arrival="constant"
    )
    paths = make_run(tmp_path / "own", own)
    endpoint.write(paths.endpoint)
    bench(paths, "--max-tokens", 7)
    found = measured(paths)
    assert found.settings == {
        **own.model_dump(mode="json"),
        "max_tokens": 7, "min_requests": 1, "min_window_seconds": 0.0, "max_late_share": 1.0,
        "check": False,
    }  # fmt: skip
    assert {record.requested_tokens for record in records(paths)} == {7}


def test_an_option_replaces_settings_that_exclude_it(tmp_path: Path, endpoint: Endpoint) -> None:
    own = Benchmark(requests=6, rates_per_second=[50.0, 100.0], warmup_seconds=0.1)
    paths = make_run(tmp_path / "own", own)
    endpoint.write(paths.endpoint)
    bench(paths, "--concurrency", "2,3", "--duration", 0.2)
    assert [result.level.label for result in measured(paths).levels] == ["2 at once", "3 at once"]
    bench(paths, "--rate", 80, "--warmup", 1, name="other")
    assert [result.level.label for result in measured(paths, "other").levels] == ["80/s"]
    assert len(records(paths, "other")) == 7


def test_a_sweep_with_repeats_sends_no_prompt_twice(run: RunPaths, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path / "bytes")
    options = (
        "--tokenizer",
        tokenizer,
        "--workload",
        "normal",
        "--input-tokens",
        12,
        "--model",
        "tensorrt_llm",
    )
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


def test_a_closed_loop_never_exceeds_its_concurrency(run: RunPaths) -> None:
    bench(
        run,
        "--concurrency",
        3,
        "--requests",
        30,
        "--warmup",
        4,
        "--set",
        'workload.prompts=["sleep 0.005: x"]',
    )
    lines = records(run)
    ends = sorted(record.ended_s for record in lines)
    for place, record in enumerate(sorted(lines, key=lambda it: it.sent_s)):
        # So many have ended before this one is sent that there is room for it.
        assert sum(end <= record.sent_s for end in ends) >= place + 1 - 3
    assert sum(record.measured for record in lines) >= 30
    [only] = measured(run).levels[0].passes
    in_flight = only.metrics["in_flight"]  # less than 3 where the client is slow to ask again
    assert isinstance(in_flight, float) and 1 < in_flight <= 3.001


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


def test_streamed_tokens_are_seen_one_by_one(run: RunPaths, tmp_path: Path) -> None:
    options = (
        "--model",
        "decoupled",
        "--requests",
        4,
        "--rate",
        20,
        "--set",
        'workload.prompts=["slow one"]',
    )
    bench(run, *options, "--tokenizer", byte_tokenizer(tmp_path / "bytes"))
    found = measured(run)
    assert found.streaming
    longest = []
    for line in records(run):
        assert line.chunk_tokens == (1,) * 8 and line.output_tokens == 8
        gaps = [after - before for before, after in pairwise(line.chunks_s)]
        longest.append(max(range(7), key=gaps.__getitem__))
        # The model waits 0.1 s before the third letter.
        assert line.chunks_s[2] - line.sent_s >= 0.1
    assert 1 in longest  # on a busy machine some letters are seen late
    [only] = found.levels[0].passes
    assert {"ttft_ms", "tpot_ms", "itl_ms"} <= set(only.metrics)


def test_tokens_that_a_server_joins_are_all_counted(run: RunPaths, tmp_path: Path) -> None:
    """Each token is a byte, so letters are cut: 14 bytes in 8 responses."""
    tokenizer = byte_tokenizer(tmp_path / "bytes")
    options = (
        "--model",
        "joined",
        "--requests",
        4,
        "--rate",
        20,
        "--set",
        'workload.prompts=["naïve ñoño!"]',
    )
    result = bench(run, *options, "--tokenizer", tokenizer, "--max-tokens", 20)
    assert {record.chunk_tokens for record in records(run)} == {(1,) * 8}
    assert {(record.output_tokens, record.output_by) for record in records(run)} == {(14, "tokenizer")}
    said = "output tokens: 56, counted by tokenizer; they came in 32 responses; at least 32 were sent and at"
    assert said in " ".join(result.output.split())


def test_answers_with_next_to_no_text_are_warned_of(run: RunPaths, tmp_path: Path) -> None:
    """As those of a model that mostly generates special tokens."""
    options = (
        "--model",
        "uncounted",
        "--requests",
        4,
        "--rate",
        20,
        "--max-tokens",
        400,
        "--set",
        'workload.prompts=["x"]',
    )
    result = bench(run, *options, "--tokenizer", byte_tokenizer(tmp_path / "bytes"))
    [warning] = [str(it) for it in measured(run).verdict.warnings if it.code == "little-text"]
    assert warning.startswith("4 of 1,600 requested output tokens were found")
    said = " ".join(result.output.split())
    assert warning in said and "at least 4 were sent and at most 1,600 requested" in said


def test_only_the_load_itself_goes_before_ordinary_processes(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making prompts and counting tokens may take every core for seconds, on a server's node, too."""
    take, policies = RequestFeed.take, []

    def noted(self: RequestFeed, count: int) -> PassRequests:
        policies.append(os.sched_getscheduler(0))
        return take(self, count)

    monkeypatch.setattr(RequestFeed, "take", noted)
    bench(run, "--requests", 2, "--rate", 50, "--repeats", 2)
    bench(run, "--requests", 2, "--concurrency", 1, name="closed")
    assert len(policies) >= 3
    assert set(policies) == {os.sched_getscheduler(0)}


def test_two_processes_share_the_load(run: RunPaths) -> None:
    bench(run, "--set=processes=2", "--requests", 20, "--rate", 100, "--arrival", "constant", "--warmup", 0)
    [only] = measured(run).levels[0].passes
    assert (only.client.processes, only.measured, only.failed) == (2, 20, 0)
    due = [record.scheduled_s for record in records(run)]
    gaps = [after - before for before, after in pairwise(due)]
    assert gaps == pytest.approx([0.01] * 19)


def test_several_models_take_turns(run: RunPaths) -> None:
    bench(run, "--model", "ensemble,uncounted", "--requests", 6, "--warmup", 0, "--rate", 100)
    assert [record.instance for record in records(run)] == ["ensemble", "uncounted"] * 3
    refused = bench(run, "--model", "ensemble,decoupled", "--requests", 6, name="other")
    assert refused.exception is not None and "cannot take turns" in str(refused.exception)


def test_http_gives_the_same_as_grpc(run: RunPaths) -> None:
    for protocol in ("grpc", "http"):
        bench(run, "--protocol", protocol, "--requests", 5, "--rate", 50, "--no-streaming", name=protocol)
    over_grpc, over_http = records(run, "grpc"), records(run, "http")
    assert all(record.ok for record in over_grpc + over_http)
    assert [record.output_tokens for record in over_grpc] == [record.output_tokens for record in over_http]


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
    bench(run, "--workload", "trace", "--file", recorded, "--concurrency", 2, name="closed")
    assert [request.prompt for request in read_workload(run.measurement("closed").workload)] == asked
    assert len(records(run, "closed")) == 6
    too_many = ("--concurrency", 2, "--requests", 7)
    refused = bench(run, "--workload", "trace", "--file", recorded, *too_many, name="more")
    assert "The workload has 6 requests, but 7 are needed" in str(refused.exception)


@pytest.mark.thorough
@pytest.mark.alone
@pytest.mark.long
def test_the_search_finds_what_one_instance_can_do(run: RunPaths) -> None:
    """An answer takes 50 ms and the model has one instance: 20 a second, fewer with a bound on the wait."""
    options = (
        "--arrival",
        "constant",
        "--duration",
        2,
        "--repeats",
        1,
        "--set",
        'workload.prompts=["sleep 0.05: x"]',
    )
    result = bench(run, "--find-max", "--slo", "latency.p50<80ms", "--rate", 8, "--max-tokens", 4, *options)
    search = measured(run).search
    assert search is not None, result.output
    assert search.stopped is None and search.max_rate_per_s is not None, result.output
    assert 8 <= search.max_rate_per_s < 20 and search.first_failing_per_s is not None
    assert search.first_failing_per_s < 1.05 * search.max_rate_per_s
    assert "search: latency.p50<80ms holds at" in result.stdout
    assert [tried.rate_per_s for tried in search.tried][:2] == [8.0, 16.0]


# Looking at measurements ---------------------------------------------------------------------


def test_a_measurement_is_shown_again_in_other_forms(run: RunPaths) -> None:
    first = bench(run, "--requests", 12, "--rate", 100)
    name = f"{run.folder}:mine"
    assert types("bench", "show", name).stdout == first.stdout
    assert documented("bench show", types("bench", "show", name, "--json").stdout)["name"] == "mine"
    assert types("bench", "show", run.measurement("mine").summary).stdout == first.stdout
    listed = types("bench", "list", run.folder)
    assert [line.split()[0] for line in listed.stdout.splitlines()][2:] == ["mine"]


def test_a_missing_measurement_is_reported_with_the_existing_ones(run: RunPaths) -> None:
    none = types("bench", "show", run.folder)
    assert "has no measurement yet" in str(none.exception)
    bench(run, "--requests", 5, "--rate", 100)
    wrong = types("bench", "show", f"{run.folder}:other")
    assert "no measurement called 'other'; it has mine" in str(wrong.exception)


@pytest.mark.alone
def test_compare_finds_a_slower_server(run: RunPaths) -> None:
    options = ("--rate", 6, "--arrival", "constant", "--requests", 8, "--repeats", 3, "--max-tokens", 4)
    bench(run, *options, *prompts("sleep 0.002: x"), name="before")
    bench(run, *options, *prompts("sleep 0.1: x"), name="after")
    before, after = f"{run.folder}:before", f"{run.folder}:after"
    refused = types("bench", "compare", before, after)
    assert isinstance(refused.exception, DifferentWorkloads) and refused.exception.exit_code == ExitCode.USAGE
    assert "workload.prompts" in refused.stdout and "worse" not in refused.stdout
    # Only the prompts tell this test's model how long to take.
    worse = types("bench", "compare", before, after, "--allow-different-workload")
    assert isinstance(worse.exception, Worse)
    assert worse.exception is not None and "is worse than" in str(worse.exception)
    assert "latency" in worse.stdout and "worse" in worse.stdout
    assert types("bench", "compare", before, before).exit_code == 0
    rows = documented("bench compare", types("bench", "compare", after, before, "--json").stdout)["rows"]
    [p50] = [row for row in rows if (row["key"], row["statistic"]) == ("latency_ms", "p50")]
    assert p50["better"] and p50["significant"] and p50["b"] < p50["a"] - 30


# What goes wrong -----------------------------------------------------------------------------


def test_many_failures_make_the_figures_useless_but_are_written_down(run: RunPaths) -> None:
    result = bench(
        run,
        "--requests",
        10,
        "--rate",
        200,
        "--warmup",
        0,
        "--set",
        'workload.prompts=["fail: no luck", "fine"]',
    )
    assert isinstance(result.exception, InvalidMeasurement)
    assert result.exception.exit_code == ExitCode.MEASUREMENT
    assert "5 of 10 requests failed" in result.exception.message and "no luck" in result.exception.message
    assert not measured(run).verdict.valid and measured(run).errors == {"no luck": 5}
    assert sum(record.error == "no luck" for record in records(run)) == 5
    assert "5 of 10 requests failed" in run.measurement("mine").table.read_text(encoding="utf-8")


def test_a_request_that_takes_too_long_is_given_up(run: RunPaths) -> None:
    options = (
        "--set",
        "request_timeout_seconds=0.2",
        "--warmup",
        0,
        "--set",
        'workload.prompts=["sleep 1.5: late"]',
    )
    assert isinstance(bench(run, "--requests", 1, *options).exception, InvalidMeasurement)
    [record] = records(run)
    assert record.status == "DEADLINE_EXCEEDED" and record.ended_s - record.sent_s >= 0.19


def test_a_request_is_sent_through_no_proxy(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "grpc_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for protocol in ("grpc", "http"):
        bench(run, "--requests", 2, "--rate", 50, "--protocol", protocol, name=protocol)
        assert all(record.ok for record in records(run, protocol))


def test_a_model_that_is_not_served_is_refused_before_anything_is_sent(run: RunPaths) -> None:
    result = bench(run, "--model", "nosuch")
    assert "nosuch" in str(result.exception) and result.exception.exit_code == ExitCode.REQUEST  # type: ignore[union-attr]
    assert run.measurement("mine").present == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "ensemble"), "limits ttft, which only streamed answers have; model 'ensemble'"),
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--concurrency", "2", "--set", "ramp_to_per_second=4"),
            "ramp_to_per_second: a rate",
        ),
        (("--rate", "4,x"), "'x' is not a valid float"),
    ],
)
def test_options_that_exclude_each_other(run: RunPaths, options: tuple[str, ...], words: str) -> None:
    result = bench(run, *options)
    assert words in result.output + str(result.exception)
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


def goes_at_the_second_pass(monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    """The server goes before the second pass of all, or in the middle of it."""
    whole_pass, passes = Passes.run, count()

    def run(self: Passes, level: Level, step: Step, on_end: Count) -> PassOutcome:
        first = next(passes) == 0
        if before and not first:
            raise NotReady("No connection.")
        return replace(whole_pass(self, level, step, on_end), gone=not first)

    monkeypatch.setattr(Passes, "run", run)


@pytest.mark.parametrize(("before", "kept"), [(True, 5), (False, 10)])
def test_a_measurement_without_its_server_ends_and_keeps_its_records(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, before: bool, kept: int
) -> None:
    goes_at_the_second_pass(monkeypatch, before=before)
    result = bench(run, "--requests", 5, "--rate", 50, "--warmup", 0, "--repeats", 3)
    assert isinstance(result.exception, InvalidMeasurement) and GONE in result.exception.message
    assert (result.exception.hint or "").startswith("trtllm-hpc status ")
    assert GONE in result.stdout and len(records(run)) == kept
    assert str(measured(run).verdict.findings[0]) == GONE
    assert len(read_samples(run.measurement("mine").samples)) >= 2


def test_a_search_without_its_server_ends_with_what_it_found(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_at_the_second_pass(monkeypatch, before=True)
    result = bench(run, "--find-max", "--slo", "latency<9s", "--rate", 40, "--duration", 0.2, "--repeats", 1)
    search = measured(run).search
    assert search is not None and (search.max_rate_per_s, search.first_failing_per_s) == (40, None)
    assert search.stopped == f"The search ended at 80/s. {GONE}"
    assert isinstance(result.exception, InvalidMeasurement) and GONE in result.exception.message


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


def test_measurements_without_a_name_never_share_one(run: RunPaths) -> None:
    both = [started(run, "--requests", "20", "--rate", "20", *LENIENT) for _ in range(3)]
    assert [process.wait(timeout=60) for process in both] == [0, 0, 0]
    for process in both:
        process.communicate()
    assert len(run.measurements()) == 3


@pytest.mark.parametrize(
    "name", ["", ".", "../x", "a/b", "a b", "-x", "é", "a" * 101, "progress", "request", "a.workload"]
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    paths = make_run(tmp_path / "run", None)
    refused = types("bench", paths.folder, f"--save-as={name}")
    assert refused.exit_code == ExitCode.USAGE
