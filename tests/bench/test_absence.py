"""A server that goes away in the middle of a measurement, and comes back elsewhere."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.bench.openai_server import DONE, Script, event, openai_server
from tests.bench.test_command import make_run
from trtllm_hpc.api.measurement import Measurement
from trtllm_hpc.bench import interruptions
from trtllm_hpc.bench.interruptions import Follow, ServerIdentity, ended_parts, was_cut
from trtllm_hpc.bench.measure import MeasuredServer, run_measurement
from trtllm_hpc.bench.passes import Passes, PassOutcome
from trtllm_hpc.bench.progress import Step
from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.results import Caveat, Level, MeasurementSummary, Pass, Verdict
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import InvalidMeasurement, JobLost
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths, write_json
from trtllm_hpc.runtime.records import Endpoint, add_event

THREE = Benchmark(
    concurrencies=[1, 2, 3],
    requests=4,
    warmup_requests=0,
    min_requests=1,
    min_window_seconds=0.0,
    max_late_share=1,
)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return make_run(tmp_path / "run", None)


@pytest.fixture
def endpoint(run: RunPaths) -> Iterator[Endpoint]:
    with openai_server(Script([event("GR", reason="length"), event(usage=(5, 1)), DONE])) as ready:
        ready.write(run.endpoint)
        yield ready


def lost_in_the_second_level(
    monkeypatch: pytest.MonkeyPatch, run: RunPaths, endpoint: Endpoint, **what: Any
) -> None:
    """The first pass of that level loses its server; another job serves then."""
    whole_pass, lost = Passes.run, list[Step]()

    def one_pass(self: Passes, level: Level, step: Step) -> PassOutcome:
        outcome = whole_pass(self, level, step)
        if step.level == 1 and not lost:
            lost.append(step)
            replace(endpoint, job_id="2", ready_at=60.0).write(run.endpoint)
            records = [replace(it, status="UNAVAILABLE", output_tokens=None) for it in outcome.records]
            verdict = Verdict([Caveat("server-gone", len(records))])
            result = replace(outcome.result, failed=len(records), verdict=verdict)
            return replace(outcome, result=result, records=records, **what)
        return outcome

    monkeypatch.setattr(Passes, "run", one_pass)


def measure(run: RunPaths, endpoint: Endpoint, follow: Follow | None = None, name: str = "mine") -> Any:
    server = MeasuredServer(run, endpoint, None, follow)
    measured: MeasurementSummary = run_measurement(server, THREE, name)
    return measured


def test_the_pass_that_was_cut_is_measured_again(
    run: RunPaths, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_in_the_second_level(monkeypatch, run, endpoint, gone=True)
    found = measure(run, endpoint, lambda: replace(endpoint, job_id="2", ready_at=60.0))
    assert found.valid, found.verdict
    assert [(level.measured, level.failed) for level in found.levels] == [(4, 0)] * 3
    [warning] = [text for it in found.verdict.warnings if "away" in (text := str(it))]
    assert "level 2 of 3 (2 at once): this pass is measured again" in warning
    written = read_records(run.measurement("mine").requests)
    assert all(it.ok for it in written) and found.errors == {}


def test_a_server_that_does_not_come_back_ends_the_measurement(
    run: RunPaths, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> Endpoint:
        raise JobLost("Job 1 has ended.")

    lost_in_the_second_level(monkeypatch, run, endpoint, gone=True)
    found = measure(run, endpoint, nowhere)
    assert found.verdict.findings[0].code == "ended-server-gone"
    assert "did not come back: Job 1 has ended." in " ".join(map(str, found.verdict.warnings))
    assert len(found.levels) == 2, "what was measured is kept"


def test_another_attempt_of_the_companion_measures_only_what_is_missing(
    run: RunPaths, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_in_the_second_level(monkeypatch, run, endpoint, gone=True)
    first, second, third = (measure(run, endpoint, name=COMPANION_MEASUREMENT) for _ in range(3))
    assert not first.valid and len(first.levels) == 2
    assert second.valid and len(second.levels) == 3 and second.levels[0] == first.levels[0]
    assert second.started_at == first.started_at
    assert "The first level was measured by an earlier attempt" in str(second.verdict.warnings[0])
    assert third.levels[0] != first.levels[0], "nothing was missing: it is measured anew"
    written = read_records(run.measurement(COMPANION_MEASUREMENT).requests)
    assert sorted(it.level for it in written) == [0] * 4 + [1] * 4 + [2] * 4


def test_failures_of_a_server_that_stayed_are_not_measured_again(
    run: RunPaths, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruptions, "_SETTLE_S", 0.1)
    whole_pass = Passes.run

    def failing(self: Passes, level: Level, step: Step) -> PassOutcome:
        return replace(whole_pass(self, level, step), failures=5)

    monkeypatch.setattr(Passes, "run", failing)
    found = measure(run, endpoint, lambda: endpoint)
    assert len(found.levels) == 1 and "5 requests in a row failed" in str(found.verdict.findings[0])


@pytest.mark.parametrize(
    ("before", "after", "was_replaced_by"),
    [((0,), (0,), False), ((0,), (1,), True), ((0, 0), (1, 0), False), ((0, 1), (1, 2), True)],
)
def test_only_without_any_instance_was_the_server_away(
    tmp_path: Path, before: tuple[int, ...], after: tuple[int, ...], was_replaced_by: bool
) -> None:
    paths = make_run(tmp_path / "run", None)
    places = []
    for restarts in (before, after):
        write_json(paths.instances, [{"instance": 0, "restarts": count} for count in restarts])
        places.append(ServerIdentity.of(paths))
    assert places[0].was_replaced_by(places[1]) is was_replaced_by


def test_a_proxy_that_was_started_again_was_away(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "run", None)
    before = ServerIdentity.of(paths)
    add_event(paths, "serve", "proxy_restarted", why="the proxy (HAProxy) ended by itself, with exit code -9")
    assert before.was_replaced_by(ServerIdentity.of(paths))


def test_the_last_requests_fail_before_the_supervisor_has_seen_the_proxy_end(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "run", None)
    before = ServerIdentity.of(paths)
    lost = RequestRecord(
        0, 0, 0, "measured", 0.0, 0.0, 0.1, "UNAVAILABLE", error="the server closed the connection"
    )
    outcome = PassOutcome(cast(Pass, None), [lost], interrupted=False)
    threading.Timer(1, add_event, (paths, "serve", "proxy_restarted"), {"why": "it ended"}).start()
    assert was_cut(paths, before, outcome)


def test_the_parts_of_a_server_that_ended_are_named_with_their_times(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "run", None)
    why, again = "rank 1 on n2 was killed by signal 9", "it is started again (1 of 3 times)"
    add_event(paths, "serve", "instance_end", instance=1, why=why, then=again)
    add_event(paths, "serve", "instance_ready", instance=1)
    add_event(paths, "serve", "front_restarted", why="the front of the servers on n1 was killed by signal 9")
    removed = "sockets of the server were removed: /dev/shm/trt_proxy0/0/http"
    add_event(paths, "serve", "trouble", part="sockets", why=removed)
    add_event(paths, "serve", "trouble", part="sockets", why=None)
    server, front, sockets = ended_parts(paths)
    assert re.fullmatch(rf"at \d\d:\d\d:\d\d instance 1: {why}; {re.escape(again)}", server)
    assert front.endswith(" the front of the servers on n1 was killed by signal 9; it is started again")
    assert sockets.endswith(removed)


@pytest.mark.parametrize(("allowed", "valid"), [(0.01, False), (1.0, True)])
def test_failures_are_explained_by_what_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: float, valid: bool
) -> None:
    """The front dies in the first of two levels, with one request."""
    paths = make_run(tmp_path / "run", None)
    whole_pass, why = Passes.run, "the front of the servers on n1 was killed by signal 9"

    def one_pass(self: Passes, level: Level, step: Step) -> PassOutcome:
        outcome = whole_pass(self, level, step)
        if step.level > 0:
            return outcome
        add_event(paths, "serve", "front_restarted", why=why)
        return replace(outcome, result=replace(outcome.result, failed=1))

    monkeypatch.setattr(Passes, "run", one_pass)
    with openai_server(Script([event("GR", reason="length"), event(usage=(5, 1)), DONE])) as endpoint:
        settings = Benchmark(
            concurrencies=[1, 2],
            requests=4,
            warmup_requests=0,
            min_requests=1,
            min_window_seconds=0.0,
            max_error_share=allowed,
        )
        server = MeasuredServer(paths, endpoint, None)
        verdict = run_measurement(server, settings, "mine").verdict
    findings = map(str, verdict.warnings if valid else verdict.findings)
    [sentence] = [it for it in findings if why in it]
    assert sentence.startswith("Requests failed during level 1 of 2 (1 at once): at ") and why in sentence
    if not valid:
        with pytest.raises(InvalidMeasurement) as refused:
            Measurement(paths, "mine").check()
        assert refused.value.hint == f"trtllm-hpc bench {paths.folder} measures again"
