"""The HTML report of a sweep: frontier, latency and goodput over load, and a table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from trtllm_hpc.config.dump import flow
from trtllm_hpc.paths import write_text
from trtllm_hpc.report.formatting import quantity
from trtllm_hpc.report.html.chart import (
    ASIDE,
    CATEGORIES,
    QUIET,
    Chart,
    ChartSection,
    NoChart,
    Row,
    Spec,
    axis,
    layer,
    layers_over,
    number,
    word,
)
from trtllm_hpc.report.html.page import rendered
from trtllm_hpc.sweeps.measured import SweepResults

_HEIGHT = 300
_X = "M-.7,-.7L.7,.7M.7,-.7L-.7,.7"
"""Mark of an invalid level, as an SVG path."""
_GPU = "output tokens/s/GPU"


def write_report(results: SweepResults, to: Path) -> None:
    """Write the report. Raises TrtllmHpcError without vl-convert."""
    measured = {point.variant for point in results.points}
    values = {
        "rows": [(point, point.row()) for point in results.points],
        "without": [variant for variant in results.status.variants if variant.name not in measured],
        "flow": flow,
    }
    write_text(to, rendered("sweep", list(sections_of(results)), "sort", results=results, **values))


def sections_of(results: SweepResults) -> Iterator[ChartSection]:
    """Yield the sections of the page in order."""
    stream = "No level has both figures, because times between tokens need streamed answers."
    no_slo = "No level has goodput. It needs an SLO: --slo LIMITS."
    kinds = {"closed-loop": "requests at once", "open-loop": "requests asked for/s"}
    load = ("load", " or ".join(sorted({kinds[point.load_kind] for point in results.points})))
    user = ("tokens_per_s_per_user", "output tokens/s/user (1000 / median TPOT in ms)")
    ttft, itl = ("ttft_ms.p99", "ms"), ("itl_ms.p99", "ms")
    good = ("goodput_per_s", "requests/s within the SLO")
    gpu = ("output_tokens_per_s_per_gpu", _GPU)
    chart = partial(_chart, results)
    front = chart("frontier", "Throughput and interactivity", user, gpu, stream)
    yield ChartSection("frontier", "The frontier", [front], wide=True)
    charts = (
        chart("ttft", "TTFT p99 over load", load, ttft, stream),
        chart("itl", "Inter-token latency p99 over load", load, itl, stream),
        chart("goodput", "Goodput over load", load, good, no_slo),
    )
    yield ChartSection("load", "Latency and goodput", charts)


def _chart(
    results: SweepResults, key: str, title: str, along: tuple[str, str], up: tuple[str, str], missing: str
) -> Chart | NoChart:
    """Return a chart of two figures, each given by its key in a row and the title of its axis."""
    rows: list[Row] = []
    for point in results.points:
        x, y = map(point.row().get, (along[0], up[0]))
        if x is None or y is None:
            continue
        held = point.holds_slo is not False
        gpu, user = quantity(point.output_tokens_per_s_per_gpu), quantity(point.tokens_per_s_per_user)
        ttft, itl = (quantity(point.figures.get(f"{name}_ms.p99")) for name in ("ttft", "itl"))
        valid = f"yes{'' if held else ', but misses the SLO'}"
        if not point.valid:
            valid = f"no: {' '.join(point.findings)}"
        row = {"x": x, "y": y, "load": point.load, "variant": point.variant, "level": point.level}
        row["ok"] = point.valid
        row["figures"] = f"{gpu}/GPU, {user}/user, p99 of TTFT {ttft} ms, of ITL {itl} ms"
        rows.append({**row, "valid": valid, "frontier": point.frontier, "held": held})
    if not rows:
        return NoChart(title, missing)
    xs, ys = ([row[name] for row in rows] for name in ("x", "y"))
    names = list(dict.fromkeys(row["variant"] for row in rows))
    # As many columns as fit on a phone.
    legend = {"columns": max(1, min(3, 36 // max(map(len, names))))}
    # Few variants get a colour and a shape each, many share a range of colours.
    is_few = len(names) <= len(CATEGORIES)
    looked = {"scale": {"domain": names}, "legend": legend}
    color = word("variant", type="nominal" if is_few else "ordinal", **looked)
    tooltip = [word(name) for name in ("variant", "level", "figures", "valid")]
    layers: list[Spec] = []  # only layers with data, because Vega warns about empty ones
    if key == "frontier" and any(row["frontier"] for row in rows):
        step = {"type": "line", "interpolate": "step-before", "style": QUIET}
        layers.append(layer(step, "datum.frontier", order=number("x")))
    if any(row["ok"] for row in rows):
        line = {"type": "line", "strokeWidth": 1}
        layers.append(layer(line, "datum.ok", color=color, detail=word("variant"), order=number("load")))
    looks: Spec = {
        "color": color,
        "tooltip": tooltip,
        **({"shape": word("variant", **looked)} if is_few else {}),
    }
    for held in sorted({row["held"] for row in rows if row["ok"]}, reverse=True):
        mark = {"type": "point", "size": 60, "filled": held, "opacity": 1}
        layers.append(layer(mark, f"datum.ok && datum.held === {str(held).lower()}", **looks))
    if not all(row["ok"] for row in rows):
        cross = {"type": "point", "size": 110, "shape": _X, "color": ASIDE, "filled": False}
        layers.append(layer(cross, "!datum.ok", tooltip=tooltip))
    axes = {"x": number("x", **axis(along[1], xs)), "y": number("y", **axis(up[1], ys))}
    shared = layers_over("points", layers, **axes)
    return Chart(key, title, [shared], {"points": rows}, _HEIGHT)
