"""The results as Markdown and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.reference.lines import FEATURES, TRITON
from benchmarks.reference.measure import COMPARED
from benchmarks.reference.results import JUDGED_CONCURRENCY, Results, Sample, ratio_rows

GIB = 1 << 30
NOTHING = "-"
NOT_JUDGED = f"that takes triton and one in-process contender at concurrency {JUDGED_CONCURRENCY}"


def report(results: Results) -> str:
    """All tables, the conditions under which they were measured, and the verdict."""
    head = ["", *(str(count) for count in results.concurrencies)]
    speeds = [
        [line.name, *(_speed(results.rates(line.name, count)) for count in results.concurrencies)]
        for line in results.lines
    ]
    ratios = [
        [name, *(NOTHING if ratio is None else f"{ratio:.2f}" for ratio in row)]
        for name, row in ratio_rows(results).items()
    ]
    memory = [
        [name, f"{peak.resident / GIB:.2f}", f"{peak.device / GIB:.2f}" if peak.device else NOTHING]
        for name, peak in results.memory.items()
    ]
    parts = [
        "Output tokens/s by concurrency: median (slowest to fastest round)",
        table(head, speeds),
        "Ratios of the medians",
        table(head, ratios),
        "Peak memory in GiB (triton: the server, its stubs and its watchdog together, without the client)",
        table(["", "host", "GPU tensors"], memory),
        _notes(results),
        "\n".join(str(verdict) for verdict in results.verdicts()) or "not judged: " + NOT_JUDGED,
    ]
    return "\n\n".join(part for part in parts if part)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        numbers = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return f"| {' | '.join([cells[0].ljust(widths[0]), *numbers])} |"

    rule = f"|{'|'.join(['-' * (widths[0] + 2), *('-' * (width + 1) + ':' for width in widths[1:])])}|"
    return "\n".join([line(head), rule, *(line(row) for row in rows)])


def _speed(rates: Sequence[float]) -> str:
    if not rates:
        return NOTHING
    return f"{_short(statistics.median(rates))} ({_short(rates[0])}-{_short(rates[-1])})"


def _short(rate: float) -> str:
    return f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _notes(results: Results) -> str:
    facts, samples = results.facts, results.samples
    notes = [
        f"{facts.hardware}, torch {facts.torch}, transformers {facts.transformers}, "
        f"{facts.parameters / 1e6:.0f} M parameters a rank",
        f"memory bandwidth {facts.bandwidth / 1e9:.0f} GB/s, {facts.weight_bytes / 1e9:.2f} GB of weights, "
        f"so at most {facts.bound:.0f} tokens/s at concurrency 1",
        *_shares(samples),
        *(f"failed: {name}: {reason}" for name, reason in results.failures.items()),
    ]
    return "\n".join(f"- {note}" for note in notes)


def _shares(samples: Sequence[Sample]) -> list[str]:
    notes = []
    client = [sample.sender_cpu for sample in samples if sample.line.startswith(TRITON)]
    if client:
        notes.append(f"CPU of Triton's client: at most {max(client):.1%} of a core")
    if samples:
        notes.append(
            "CPU of the contenders that wait while another is measured: "
            f"at most {max(sample.idle_cpu for sample in samples):.1%} of a core, all together"
        )
        strange = [sample.strange_cpu for sample in samples]
        notes.append(
            "CPU of all other processes of the machine: "
            f"{statistics.median(strange):.1%} of a core in the middle, {max(strange):.1%} at most"
        )
    for features, other in COMPARED.items():
        same = [
            sample.same_answers
            for sample in samples
            if sample.same_answers is not None and sample.line.endswith(FEATURES) == features
        ]
        if same:
            notes.append(f"answers equal to those of {other}: at least {min(same):.0%} in every measurement")
    return notes


def plot(results: Results, file: Path) -> None:
    """Plot output tokens per second over concurrency, one curve for each line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 5), layout="constrained")
    for line in results.lines:
        points = [
            (count, median)
            for count in results.concurrencies
            if (median := results.median(line.name, count)) is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=line.name)
    axes.plot(1, results.facts.bound, marker="_", markersize=16, color="black", label="memory bound")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(results.concurrencies), [str(count) for count in results.concurrencies])
    axes.minorticks_off()
    axes.set_xlabel("requests at a time")
    axes.set_ylabel("output tokens/s")
    axes.set_title(f"{results.facts.parameters / 1e6:.0f} M parameters, {results.facts.hardware}")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(file)
    pyplot.close(figure)
