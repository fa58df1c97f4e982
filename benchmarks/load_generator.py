"""Compare the gRPC load generator of ``trtllm-hpc bench`` with NVIDIA's perf_analyzer.

``python -m benchmarks.load_generator [--rounds 5] [--seconds 4]``

A real tritonserver serves two models: a model that answers at once, and a model that streams 50 tokens per
second, each with the server's time stamp. In each round, two load generators take turns:

- ``ours``: ``trtllm_hpc.bench.load``;
- ``perf_analyzer``: C++, from the wheel of tritonclient 2.41.1, which is downloaded once.

Both load generators run with the real-time priority that ``trtllm-hpc bench`` takes if it is allowed to; the
server does not. On two cores shared with the server, a client with ordinary priority would measure its own
wait for a core; ``--ordinary`` shows this effect.

Figures are medians over the rounds. A ratio is the median of the ratios of each round. The table also shows
the range of the rounds. Bounds:

- 32 requests at once: at least 0.95 of perf_analyzer's rate, and at most 1.5 of its CPU time per request;
- 1,000 requests per second: a rate within 0.1 %, p99 of (sent - due) at most 1 ms, and at most 1.3 of
  perf_analyzer's p99 latency;
- 64 streams: at most half a core, and inter-token times within 1 ms of the server's at p99.

The exit code is 1 if a bound is broken, 2 if a load generator failed. Needs Debian's package libb64-0d.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks.load.figures import ANCHOR, LEVELS, OURS, STREAMS, Figures, report, verdicts
from benchmarks.load.perf_analyzer import PerfAnalyzer
from benchmarks.load.server import BenchmarkFailed, running_server
from benchmarks.triton import ServerFailed
from trtllm_hpc.bench.load.process import real_time_priority

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtllm-hpc" / "perf_analyzer"
_PAUSE_S = 0.3
"""Pause between two load generators, in seconds, so that the server is idle again."""

Rounds = dict[tuple[str, str], list[Figures]]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        analyzer = PerfAnalyzer(arguments.cache)
        with tempfile.TemporaryDirectory(prefix="load-generator-") as folder:
            rounds = _measure(arguments, analyzer, Path(folder))
    except (BenchmarkFailed, ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    judged = verdicts(rounds)
    print(report(rounds, judged))
    return 0 if all(verdict.kept for verdict in judged) else 1


def _measure(arguments: argparse.Namespace, analyzer: PerfAnalyzer, folder: Path) -> Rounds:
    rounds: Rounds = {}
    with running_server(folder) as server:
        for round_ in range(arguments.rounds):
            for scenario in arguments.scenarios:
                for name in (OURS,) if scenario == STREAMS else (OURS, ANCHOR):
                    _say(f"round {round_ + 1} of {arguments.rounds}, {scenario}: {name}")
                    time.sleep(_PAUSE_S)
                    with nullcontext() if arguments.ordinary else real_time_priority():
                        if name == ANCHOR:
                            figures = analyzer.measure(scenario, server, arguments.seconds, folder)
                        else:
                            figures = _contend(scenario, server.grpc_port, arguments.seconds)
                    rounds.setdefault((scenario, name), []).append(figures)
    return rounds


def _contend(scenario: str, port: int, seconds: float) -> Figures:
    """Run our load generator in a separate process, like perf_analyzer."""
    values = (scenario, LEVELS[scenario], seconds, port)
    command = [sys.executable, "-m", "benchmarks.load.contend", *map(str, values)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkFailed(f"our load generator failed in the {scenario}:\n{done.stderr.strip()[-2000:]}")
    figures: Figures = json.loads(done.stdout)
    return figures


def _say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="repetitions of each scenario")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="duration of each load")
    parser.add_argument("--scenarios", nargs="+", choices=tuple(LEVELS), default=tuple(LEVELS))
    parser.add_argument("--ordinary", action="store_true", help="run both with ordinary priority")
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder to keep perf_analyzer in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
