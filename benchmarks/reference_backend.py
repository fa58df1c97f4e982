"""The reference backend behind Triton, compared with transformers without a server.

``python -m benchmarks.reference_backend [--model llama-170m] [--concurrency 1,8,32] …``

In one run, on the same model, prompts and number of new tokens (greedy, no
end token), it measures the output tokens a second of

- ``triton``: the real Triton server, over a gRPC stream from a separate client;
- ``engine``: our engine in one process, without Triton;
- ``continuous batching``: that of transformers, in a process; on GPUs also with CUDA graphs;
- ``generate``: transformers' plain generation on static batches;
  on GPUs also with a static cache, which transformers compiles.

Each runs in its own process, which is idle while another is measured. They take
turns in a different order each round, so that drift affects all of them. The
first three run a closed loop: a new request follows each answer. With
``--features`` triton and engine are measured a second time, with sampling,
penalties, bad and stop words, minimum length, seed and log-probs in every
request.

Bounds at concurrency 32: on CPUs triton within 0.9 of the fastest contender in one
process; everywhere, with all features, within 0.9 of the fastest way of the library,
which lacks them. The static batch is not compared. The exit code is 1 when a bound
is broken, 2 when a contender failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.arguments import number, numbers
from benchmarks.reference.children import Task, child
from benchmarks.reference.lines import CONTENDERS, lines
from benchmarks.reference.measure import Measurement
from benchmarks.reference.prepare import Facts
from benchmarks.reference.results import Results
from benchmarks.reference.show import plot, report
from benchmarks.reference.workload import BenchmarkFailed, Setup
from trtllm_hpc.config.synthetic_models import SHAPES


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="reference-backend-") as folder:
            results = _run(arguments, Path(folder))
    except BenchmarkFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report(results))
    if arguments.json is not None:
        record = results.record({name: str(value) for name, value in vars(arguments).items()})
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        plot(results, arguments.plot)
    return _judge(results)


def _run(arguments: argparse.Namespace, folder: Path) -> Results:
    setup = Setup(
        folder=folder,
        model=arguments.model,
        dtype=arguments.dtype,
        tensor_parallel=arguments.tensor_parallel,
        decoupled=arguments.decoupled,
        prompt_tokens=arguments.prompt_tokens,
        new_tokens=arguments.new_tokens,
        most=max(arguments.concurrency),
    )
    _say(f"preparing {setup.model}")
    setup, facts = _prepare(setup)
    table = lines(arguments.contenders, facts.device, features=arguments.features)
    results = Results(facts, table, arguments.concurrency)
    with ExitStack() as stack:
        measurement = Measurement(results, arguments.requests_per_slot, _say)
        measurement.start(stack, setup)
        for concurrency in arguments.concurrency:
            measurement.warm_up(concurrency)
            for round_ in range(arguments.rounds):
                measurement.measure(concurrency, round_)
        measurement.ask_memory()
    return results


def _prepare(setup: Setup) -> tuple[Setup, Facts]:
    """Prepare in a child process, so that the memory of its libraries is freed."""
    with child(Task("prepare", "prepare"), setup) as preparing:
        prepared: tuple[Setup, Facts] = preparing.receive()
    return prepared


def _judge(results: Results) -> int:
    if results.failures:
        return 2
    return 0 if all(verdict.is_kept for verdict in results.verdicts()) else 1


def _say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        type=_model,
        default="llama-170m",
        help=f"{', '.join(SHAPES)}, or a local folder in transformers' format",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--tensor-parallel", type=number, default=1, metavar="N", help="ranks behind Triton")
    parser.add_argument("--decoupled", action="store_true", help="serve a decoupled model")
    parser.add_argument(
        "--contenders", type=_contenders, default=CONTENDERS, metavar="NAME,…", help=", ".join(CONTENDERS)
    )
    parser.add_argument("--features", action="store_true", help="measure with all features too")
    parser.add_argument("--concurrency", type=numbers, default=(1, 2, 4, 8, 16, 32), metavar="N,…")
    parser.add_argument("--prompt-tokens", type=number, default=32, metavar="N")
    parser.add_argument("--new-tokens", type=number, default=64, metavar="N")
    parser.add_argument("--requests-per-slot", type=number, default=2, metavar="N", help="one after another")
    parser.add_argument("--rounds", type=number, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them; needs matplotlib")
    return parser


def _model(text: str) -> str:
    if text not in SHAPES and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is neither a folder nor one of {', '.join(SHAPES)}")
    return text


def _contenders(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = set(names) - set(CONTENDERS)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(CONTENDERS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
