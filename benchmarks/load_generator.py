"""The load generator of ``trtllm-hpc bench`` over gRPC compared with NVIDIA's perf_analyzer.

``python -m benchmarks.load_generator [--rounds 5] [--seconds 4]``

One real tritonserver serves two models: one that answers at once, and one
that streams 50 tokens per second, each with the server's time stamp. In each
round, the contenders load it in turn:

- ``ours``: ``trtllm_hpc.bench.load``;
- ``perf_analyzer``: C++, from the wheel of tritonclient 2.41.1, which is downloaded once;

Every contender, not the server, has the real-time priority that ``trtllm-hpc
bench`` takes where it may: children inherit it. On two cores that it shares with
the server a client of ordinary priority measures how long it waits for a core;
``--ordinary`` shows that.

Figures are medians over the rounds, ratios medians of each round's own; the
table shows the range of the rounds too. Bounds:
at 32 requests at once 0.95 of perf_analyzer's rate and 1.5 of its CPU time a
request; at 1,000 requests a second 0.1 % of that rate, p99 of (sent - due) under
1 ms and 1.3 of perf_analyzer's p99 latency; for 64 streams half a core and
inter-token times within 1 ms of the server's at p99. The exit code is 1 when
one is broken, 2 when a contender failed. Needs Debian's libb64-0d.
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
"""The server comes to rest between two contenders."""

Rounds = dict[tuple[str, str], list[Figures]]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
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
    """Measure in a separate process, as perf_analyzer is."""
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
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="of each contender's load")
    parser.add_argument("--scenarios", nargs="+", choices=tuple(LEVELS), default=tuple(LEVELS))
    parser.add_argument("--ordinary", action="store_true", help="leave the contenders' priority as it is")
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder for perf_analyzer")
    return parser


if __name__ == "__main__":
    sys.exit(main())
