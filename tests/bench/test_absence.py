"""A server that goes away in the middle of a measurement, and comes back elsewhere."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.openai_server import DONE, Script, event, openai_server
from tests.bench.test_command import make_run, records
from tests.waiting import eventually
from trtllm_hpc import bench
from trtllm_hpc.api.measurement import Measurement
from trtllm_hpc.api.run import Run
from trtllm_hpc.bench import interruptions
from trtllm_hpc.bench.interruptions import ServerIdentity, ended_parts
from trtllm_hpc.bench.levels import Level
from trtllm_hpc.bench.load.loops import Count
from trtllm_hpc.bench.load.messages import Reply
from trtllm_hpc.bench.measure import MeasuredServer, run_measurement
from trtllm_hpc.bench.passes import Passes, PassOutcome
from trtllm_hpc.bench.progress import Step
from trtllm_hpc.bench.records import read_records
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import InvalidMeasurement
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths, write_json
from trtllm_hpc.runtime.records import Endpoint, add_event
from trtllm_hpc.runtime.renewal import Renewal
from trtllm_hpc.runtime.stop import server_has_ended


class Relay:
    """Passes bytes on to a port until it is closed, as a node does until it is lost.

    The server itself, which is to serve again, notices nothing: Triton 2.51 may die of requests that are cut.
    """

    def __init__(self, address: str, port: int) -> None:
        self._to = (address, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = [self._listener]
        self._kept: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def end(self) -> None:
        """Leave the server, too, once it has answered."""
        for one in self._kept:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            self._open.append(near)
            self._kept.append(far)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            return


@pytest.fixture
def relay(endpoint: Endpoint) -> Iterator[Relay]:
    relay = Relay(endpoint.address, endpoint.grpc_port)
    yield relay
    relay.close()
    relay.end()


@pytest.fixture
def run(tmp_path: Path, endpoint: Endpoint, relay: Relay) -> RunPaths:
    """Job 1 serves behind the relay, and job 2 waits to follow it."""
    paths = make_run(tmp_path / "run", None)
    replace(endpoint, job_id="1", grpc_port=relay.port).write(paths.endpoint)
    Renewal("1", "2").write(paths.renewal)
    return paths


def measure(run: RunPaths) -> Measurement:
    return bench(
        Run(run),
        name="mine",
        rate_per_second=[40, 50, 60],
        requests=40,
        warmup_requests=0,
        max_tokens=4,
        min_requests=1,
        min_window_seconds=0,
        max_late_share=1,
        max_failures_in_a_row=5,
    )


def goes_in_the_second_level(monkeypatch: pytest.MonkeyPatch, relay: Relay, run: RunPaths) -> None:
    """The server goes when ten requests of that level have been answered, once."""
    whole_pass, answered = Passes.run, list[Reply]()

    def one_pass(self: Passes, level: Level, step: Step, on_end: Count) -> PassOutcome:
        def count(ended: Reply) -> None:
            on_end(ended)
            answered.extend([ended] * (step.level == 1))
            if len(answered) == 10:
                run.endpoint.unlink()
                relay.close()

        return whole_pass(self, level, step, count)

    monkeypatch.setattr(Passes, "run", one_pass)


@pytest.mark.triton
def test_the_pass_that_was_cut_is_measured_again(
    run: RunPaths, relay: Relay, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_in_the_second_level(monkeypatch, relay, run)

    def serve_again() -> None:
        assert eventually(lambda: not run.endpoint.exists())
        replace(endpoint, job_id="2", ready_at=endpoint.ready_at + 60).write(run.endpoint)

    server = threading.Thread(target=serve_again)
    server.start()
    measurement = measure(run)
    server.join()
    assert measurement.valid, measurement.summary.verdict
    assert [
        [(one.measured, one.failed) for one in level.passes] for level in measurement.summary.levels
    ] == 3 * [[(40, 0)]]
    [warning] = [text for it in measurement.summary.verdict.warnings if "away" in (text := str(it))]
    assert "level 2 of 3 (50/s): that pass is measured again" in warning
    by_phase = {
        phase: [it for it in records(run) if it.phase == phase] for phase in ("unfinished", "measured")
    }
    assert {it.level for it in by_phase["unfinished"]} == {1} and len(by_phase["measured"]) == 120
    assert any(not it.ok for it in by_phase["unfinished"])
    assert measurement.summary.errors == {}


@pytest.mark.triton
def test_a_server_that_does_not_come_back_ends_the_measurement(
    run: RunPaths, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_in_the_second_level(monkeypatch, relay, run)
    Renewal("1", None).write(run.renewal)
    add_event(run, "serve", "stage_begin", job_id="1")
    add_event(run, "serve", "stage_end", job_id="1", exit_code=0)
    measurement = measure(run)
    assert not measurement.valid
    assert measurement.summary.verdict.findings[0].code in ("ended-server-gone", "only-failures")
    assert len(measurement.summary.levels) == 2, "what was measured is kept"


@pytest.mark.triton
def test_another_attempt_of_the_companion_measures_only_what_is_missing(
    run: RunPaths, relay: Relay, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Benchmark(
        rates_per_second=[40, 50, 60],
        requests=40,
        warmup_requests=0,
        max_tokens=4,
        min_window_seconds=0.1,
        max_late_share=1,
        max_failures_in_a_row=5,
    )
    goes_in_the_second_level(monkeypatch, relay, run)
    job = JobFile(name="a")
    served = Endpoint.read(run.endpoint)
    assert served is not None
    first = run_measurement(MeasuredServer(run, served, job), settings, COMPANION_MEASUREMENT)
    assert not first.valid and len(first.levels) == 2
    second = run_measurement(MeasuredServer(run, endpoint, job), settings, COMPANION_MEASUREMENT)
    assert second.valid, second.verdict.findings
    assert len(second.levels) == 3 and second.levels[0] == first.levels[0]
    assert second.started_at == first.started_at
    assert "The first level was measured by an earlier attempt" in str(second.verdict.warnings[0])
    written = read_records(run.measurement(COMPANION_MEASUREMENT).requests)
    assert sorted(it.index for it in written) == list(range(120)), "each request once"
    assert written[39].ended_s < written[40].sent_s
    third = run_measurement(MeasuredServer(run, endpoint, job), settings, COMPANION_MEASUREMENT)
    assert third.levels[0] != first.levels[0], "nothing was missing: it is measured anew"


@pytest.mark.triton
def test_failures_of_a_server_that_stayed_are_not_measured_again(
    run: RunPaths, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.write(run.endpoint)
    monkeypatch.setattr(interruptions, "_SETTLE_S", 0.1)
    whole_pass = Passes.run

    def failing(self: Passes, level: Level, step: Step, on_end: Count) -> PassOutcome:
        return replace(whole_pass(self, level, step, on_end), failures=5)

    monkeypatch.setattr(Passes, "run", failing)
    measurement = measure(run)
    assert len(measurement.summary.levels) == 1 and "5 requests in a row failed" in str(measurement)


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


def test_the_parts_of_a_server_that_ended_are_named_with_their_times(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "run", None)
    why, again = "rank 1 on n2 was killed by signal 9", "it is started again (1 of 3 times)"
    add_event(paths, "serve", "instance_end", instance=1, why=why, then=again)
    add_event(paths, "serve", "instance_ready", instance=1)
    add_event(paths, "serve", "front_restarted", why="the front of the servers on n1 was killed by signal 9")
    server, front = ended_parts(paths)
    assert re.fullmatch(rf"at \d\d:\d\d:\d\d instance 1: {why}; {re.escape(again)}", server)
    assert front.endswith(" the front of the servers on n1 was killed by signal 9; it is started again")


@pytest.mark.parametrize(("allowed", "valid"), [(0.01, False), (1.0, True)])
def test_failures_are_explained_by_what_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: float, valid: bool
) -> None:
    """The front dies in the first of two levels, with one request."""
    paths = make_run(tmp_path / "run", None)
    whole_pass, why = Passes.run, "the front of the servers on n1 was killed by signal 9"

    def one_pass(self: Passes, level: Level, step: Step, on_end: Count) -> PassOutcome:
        outcome = whole_pass(self, level, step, on_end)
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
            check=False,
        )
        server = MeasuredServer(paths, endpoint, None)
        verdict = run_measurement(server, settings, "mine").verdict
    findings = map(str, verdict.warnings if valid else verdict.findings)
    [sentence] = [it for it in findings if why in it]
    assert sentence.startswith("Requests broke during level 1 of 2 (1 at once): at ") and why in sentence
    if not valid:
        with pytest.raises(InvalidMeasurement) as refused:
            Measurement(paths, "mine").check()
        assert refused.value.hint == f"trtllm-hpc bench {paths.folder} measures again"


def test_a_companion_outlives_the_job_that_another_one_follows(tmp_path: Path) -> None:
    paths = make_run(tmp_path / "run", None)
    write_json(paths.instances, [])
    add_event(paths, "serve", "stage_begin", job_id="1")
    add_event(paths, "serve", "stage_end", job_id="1", exit_code=0)
    assert server_has_ended(paths)
    Renewal("1", "2").write(paths.renewal)
    assert not server_has_ended(paths)
