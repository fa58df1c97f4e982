"""Inject faults of every kind into real runs on a real Slurm, and write docs/explanation/faults.md.

``python -m benchmarks.faults [--only NAME,…] [--out docs]``, as root

The benchmark starts its own sandbox with two nodes and submits as an ordinary user. For each fault it submits
a run with the tiny synthetic model, waits until the run is under way, injects the fault, repeats
``status --json`` until the status names the fault, waits for the end of ``submit --wait``, and looks for
leftovers. Results are written to ``faults.json`` after each fault; ``--only`` replaces the results of the
named faults. ``--page-only`` measures nothing and writes the page again.

The exit code is 1 if a fault is not as expected, 2 if a fault could not be injected.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.fault import FAULTS, NOT_INJECTED
from benchmarks.faults.page import page
from benchmarks.faults.results import Result, Results
from benchmarks.faults.runner import measure
from benchmarks.faults.site import Site, site

NAMES = tuple(FAULTS)


def say(sentence: str) -> None:
    """Print a sentence on the progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def interrupt(number: int, frame: object) -> None:
    """Interrupt once, and ignore further signals: these must not stop the cancellation of jobs."""
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, interrupt)
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = Results.read(arguments.out / "faults.json")
    missed: list[str] = []
    try:
        if not arguments.page_only:
            with site(arguments.sandbox, (1, 2)) as cluster:
                missed = _measure_all(cluster, arguments.only, results)
    except KeyboardInterrupt:
        print("interrupted: the page shows the results so far", file=sys.stderr)
        return 130
    finally:
        measured = [results.found[name] for name in NAMES if name in results.found]
        missing = [name for name in NAMES if name not in results.found]
        text = page(measured, NOT_INJECTED, missing)
        (arguments.out / "faults.md").write_text(text, encoding="utf-8")
    return 2 if missed else int(not all(result.as_expected for result in measured))


def _measure_all(cluster: Site, names: Sequence[str], results: Results) -> list[str]:
    """Measure faults, those of a living run first; return the names of faults that could not be injected."""
    faults, missed = [FAULTS[name] for name in names], list[str]()
    living = [fault for fault in faults if fault.living]
    waiting = [*([living] if living else []), *([fault] for fault in faults if not fault.living)]
    while waiting:
        some = waiting.pop(0)
        say(some[0].name if len(some) == 1 else f"{len(some)} faults of a living run")
        try:
            measured = measure(cluster, some, say)
        except Exception as error:  # noqa: BLE001 - the other faults are still measured
            say(f"NOT INJECTED: {error!r}")
            missed += [fault.name for fault in some]
            continue
        finally:
            cluster.clean()
        for result in measured:
            _add(result, results)
        # A fault may have ended the living run: inject the rest into a new run.
        if len(measured) < len(some):
            waiting.insert(0, some[len(measured) :])
    return missed


def _add(result: Result, results: Results) -> None:
    results.add(result)
    verdict = "as expected" if result.as_expected else "NOT as expected"
    details = f"{result.seconds} s, exit {result.exit_code}, left {result.left}: {result.answer}"
    say(f"{result.name}: {verdict}; {details}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    only = f"measure only these faults: {', '.join(NAMES)}"
    parser.add_argument("--only", type=_names, default=NAMES, metavar="NAME,…", help=only)
    out = Path("docs/explanation")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help="folder of page and results")
    sandbox = "name of the sandbox; another name lets two benchmarks run at once"
    parser.add_argument("--sandbox", default="faults", metavar="NAME", help=sandbox)
    parser.add_argument("--page-only", action="store_true", help="write the page again, measure nothing")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(NAMES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
