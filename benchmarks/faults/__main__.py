"""Faults of every kind, injected into real runs on a real Slurm, for docs/explanation/faults.md.

``python -m benchmarks.faults [--only NAME,…] [--out docs]``

It runs as root and submits as an ordinary user. It starts a sandbox of its own with two nodes and
for each fault submits a run with the tiny synthetic model, waits until it is under way, injects the
fault, asks ``status --json`` until it names it, waits for the end of ``submit --wait``, and looks
for what is left behind. The results are in ``faults.json`` after each fault; ``--only`` replaces
those of single faults. ``--page-only`` measures nothing and writes the page again.

The exit code is 1 when a fault is not as expected, 2 when one could not be injected.
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
    """Print progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {sentence}", file=sys.stderr, flush=True)


def interrupt(number: int, frame: object) -> None:
    """Interrupt once: a second signal must not keep the first from cancelling jobs."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupt)
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = Results.read(arguments.out / "faults.json")
    missed: list[str] = []
    try:
        if not arguments.page_only:
            with site(arguments.sandbox, (1, 2)) as made:
                missed = _measure_all(made, arguments.only, results)
    except KeyboardInterrupt:
        print("interrupted: the page shows what was measured", file=sys.stderr)
        return 130
    finally:
        found = [results.found[name] for name in NAMES if name in results.found]
        missing = [name for name in NAMES if name not in results.found]
        text = page(found, NOT_INJECTED, missing)
        (arguments.out / "faults.md").write_text(text, encoding="utf-8")
    return 2 if missed else int(not all(result.as_expected for result in found))


def _measure_all(made: Site, names: Sequence[str], results: Results) -> list[str]:
    """Measure faults, first those of a living run; returns the names of those that could not be injected."""
    faults, missed = [FAULTS[name] for name in names], list[str]()
    living = [fault for fault in faults if fault.living]
    waiting = [*([living] if living else []), *([fault] for fault in faults if not fault.living)]
    while waiting:
        some = waiting.pop(0)
        say(some[0].name if len(some) == 1 else f"{len(some)} faults of a living run")
        try:
            found = measure(made, some, say)
        except Exception as error:  # noqa: BLE001 - the other faults are measured all the same
            say(f"NOT INJECTED: {error!r}")
            missed += [fault.name for fault in some]
            continue
        finally:
            made.clean()
        for result in found:
            _add(result, results)
        if len(found) < len(some):
            waiting.insert(0, some[len(found) :])
    return missed


def _add(result: Result, results: Results) -> None:
    results.add(result)
    verdict = "as expected" if result.as_expected else "NOT as expected"
    found = f"{result.seconds} s, exit {result.exit_code}, left {result.left}: {result.told}"
    say(f"{result.name}: {verdict}; {found}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_names, default=NAMES, metavar="NAME,…", help=f"of {', '.join(NAMES)}")
    out = Path("docs/explanation")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help="page and results")
    parser.add_argument("--sandbox", default="faults", metavar="NAME", help="for two commands at once")
    parser.add_argument("--page-only", action="store_true", help="only write the page again")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(NAMES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
