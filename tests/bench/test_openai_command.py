"""``trtllm-hpc bench`` over OpenAI's protocol: of a run, and of any URL, without one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import trtllm_hpc as api
from tests.bench.openai_server import DONE, Script, event, openai_server
from tests.bench.test_command import LENIENT, make_run
from tests.plans import write_plan
from trtllm_hpc.bench.passes import Passes, PassOutcome
from trtllm_hpc.bench.progress import Step
from trtllm_hpc.bench.results import Level, MeasurementSummary, read_measurement
from trtllm_hpc.bench.server_metrics import read_samples
from trtllm_hpc.bench.targets import target_of
from trtllm_hpc.cli import command as trtllm_hpc
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import ExitCode, InvalidMeasurement, InvalidRequest, RequestFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.reference.synthetic import make_tokenizer
from trtllm_hpc.runtime.records import Endpoint

STEP = {
    "iter": 7, "numActiveRequests": 3, "numQueuedRequests": 2, "maxNumActiveRequests": 8,
    "kvCacheStats": {"maxNumBlocks": 40, "freeNumBlocks": 30, "usedNumBlocks": 10, "tokensPerBlock": 32},
    "inflightBatchingStats": {"numScheduledRequests": 3, "numGenRequests": 2, "numContextRequests": 1},
}  # fmt: skip


@pytest.fixture
def script() -> Script:
    """Three tokens in two events, 20 ms apart."""
    return Script([event("GR"), 0.02, event("ÜN"), event("", reason="length"), event(usage=(5, 3)), DONE])


@pytest.fixture
def endpoint(script: Script) -> Iterator[Endpoint]:
    with openai_server(script) as ready:
        yield ready


@pytest.fixture
def run(tmp_path: Path, endpoint: Endpoint) -> RunPaths:
    paths = make_run(tmp_path / "run", None)
    endpoint.write(paths.endpoint)
    return paths


def types(*words: object) -> Result:
    result = CliRunner().invoke(trtllm_hpc, [str(word) for word in words])
    print(result.output, result.exception)  # for who reads of a failure
    return result


QUICK = ("--requests", 6, "--rate", 50, "--warmup", 1, "--max-tokens", 3, "--save-as", "mine", *LENIENT)


def measured(paths: RunPaths, name: str = "mine") -> MeasurementSummary:
    return read_measurement(paths.measurement(name).summary)


# A run ------------------------------------------------------------------------------------------


def test_a_run_without_triton_is_measured_over_completions(run: RunPaths, script: Script) -> None:
    script.pages["/health"] = b""
    script.pages["/metrics"] = json.dumps([{**STEP, "numActiveRequests": 9}, STEP], indent=1).encode()
    script.pages["/prometheus/metrics"] = b'trtllm_generation_tokens_total{model_name="one"} 21.0\n'
    result = types("bench", run.folder, *QUICK)
    assert result.exit_code == 0
    found = measured(run)
    assert (found.model, found.protocol, found.streaming) == ("one", "openai", True)
    assert (found.tokens["output"], found.tokens["output_by"]) == (18, ["server"])
    assert (found.tokens["input"], found.tokens["input_by"]) == (30, ["server"])
    assert "output tokens: 18, counted by server" in result.stdout
    figures = found.levels[0].passes[0].metrics
    assert {"ttft_ms", "itl_ms", "tpot_ms"} <= set(figures)
    assert {path for path, _, _ in script.asked} == {"/v1/completions"}
    samples = read_samples(run.measurement("mine").samples)
    assert samples[0].values["requests_active"] == 3 and samples[0].values["kv_used_share"] == 0.25
    assert "output_tokens_per_s" in samples[-1].values


def test_a_report_that_cannot_be_drawn_fails_nothing(
    run: RunPaths, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(data: Any) -> str:
        raise AttributeError("Found no doc")

    script.pages["/health"] = b""
    monkeypatch.setattr("trtllm_hpc.report.html.page.report_page", fails)
    result = types("bench", run.folder, *QUICK)
    assert result.exit_code == 0, result.output
    assert "no report: Found no doc\n  next: trtllm-hpc report " in result.output
    assert run.measurement("mine").summary.exists()


def test_a_chat_and_an_exact_length(run: RunPaths, script: Script) -> None:
    script.pages["/health"] = b""
    script.pieces = [event("ÜN", reason="length"), event(usage=(5, 2)), DONE]
    result = types("bench", run.folder, "--protocol", "openai-chat", "--exact-output", *QUICK)
    assert {path for path, _, _ in script.asked} == {"/v1/chat/completions"}
    assert {(body["min_tokens"], body["ignore_eos"]) for body in script.bodies} == {(1, True), (3, True)}
    assert isinstance(result.exception, InvalidMeasurement)
    assert "the first has 2 tokens and not 3" in str(result.exception)


def test_a_chat_of_a_file_is_sent_with_its_roles(run: RunPaths, script: Script, tmp_path: Path) -> None:
    script.pages["/health"] = b""
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": f"word {at}"} for at, role in enumerate(roles)]
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": messages, "max_tokens": 3}) + "\n")
    more = ("--workload", "dataset", "--file", file, "--protocol", "openai-chat")
    types("bench", run.folder, *more, *QUICK)
    assert script.bodies[-1]["messages"] == messages


def test_further_keys_and_headers_of_each_request(run: RunPaths, script: Script) -> None:
    script.pages["/health"] = b""
    more = ("--extra-body", '{"temperature": 0}', "--header", "X-Team: blue", "--header", "api-key: s3cret")
    assert types("bench", run.folder, *more, "--set", "extra_body.seed=7", *QUICK).exit_code == 0
    assert {(body["temperature"], body["seed"]) for body in script.bodies} == {(0, 7)}
    assert {(it["x-team"], it["api-key"]) for it in script.headers} == {("blue", "s3cret")}
    settings = measured(run).settings
    assert settings["extra_body"] == {"temperature": 0, "seed": 7}
    assert settings["headers"] == {"X-Team": "blue", "api-key": "(secret)"}
    assert not [it for it in run.folder.rglob("*") if it.is_file() and b"s3cret" in it.read_bytes()]
    other = ("--extra-body", '{"temperature": 1}', *QUICK, "--save-as", "other")
    assert types("bench", run.folder, *other).exit_code == 0
    compared = types("bench", "compare", f"{run.folder}:mine", f"{run.folder}:other")
    assert "extra_body.temperature: 0 against 1" in str(compared.exception)


def test_further_keys_over_triton_s_protocols_are_refused() -> None:
    triton = Endpoint("1", "here", "127.0.0.1", 8000, 8001, 8002, ["ensemble"], 0.0)
    with pytest.raises(InvalidMeasurement, match="but the protocol is grpc") as refused:
        target_of(Benchmark(extra_body={"top_k": 1}), triton, None)
    assert "--protocol openai" in (refused.value.hint or "")


NOT_MAX_TOKENS = {"max_tokens": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}
NO_STREAM_OPTIONS = {"stream_options": "{'type': 'extra_forbidden', 'loc': ('body', 'stream_options')}"}


@pytest.mark.parametrize("refuses", [NOT_MAX_TOKENS, NO_STREAM_OPTIONS, NOT_MAX_TOKENS | NO_STREAM_OPTIONS])
def test_a_key_that_the_server_refuses_is_left_out_from_the_second_request_on(
    run: RunPaths, script: Script, tmp_path: Path, refuses: dict[str, str]
) -> None:
    script.pages["/health"], script.refuses = b"", refuses
    if "stream_options" in refuses:
        script.pieces = [event("GR"), event("ÜN", reason="length"), DONE]
    make_tokenizer(tokenizer := tmp_path / "tokenizer")
    assert types("bench", run.folder, "--tokenizer", tokenizer, *QUICK).exit_code == 0
    refused = [body for body in script.bodies if refuses.keys() & body.keys()]
    assert refused == script.bodies[: len(refuses)]
    found = measured(run)
    notes = {it.sentence.partition(":")[0] for it in found.verdict.warnings if it.code == "measurement"}
    assert {note.partition(",")[0] for note in notes} == {f"The server refuses {key}" for key in refuses}
    by = "tokenizer" if "stream_options" in refuses else "server"
    assert found.tokens["output_by"] == [by]


def test_keys_that_the_settings_choose_are_sent_at_once(run: RunPaths, script: Script) -> None:
    script.pages["/health"], script.refuses = b"", NOT_MAX_TOKENS | NO_STREAM_OPTIONS
    chosen = ("--set", "max_tokens_key=max_completion_tokens", "--set", "include_usage=false")
    types("bench", run.folder, *chosen, *QUICK)
    assert len(script.bodies) == 7 and not [
        body for body in script.bodies if script.refuses.keys() & body.keys()
    ]


def test_a_request_that_is_refused_for_another_reason_is_shown_by_the_load(
    run: RunPaths, script: Script
) -> None:
    script.pages["/health"], script.refuses = b"", {"model": "max_tokens or stream_options, who knows"}
    types("bench", run.folder, *QUICK)
    found = measured(run)
    assert [it.code for it in found.verdict.findings] == ["no-answer"]
    assert not [it for it in found.verdict.warnings if it.code == "measurement"]
    assert "max_tokens" in script.bodies[-1] and "stream_options" in script.bodies[-1]


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_asks_for_a_key_names_the_option(
    endpoint: Endpoint, script: Script, tmp_path: Path, status: int
) -> None:
    script.body, script.status = b'{"error": {"message": "bad key"}}', status
    to = ("bench", "--url", endpoint.openai_url, "--output", tmp_path)
    asked = types(*to, *QUICK).exception
    assert isinstance(asked, InvalidMeasurement) and "--key-file FILE" in str(asked)
    script.closes_models = True
    listed = types(*to, *QUICK, "--save-as", "two").exception
    assert (
        isinstance(listed, RequestFailed)
        and f"{status}: " in str(listed)
        and "--key-file FILE" in str(listed)
    )


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--extra-body", "[1]", "--extra-body: Input should be a valid dictionary, not [1]"),
        ("--header", "s3cret", "e.g. 'api-key: KEY'"),
    ],
)
def test_wrong_keys_and_headers_are_refused(run: RunPaths, option: str, value: str, words: str) -> None:
    refused = types("bench", run.folder, option, value)
    assert refused.exit_code == ExitCode.USAGE and words in refused.stderr
    assert "s3cret" not in refused.stderr


def test_ids_of_a_file_are_sent_as_they_are(run: RunPaths, script: Script, tmp_path: Path) -> None:
    script.pages["/health"] = b""
    file = tmp_path / "ids.jsonl"
    file.write_text('{"token_ids": [3, 5]}\n{"prompt": "text"}\n')
    more = ("--workload", "dataset", "--file", file)
    assert types("bench", run.folder, *more, *QUICK).exit_code == 0
    prompts = [body["prompt"] for body in script.bodies]
    assert [3, 5] in prompts and "text" in prompts
    said = types("bench", run.folder, *more, "--protocol", "openai-chat", *QUICK, "--save-as", "chat")
    assert "the model accepts text only" in str(said.exception)


def test_a_protocol_that_the_server_does_not_speak_is_refused(run: RunPaths, script: Script) -> None:
    script.pages["/health"] = b""
    said = types("bench", run.folder, "--protocol", "grpc", *QUICK)
    assert isinstance(said.exception, InvalidRequest) and "is not Triton" in str(said.exception)


# Any URL ----------------------------------------------------------------------------------------


def test_a_url_is_measured_without_a_run(endpoint: Endpoint, script: Script, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = types("bench", "--url", endpoint.openai_url, "--output", folder, *QUICK)
    assert result.exit_code == 0
    files = RunPaths(folder).measurement("mine")
    assert f"written: {files.summary}" in result.stderr
    assert f"again: trtllm-hpc bench show {folder}:mine" in result.stderr
    found = read_measurement(files.summary)
    assert (found.model, found.settings["protocol"]) == ("one", "openai")
    assert found.provenance["server"]["url"] == endpoint.openai_url and "run" not in found.provenance
    assert "server-metrics" not in [warning.code for warning in found.verdict.warnings]
    assert files.report.stat().st_size > 10_000
    assert "mine" in types("bench", "list", folder).stdout
    assert types("bench", "show", f"{folder}:mine").stdout == result.stdout
    again = types("bench", "--url", endpoint.openai_url, "--output", folder, *QUICK, "--save-as", "other")
    assert again.exit_code == 0
    compared = types("bench", "compare", f"{folder}:mine", f"{folder}:other")
    assert "mine" in compared.stdout
    assert types("report", f"{folder}:mine").exit_code == 0
    # The same from Python, with a key and drawn prompts.
    key = tmp_path / "key"
    key.write_text("secret\n")
    make_tokenizer(tokenizer := tmp_path / "tokenizer")
    workload = {"kind": "normal", "input_tokens": 20, "tokenizer": str(tokenizer)}
    quick: dict[str, Any] = {"requests": 2, "min_requests": 1, "min_window_seconds": 0.0, "concurrency": 2}
    last = api.bench_url(endpoint.openai_url or "", folder, key_file=key, workload=workload, **quick)
    assert script.asked[-1][2] == "Bearer secret" and len(script.bodies[-1]["prompt"].split()) > 2
    assert api.Measurement.find(folder).name == last.name


def test_a_results_folder_that_cannot_be_written_keeps_the_passes_before(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_pass = Passes.run

    def one_pass(self: Passes, level: Level, step: Step) -> PassOutcome:
        outcome = whole_pass(self, level, step)
        if step.repeat == 1:
            (tmp_path / "results").rename(tmp_path / "away")
        return outcome

    monkeypatch.setattr(Passes, "run", one_pass)
    quick: dict[str, Any] = {"requests": 4, "min_requests": 1, "min_window_seconds": 0.0, "repeats": 2}
    with pytest.raises(InvalidMeasurement, match=r"could not be written to .*: No such file") as raised:
        api.bench_url(endpoint.openai_url or "", tmp_path, name="mine", **quick)
    assert "free space there" in (raised.value.hint or "")
    found = read_measurement(tmp_path / "away" / "mine.json")
    assert len(found.levels[0].passes) == 1 and not found.valid


def test_the_url_may_leave_out_v1_or_name_what_is_no_such_server(endpoint: Endpoint, tmp_path: Path) -> None:
    root = endpoint.openai_root
    quick: dict[str, Any] = {"requests": 2, "min_requests": 1, "min_window_seconds": 0.0}
    assert api.bench_url(root, tmp_path, streaming=False, **quick).summary.protocol == "openai"
    with pytest.raises(InvalidRequest, match="has the protocol openai, not grpc"):
        api.bench_url(root, tmp_path, name="two", protocol="grpc")
    for url, place in (("node7:8000", "node7:8000"), ("ftp://node7/v1", "node7/v1")):
        with pytest.raises(InvalidRequest, match="does not begin with http://") as raised:
            api.bench_url(url, tmp_path, name="two")
        assert (raised.value.hint or "").startswith(f"write http://{place},")
    with pytest.raises(RequestFailed, match="404"):
        api.bench_url(f"{root}/prefix/v1", tmp_path, name="three")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--url", "http://one"), "--url needs --output FOLDER"),
        (("one", "--url", "http://one", "--output", "x"), "not both"),
        (("one", "--output", "x"), "--output needs --url"),
    ],
)
def test_options_that_do_not_go_together(
    options: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_HPC_RUNS", str(tmp_path))
    RunPaths(tmp_path / "one").make_folders()
    write_plan(RunPaths(tmp_path / "one"))
    result = types("bench", *options)
    assert result.exit_code == ExitCode.USAGE and words in result.stderr


def test_a_server_that_only_fails(script: Script, endpoint: Endpoint, tmp_path: Path) -> None:
    script.body, script.status = b'{"error": {"message": "out of order"}}', 500
    result = types("bench", "--url", endpoint.openai_url, "--output", tmp_path, *QUICK)
    assert isinstance(result.exception, InvalidMeasurement)
    assert "out of order" in str(result.exception) and "bench show" in str(result.exception)


def test_an_endpoint_of_both_kinds_is_asked_as_the_settings_say(endpoint: Endpoint) -> None:
    both = replace(endpoint, http_port=1, grpc_port=1)
    target = target_of(Benchmark(protocol="openai-chat", model="two"), both, "ensemble")
    assert (target.model, target.protocol, target.streaming) == ("two", "openai-chat", True)
    with pytest.raises(RequestFailed, match="cannot be reached"):
        target_of(Benchmark(), both, "ensemble")  # over gRPC, as ever


# Its progress -----------------------------------------------------------------------------------


@pytest.mark.parametrize("quiet", [False, True])
def test_a_pipe_gets_lines_about_the_progress(
    run: RunPaths, script: Script, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    script.pages["/health"] = b""
    monkeypatch.setattr(sys.modules[Step.__module__], "_LINE_PAUSE_S", 0.0)
    result = types("bench", run.folder, *QUICK, "--json", *(["-q"] if quiet else []))
    assert result.exit_code == 0 and json.loads(result.stdout)["name"] == "mine"
    if quiet:
        assert result.stderr == ""
    else:
        shown = [line for line in result.stderr.splitlines() if line.startswith("  50/s, 7 of 7 requests")]
        assert shown and "tokens/s" in shown[-1]
        assert f"written: {run.measurement('mine').table}" in result.stderr
