"""Write docs/explanation/faults.md from the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.faults.results import Result

_HEAD = """# Faults

What `status` says, and what is left behind, when something breaks under a run. This page is written by
`python -m benchmarks.faults`, which injects each fault into a real run on the
[sandbox](decisions/sandbox.md): a real Slurm with two nodes, the tiny synthetic model, two ranks on two nodes
(or one rank where other ranks do not matter), and a benchmark under way. Faults from which a living run
recovers are injected into one run one after the other, and undone once they are named. The raw results are in
[faults.json](faults.json); `--only NAME,…` measures single faults again.

- **cause** is `yes` if the sentence, or the cause that `status` shows below it, matches the regular
  expression that was written down for this fault before.
- **seconds** are those from the injection until `status` said it: at most 15, at most 60 where a process is
  silent and has not ended, or where the fault shows only once the server has started. Where Slurm itself ends
  the job (its own pauses are up to half a minute), or a benchmark goes on without the requests that broke,
  they are those from the end that Slurm gives. Where a command has to read long logs, they are those that its
  answer takes: at most 3, for `explain` 10.
- **exit** is the exit code of `submit --wait`.
- **left** is what is there 15 s after the end: jobs, processes, `/dev/shm/trt*`, `/tmp/trt*`,
  temporary files in the run folder.
"""


def page(
    results: Sequence[Result],
    not_injected: Mapping[str, str] | None = None,
    not_measured: Sequence[str] = (),
) -> str:
    """Return the page as Markdown; ``not_injected`` maps faults to the reason why they are not injected."""
    whole = [*_counts(results), "", *_table(results), ""]
    if not_measured:
        names = ", ".join(f"`{name}`" for name in not_measured)
        whole += [f"In the catalogue, and not measured yet: {names}.", ""]
    if not_injected:
        rows = [f"| {fault} | {reason} |" for fault, reason in not_injected.items()]
        whole += ["## Not injected", "", "| fault | why not |", "|---|---|", *rows, "", "## Each fault", ""]
    for result in results:
        whole += _details(result)
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


def _table(results: Sequence[Result]) -> list[str]:
    rows = ["| fault | cause | seconds | exit | left | |", "|---|---|--:|--:|---|---|"]
    for result in results:
        cells = [
            result.title,
            "yes" if result.named else "**no**",
            _seconds(result),
            _exit(result),
            f"**{len(result.left)}**" if result.left else "nothing",
            f"[{result.name}](#{result.name})",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _seconds(result: Result) -> str:
    if result.survives:
        return "survives" if result.named else "**fails**"
    text = "never" if result.seconds is None else f"{result.seconds:.0f}"
    return text if result.in_time else f"**{text}**"


def _exit(result: Result) -> str:
    text = "none" if result.exit_code is None else str(result.exit_code)
    return text if result.exits_rightly else f"**{text}**"


def _details(result: Result) -> list[str]:
    lines = [
        f"### {result.name}",
        "",
        f"{result.title[0].upper()}{result.title[1:]}.",
        "",
        f"- {result.sentence}",
    ]
    if result.cause:
        lines.append(f"- Cause: {result.cause}")
    lines += [f"- {note}" for note in result.notes]
    lines += [f"- Left behind: `{leftover}`" for leftover in result.left]
    return [*lines, ""]
