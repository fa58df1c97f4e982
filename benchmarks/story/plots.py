"""The plots of docs/explanation/gpu.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.story.figures import Figures, Record, level_of, rate_of
from benchmarks.story.start import TOTAL

MODELS = ("tensorrt_llm", "ensemble", "tensorrt_llm_bls")
WHOLE, STREAMED = "--", "-"
PERCENTILES = {"p50": "-", "p99": ":"}


def plot(figures: Figures, folder: Path) -> dict[str, str]:
    """Draw what was measured.

    Returns:
        File name of each plot by what it shows; nothing without matplotlib.
    """
    try:
        import matplotlib
    except ImportError:
        return {}
    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    drawings = {"throughput": _throughput, "latency": _latency, "start": _starts}
    for name, draw in drawings.items():
        figure = draw(figures, pyplot)
        if figure is not None:
            written[name] = f"gpu-{name}.svg"
            # The same figures give the same file: no date, no random names.
            matplotlib.rcParams["svg.hashsalt"] = name
            figure.savefig(folder / written[name], metadata={"Date": None})
            pyplot.close(figure)
    return written


def _measured(figures: Figures) -> dict[str, Record]:
    return {name: story for name, story in figures.stories.items() if story.get("levels")}


def _throughput(figures: Figures, pyplot: Any) -> Any:
    """Output tokens a second by requests at once: a panel for each model, a colour for each story."""
    stories = _measured(figures)
    if not stories:
        return None
    figure, panels = pyplot.subplots(1, 3, figsize=(13, 4.5), layout="constrained", sharey=True)
    for panel, model in zip(panels, MODELS, strict=True):
        for colour, (name, story) in enumerate(stories.items()):
            for streamed, line in ((True, STREAMED), (False, WHOLE)):
                counts = story["settings"]["concurrency"]
                rates = [(count, rate_of(story, model, count, streamed=streamed)) for count in counts]
                points = [(count, rate) for count, rate in rates if rate]
                label = f"{name}, {'streamed' if streamed else 'whole answers'}"
                if points:
                    panel.plot(*zip(*points, strict=True), line, marker="o", color=f"C{colour}", label=label)
        _by_concurrency(panel, figures, model)
    panels[0].set_ylabel("output tokens/s")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _latency(figures: Figures, pyplot: Any) -> Any:
    """Time to first token and inter-token time of streams, p50 and p99."""
    stories = _measured(figures)
    if not stories:
        return None
    figure, rows = pyplot.subplots(2, 3, figsize=(13, 7.5), layout="constrained", sharey="row", sharex=True)
    names = {"ttft_from_send_ms": "time to first token, ms", "itl_ms": "inter-token time, ms"}
    for panels, (key, title) in zip(rows, names.items(), strict=True):
        for panel, model in zip(panels, MODELS, strict=True):
            for colour, (name, story) in enumerate(stories.items()):
                _percentiles(panel, story, model, key, (name, f"C{colour}"))
            _by_concurrency(panel, figures, model if key == "ttft_from_send_ms" else "")
        panels[0].set_ylabel(title)
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _percentiles(panel: Any, story: Record, model: str, key: str, look: tuple[str, str]) -> None:
    name, colour = look
    for percentile, line in PERCENTILES.items():
        points = [
            (count, level[key][percentile])
            for count in story["settings"]["concurrency"]
            if (level := level_of(story, model, count, streamed=True)) and key in level
        ]
        if points:
            panel.plot(
                *zip(*points, strict=True), line, marker="o", color=colour, label=f"{name}, {percentile}"
            )


def _by_concurrency(panel: Any, figures: Figures, title: str) -> None:
    from matplotlib.ticker import LogLocator

    counts = sorted({count for it in figures.stories.values() for count in it["settings"]["concurrency"]})
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(counts, [str(count) for count in counts])
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:,g}")
    panel.minorticks_off()
    panel.set_xlabel("requests at once")
    panel.set_title(title)
    panel.grid(visible=True, alpha=0.3)


def _starts(figures: Figures, pyplot: Any) -> Any:
    """The phases of each start, one after another."""
    bars = [
        (f"{name}, {which} start", start["phases_s"])
        for name, story in figures.stories.items()
        for which, start in zip(("first", "second"), story.get("starts", []), strict=False)
    ]
    if not bars:
        return None
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.45 * len(bars)), layout="constrained")
    phases = list(dict.fromkeys(phase for _, seconds in bars for phase in seconds if phase != TOTAL))
    left = [0.0] * len(bars)
    for phase in phases:
        lengths = [seconds.get(phase, 0.0) for _, seconds in bars]
        axes.barh([label for label, _ in bars], lengths, left=left, label=phase)
        left = [before + length for before, length in zip(left, lengths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("seconds since submit")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
