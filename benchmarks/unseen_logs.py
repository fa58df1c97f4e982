"""Count how often ``explain`` is right on logs of failures that the authors had not seen.

``python -m benchmarks.unseen_logs CASES [--verdicts FILE] [--page FILE] [--draw TEXT]``

CASES is a folder of cases. A case is a folder with ``log.txt`` and ``case.toml``, which contains ``kind``
(``failure`` or ``clean``), ``category``, ``source``, ``cause`` and ``remedy`` according to the public source,
and ``root_line``: the line that a good engineer would name first. The logs belong to others, so they are not
in this repository.

A reader judges each answer. The reader sees the log, the true cause and the answer, but not how the answer
was found. FILE has a line ``NAME<TAB>VERDICT`` for each case; VERDICT is ``right`` (a true sentence, and a
next step that leads to the remedy), ``half``, ``wrong`` or ``silent``. Without FILE, only root lines are
counted. ``--page`` appends a row for the draw TEXT to the table at the end of a page. Intervals are Wilson's
95 % intervals.

The exit code is 1 if fewer than 80 % of the answers are right, more than 5 % are wrong, an answer is silent,
or more than 5 % of the clean logs raise an alarm.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.logs.causes.explain import Finding, likeliest_first, of_lines
from trtllm_hpc.logs.causes.table import Kind
from trtllm_hpc.logs.facts import logs_facts

VERDICTS = ("right", "half", "wrong", "silent")
RIGHT_SHARE, WRONG_SHARE, ALARM_SHARE = 0.80, 0.05, 0.05
_Z = 1.96


@dataclass(frozen=True)
class Case:
    """A log and the answer of ``explain``."""

    name: str
    facts: dict[str, Any]
    """The fields of ``case.toml``."""
    first: Finding | None
    finds_root: bool
    """Whether the first answer quotes the root line."""
    verdict: str
    """One of ``VERDICTS``; for a clean log ``calm`` or ``alarm``; empty if nobody has judged the answer."""


def interval(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval of a share."""
    if total == 0:
        return 0.0, 1.0
    share = count / total
    middle = share + _Z**2 / (2 * total)
    spread = _Z * math.sqrt(share * (1 - share) / total + _Z**2 / (4 * total**2))
    below = 1 + _Z**2 / total
    return (middle - spread) / below, (middle + spread) / below


def read_case(folder: Path, verdicts: dict[str, str]) -> Case:
    """Read a case, explain its log, and look up the verdict on the answer."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    facts: dict[str, Any] = toml.loads((folder / "case.toml").read_text("utf-8"))
    log = folder / "log.txt"
    [log_facts] = logs_facts([log])
    answers = () if log_facts.survived else likeliest_first(of_lines([log_facts.causes]))
    first = answers[0] if answers else None
    lines = log.read_text("utf-8", errors="replace").split("\n")
    quoted = lines[first.line - 1].strip() if first is not None and first.line else ""
    root = facts.get("root_line", "").strip()
    finds_root = bool(quoted and root) and (root in quoted or quoted in root)
    verdict = verdicts.get(folder.name, "")
    if facts["kind"] == "clean":
        is_alarm = any(finding.kind is Kind.ROOT for finding in answers)
        verdict = verdict or ("alarm" if is_alarm else "calm")
    return Case(folder.name, facts, first, finds_root, verdict)


def counts(cases: list[Case]) -> tuple[int, collections.Counter[str], int, int]:
    """Return the number of failures, their verdicts, the number of clean logs, and of alarms in these."""
    failures = [case.verdict for case in cases if case.facts["kind"] == "failure"]
    clean = [case.verdict for case in cases if case.facts["kind"] == "clean"]
    return len(failures), collections.Counter(failures), len(clean), clean.count("alarm")


def table(cases: list[Case]) -> str:
    """Return the counts by category as Markdown."""
    lines = [
        "| category | failures | right | half | wrong | silent | root line quoted now | clean | alarms |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    categories: dict[str, list[Case]] = collections.defaultdict(list)
    for case in cases:
        categories[case.facts["category"]].append(case)
    for name, chosen in [*sorted(categories.items()), ("all", cases)]:
        failures, judged, clean, alarms = counts(chosen)
        roots = sum(case.finds_root for case in chosen if case.facts["kind"] == "failure")
        cells = [name, failures, *(judged[verdict] for verdict in VERDICTS), roots, clean, alarms]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def shares(cases: list[Case]) -> tuple[str, bool]:
    """Return the shares with their intervals as a sentence, and whether all are within the bounds."""
    failures, judged, clean, alarms = counts(cases)
    parts = []
    verdicts = [(verdict, judged[verdict], failures) for verdict in VERDICTS]
    for label, count, total in (*verdicts, ("alarms in clean logs", alarms, clean)):
        low, high = interval(count, total)
        share = count / max(1, total)
        parts.append(f"{label} {count} of {total} ({share:.0%}, 95 %: {low:.0%} to {high:.0%})")
    is_fine = judged["right"] >= RIGHT_SHARE * failures and judged["wrong"] <= WRONG_SHARE * failures
    return "; ".join(parts), is_fine and judged["silent"] == 0 and alarms <= ALARM_SHARE * clean


def row(draw: str, cases: list[Case]) -> str:
    """Return the row of a draw for the page's table of draws."""
    failures, judged, clean, alarms = counts(cases)
    with_interval = {}
    for name in ("right", "wrong"):
        low, high = interval(judged[name], failures)
        share = judged[name] / max(1, failures)
        with_interval[name] = f"{judged[name]} ({share:.0%}, {low:.0%} to {high:.0%})"
    roots = sum(case.finds_root for case in cases if case.facts["kind"] == "failure")
    verdicts = [with_interval.get(name, judged[name]) for name in VERDICTS]
    return "| " + " | ".join(map(str, [draw, failures, *verdicts, roots, clean, alarms])) + " |"


def main(arguments: list[str] | None = None) -> int:
    """Explain every case, and print the figures or append their row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", type=Path, nargs="+")
    parser.add_argument("--verdicts", type=Path, action="append", default=[])
    parser.add_argument("--page", type=Path, help="append a row to this page")
    parser.add_argument("--draw", default="", help="name of the draw")
    options = parser.parse_args(arguments)
    rows = [
        line.split("\t") for file in options.verdicts for line in file.read_text("utf-8").splitlines() if line
    ]
    verdicts = {
        row[0]: next((cell for cell in row[1:] if cell in (*VERDICTS, "calm", "alarm")), "") for row in rows
    }
    folders = sorted(file.parent for root in options.cases for file in root.glob("*/case.toml"))
    cases = [read_case(folder, verdicts) for folder in folders]
    sentence, fine = shares(cases)
    text = f"## {options.draw}\n\n{sentence}.\n\n{table(cases)}\n"
    if options.page is not None:
        with options.page.open("a", encoding="utf-8") as page:
            page.write(f"{row(options.draw, cases)}\n")
    print(text)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
