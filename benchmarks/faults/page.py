"""Write docs/explanation/faults.md from the results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from benchmarks.faults.results import Result

_HEAD = """# Faults

This page shows how `status` names what breaks under a run. `python -m benchmarks.faults` writes it: the
benchmark injects each fault into a real run on the [sandbox](decisions/sandbox.md), a real Slurm with two
nodes. The run has the tiny synthetic model, one or two ranks, and a benchmark under way. One living run gets
all faults that a run recovers from, in turn; each is undone once `status` has named it.
[faults.json](faults.json) has the full results, and `--only NAME,…` measures single faults again.

- **named as**: the part of the status sentence, or of the cause below it, that matches a regular expression.
  The expression was written down before the measurement.
- **seconds**: the time from the injection until `status` names the fault. The bound is 15 s, or 60 s where a
  process is silent without having ended, or where the fault shows only once the server has started. If Slurm
  itself ends the job, or a benchmark continues without the broken requests, the time begins with the end of
  the job. Where a command reads long logs, the time is that of its answer: at most 3 s, for `explain` 10 s.
  *Survives*: the run completes as if nothing had happened.
- **exit**: the exit code of `submit --wait`.

15 s after the end, the benchmark looks for what is left: jobs, processes, `/dev/shm/trt*`, `/tmp/trt*`, and
temporary files in the run folder.
"""
_LONGEST = 20
"""Words of a quotation."""


def page(
    results: Sequence[Result],
    not_injected: Mapping[str, str] | None = None,
    not_measured: Sequence[str] = (),
) -> str:
    """Return the whole page; ``not_injected`` maps faults to the reason why they are not injected."""
    whole = [*_counts(results), "", *_unexpected(results), *_table(results), ""]
    if not_measured:
        names = ", ".join(f"`{name}`" for name in not_measured)
        whole += [f"In the catalogue, but not measured yet: {names}.", ""]
    if not_injected:
        rows = [f"| {fault} | {reason} |" for fault, reason in not_injected.items()]
        whole += ["## Not injected", "", "| fault | why not |", "|---|---|", *rows]
    return _HEAD + "\n" + "\n".join(whole).rstrip() + "\n"


def _counts(results: Sequence[Result]) -> list[str]:
    named = sum(result.named for result in results)
    good = sum(result.as_expected for result in results)
    clean = sum(not result.left for result in results)
    late = sum(not result.in_time for result in results)
    folders = [result for result in results if result.explained]
    others = ", ".join(f"`{result.name}`" for result in folders if not result.explains)
    return [
        f"Of {len(results)} faults {named} are named rightly (or rightly survived), {late} not within the "
        f"bound; {clean} leave nothing behind; with {good} everything is as expected.",
        "",
        f"`explain RUN`, asked after the end of {len(folders)} of the failed runs, names the cause in "
        f"{sum(result.explains for result in folders)}{f' (not of {others})' if others else ''}.",
    ]


def _unexpected(results: Sequence[Result]) -> list[str]:
    """Return the faults for which something is wrong, each in a row with what is wrong in bold."""
    bad = [result for result in results if not result.as_expected]
    if not bad:
        return []
    lines = ["| not as expected | named | seconds | exit | left |", "|---|---|--:|--:|--:|"]
    for result in bad:
        named = "yes" if result.named else "**no**"
        left = f"**{len(result.left)}**" if result.left else "0"
        lines.append(f"| `{result.name}` | {named} | {_seconds(result)} | {_exit(result)} | {left} |")
    left_behind = [
        f"- Left behind by `{it.name}`: {', '.join(f'`{one}`' for one in it.left)}" for it in bad if it.left
    ]
    return [*lines, "", *left_behind, *([""] if left_behind else [])]


def _table(results: Sequence[Result]) -> list[str]:
    rows = ["| fault | named as | seconds | exit |", "|---|---|--:|--:|"]
    for result in results:
        cells = [
            f"`{result.name}`: {result.title}",
            _named_as(result).replace("|", "\\|"),
            _seconds(result),
            _exit(result),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _named_as(result: Result) -> str:
    """Return the part of what a user reads that names the fault, else its beginning."""
    parts = re.split(r"; |(?<=[.:])\n|\n", result.answer.strip())
    named = (part for part in parts if re.search(result.expected, part, re.IGNORECASE))
    words = next(named, result.answer.strip()).split()
    return " ".join(words[:_LONGEST]) + (" …" if len(words) > _LONGEST else "")


def _seconds(result: Result) -> str:
    if result.survives:
        return "survives" if result.named else "**fails**"
    text = "never" if result.seconds is None else f"{result.seconds:.0f}"
    return text if result.in_time else f"**{text}**"


def _exit(result: Result) -> str:
    text = "none" if result.exit_code is None else str(result.exit_code)
    return text if result.exits_rightly else f"**{text}**"
