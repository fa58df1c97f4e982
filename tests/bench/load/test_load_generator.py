"""The benchmark of the load generator itself: its contenders run, and its bounds are applied correctly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from benchmarks.load.contend import SCENARIOS, gap_error_p99_ms
from benchmarks.load.figures import CLOSED, OPEN, STREAMS, Figures, report, verdicts
from benchmarks.load.server import answered, running_server

ROOT = Path(__file__).parents[3]
GOOD = {
    (CLOSED, "ours"): Figures(rate_per_s=950, cpu_us_per_request=75),
    (CLOSED, "perf_analyzer"): Figures(rate_per_s=1000, cpu_us_per_request=50),
    (OPEN, "ours"): Figures(rate_per_s=1001, late_p99_ms=1.0, p99_ms=1.3),
    (OPEN, "perf_analyzer"): Figures(rate_per_s=1000, p99_ms=1.0),
    (STREAMS, "ours"): Figures(cores=0.5, gap_error_p99_ms=1.0),
}


def broken(**changed: tuple[str, Figures]) -> list[str]:
    rounds = {key: [figures] for key, figures in GOOD.items()}
    for contender, (scenario, figures) in changed.items():
        rounds[scenario, contender] = [figures]
    return [verdict.bound.rpartition(", at ")[0] for verdict in verdicts(rounds) if not verdict.kept]


def test_each_bound_fails_just_beyond_it() -> None:
    assert len(verdicts({key: [figures] for key, figures in GOOD.items()})) == 7
    assert broken() == []
    assert broken(ours=(CLOSED, Figures(rate_per_s=949, cpu_us_per_request=75.1))) == [
        "closed loop: rate over perf_analyzer's",
        "closed loop: CPU time a request over perf_analyzer's",
    ]
    assert broken(ours=(OPEN, Figures(rate_per_s=998.9, late_p99_ms=1.01, p99_ms=1.31))) == [
        "open loop: rate off by, percent",
        "open loop: p99 of sent after due, ms",
        "open loop: p99 latency over perf_analyzer's",
    ]
    assert broken(ours=(STREAMS, Figures(cores=0.51, gap_error_p99_ms=1.01))) == [
        "streams: cores of the client",
        "streams: p99 of inter-token time off by, ms",
    ]


def test_a_ratio_is_the_median_over_rounds_not_the_ratio_of_medians() -> None:
    """The machine was busy in the second round, for both contenders."""
    rounds = {
        (CLOSED, "ours"): [Figures(rate_per_s=rate, cpu_us_per_request=1) for rate in (1000, 100, 900)],
        (CLOSED, "perf_analyzer"): [
            Figures(rate_per_s=rate, cpu_us_per_request=1) for rate in (500, 200, 1000)
        ],
    }
    assert verdicts(rounds)[0].value == 0.9


def test_the_table_has_the_median_and_the_range() -> None:
    rounds = {(CLOSED, "ours"): [Figures(rate_per_s=rate) for rate in (1000.0, 3000.0, 2000.0)]}
    assert "2,000.0 (1,000.0 to 3,000.0)" in report(rounds, [])


def stamped(stamp_ms: float) -> bytes:
    response = service_pb2.ModelInferResponse()
    response.raw_output_contents.append(np.array([stamp_ms * 1e6], dtype=np.int64).tobytes())
    return bytes(service_pb2.ModelStreamInferResponse(infer_response=response).SerializeToString())


def test_gaps_are_compared_with_those_of_the_server() -> None:
    """The server sends each 20 ms; the client sees the second token 3 ms late: two gaps are off by 3 ms."""
    sent_ms, seen_ms = (0, 20, 40, 60), (1, 24, 41, 61)
    chunks = [(seen / 1e3, stamped(sent)) for sent, seen in zip(sent_ms, seen_ms, strict=True)]
    assert gap_error_p99_ms([chunks]) == pytest.approx(3)


@pytest.mark.thorough
@pytest.mark.triton
def test_each_scenario_gives_its_figures(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        for scenario in SCENARIOS:
            arguments = [scenario, "40", "0.3", str(server.grpc_port)]
            command = [sys.executable, "-m", "benchmarks.load.contend", *arguments]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            figures = json.loads(done.stdout)
            assert figures["rate_per_s"] > 1
            assert ("gap_error_p99_ms" in figures) == (scenario == STREAMS)
        assert answered(server) > 0
