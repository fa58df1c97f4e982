"""The load generator of ``trtllm-hpc bench`` compared with NVIDIA's perf_analyzer and upstream's script.

``python -m benchmarks.load_generator [--rounds 5] [--seconds 4] [--json FILE]``

One real tritonserver serves two models: one that answers at once, and one
that streams 50 tokens per second, each with the server's time stamp. In each
round, the contenders load it in turn:

- ``ours``: ``trtllm_hpc.bench.load``;
- ``perf_analyzer``: C++, from the wheel of tritonclient 2.41.1, which is downloaded once;
- ``upstream``: ``async_infer`` of tritonclient with sleeps between requests, as
  ``benchmark_core_model.py`` does it. It has no closed loop: it sends as fast as it can;
- ``grpcio``: gRPC's Python library, which ours would use if it were fast enough.

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
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.load.bounds import ANCHOR, verdicts
from benchmarks.load.contend import CONTENDERS
from benchmarks.load.figures import CLOSED, OPEN, STREAMS, Figures
from benchmarks.load.perf_analyzer import PerfAnalyzer
from benchmarks.load.server import BenchmarkFailed, Server, running_server
from benchmarks.load.show import report
from benchmarks.triton import ServerFailed
from trtllm_hpc.bench.load.process import real_time_priority

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtllm-hpc" / "perf_analyzer"
_LEVELS = {CLOSED: 32, OPEN: 1000, STREAMS: 64}
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
    judged = verdicts(rounds, _LEVELS[OPEN])
    print(report(rounds, judged, _LEVELS))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_record(arguments, rounds), indent=1) + "\n", encoding="utf-8")
    return 0 if all(verdict.kept for verdict in judged) else 1


def _measure(arguments: argparse.Namespace, analyzer: PerfAnalyzer, folder: Path) -> Rounds:
    rounds: Rounds = {}
    with running_server(folder) as server:
        for round_ in range(arguments.rounds):
            for scenario in arguments.scenarios:
                for name in _contenders(scenario):
                    _say(f"round {round_ + 1} of {arguments.rounds}, {scenario}: {name}")
                    time.sleep(_PAUSE_S)
                    level = _LEVELS[scenario]
                    with nullcontext() if arguments.ordinary else real_time_priority():
                        if name == ANCHOR:
                            figures = analyzer.measure(scenario, server, level, arguments.seconds, folder)
                        else:
                            figures = _contend(name, scenario, server, arguments.seconds)
                    rounds.setdefault((scenario, name), []).append(figures)
    return rounds


def _contenders(scenario: str) -> list[str]:
    own = [name for name, of in CONTENDERS if of == scenario]
    return own if scenario == STREAMS else [own[0], ANCHOR, *own[1:]]


def _contend(name: str, scenario: str, server: Server, seconds: float) -> Figures:
    """Measure in a separate process, as perf_analyzer is."""
    values = (name, scenario, _LEVELS[scenario], seconds, server.endpoint.grpc_port)
    command = [sys.executable, "-m", "benchmarks.load.contend", *map(str, values)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkFailed(f"{name} failed in the {scenario}:\n{done.stderr.strip()[-2000:]}")
    return Figures(**json.loads(done.stdout))


def _record(arguments: argparse.Namespace, rounds: Rounds) -> dict[str, Any]:
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": {"cores": os.cpu_count(), "processor": _processor()},
        "bounds": [{**asdict(verdict), "kept": verdict.kept} for verdict in verdicts(rounds, _LEVELS[OPEN])],
        "settings": {name: str(value) for name, value in vars(arguments).items()},
        "rounds": [
            {"scenario": scenario, "contender": name, "rounds": [one.as_dict() for one in figures]}
            for (scenario, name), figures in rounds.items()
        ],
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="of each contender's load")
    parser.add_argument("--scenarios", nargs="+", choices=tuple(_LEVELS), default=tuple(_LEVELS))
    parser.add_argument("--ordinary", action="store_true", help="leave the contenders' priority as it is")
    parser.add_argument("--cache", type=Path, default=_CACHE, help="folder for perf_analyzer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
