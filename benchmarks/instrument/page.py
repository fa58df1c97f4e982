"""The figures of the instrument: their bounds, their tables, and the page that shows them."""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.instrument.clients import OURS
from trtllm_hpc import __version__

MAX_WRONG = 0.02
"""A figure is wrong if it differs from the truth by this share."""
TLS_CORES = 3
"""TLS is judged where HAProxy, the server and the client have a core each."""
NAN = math.nan


class Figures(NamedTuple):
    """Figures of one run of a client, or medians of several; NaN: the client does not report the figure."""

    cpu_us: float
    """CPU time per token, from the first request to the last token."""
    whole_us: float
    """The same with what the client does after the last token."""
    request_us: float
    """CPU time per request, from the first request to the last token."""
    tokens_per_s: float
    ttft_p50_ms: float
    """Ours: error of a request's TTFT. Peers: error of the median that they report."""
    ttft_p99_ms: float
    next_p50_ms: float
    """From the end of an answer to the next request, as the server saw them."""
    next_p99_ms: float
    stamp_p50_ms: float = NAN
    """The stamp of a token minus its send."""
    stamp_p99_ms: float = NAN
    bound_ms: float = NAN
    """Upper bound, by the client itself, on the error of 99 % of its stamps."""
    failed: float = 0.0


LIMITS_MS = (
    ("stamp of a token (p99)", "stamp_p99_ms", 128, 1.5),
    ("stamp of a token (p99)", "stamp_p99_ms", 512, 5.0),
    ("error of TTFT (p50)", "ttft_p50_ms", 128, 1.0),
    ("error of TTFT (p99)", "ttft_p99_ms", 128, 3.0),
    ("answer's end to next request (p99)", "next_p99_ms", 128, 3.0),
)
"""Bounds for our client: label, figure, number of streams, largest value allowed."""


RISING = """The tokens of 512 streams come at shorter and shorter intervals. *Off most* is the one of the p50
and p99 of TTFT and inter-token latency that differs most from the server's own. A measurement with a figure
that is wrong by 2 % or more must be called invalid."""


class Step(NamedTuple):
    """One step of the rising load."""

    tokens_per_s: float
    itl_ms: float
    figure: str
    """The one that is off most."""
    off: float
    """Share of the true value."""
    late_ms: float
    """What 99 % of the stamps are late by at most."""
    bound_ms: float
    reasons: str
    """Why the verdict calls the figures invalid; empty: it does not."""


class Wide(NamedTuple):
    """Very many streams at once."""

    processes: int
    most: int
    """Open streams at the same moment, as the server saw them."""
    failed: int
    late_ms: float
    bound_ms: float
    reasons: str


class Bound(NamedTuple):
    """A bound and what was measured."""

    name: str
    shown: str
    kept: bool


class Client(NamedTuple):
    """A row of the table: one client under one load."""

    streams: int
    tls: bool
    name: str


def bounds(medians: Mapping[Client, Figures], steps: Sequence[Step], wide: Wide | None) -> list[Bound]:
    """Judge what was measured; what was not is left out."""
    found = list[Bound]()
    for client, figures in medians.items():
        where = f"{client.streams:,} streams{' over TLS' if client.tls else ''}"
        if client.name == OURS and (not client.tls or len(os.sched_getaffinity(0)) >= TLS_CORES):
            for name, field, streams, limit_ms in LIMITS_MS:
                if streams == client.streams:
                    value_ms = getattr(figures, field)
                    kept = value_ms <= limit_ms
                    found.append(
                        Bound(f"{where}: {name} at most {limit_ms:g} ms", f"{value_ms:.2f} ms", kept)
                    )
        peers = {it: medians[it].cpu_us for it in medians if it[:2] == client[:2] and it.name != OURS}
        if client.name == OURS and peers:
            cheapest = min(peers, key=lambda it: peers[it])
            share = figures.cpu_us / peers[cheapest]
            name = f"{where}: CPU a token at most half of the cheapest peer's"
            found.append(Bound(name, f"{share:.2f} of {cheapest.name}'s", share <= 0.5))
    if steps and min(step.itl_ms for step in steps) < 10:
        # The client keeps up if a token is read before the next one of its stream is sent.
        carried = max((step.tokens_per_s for step in steps if step.late_ms < step.itl_ms), default=0.0)
        found.append(Bound("one core carries 50,000 tokens/s", f"{carried:,.0f} tokens/s", carried >= 50_000))
    if wrong := [step for step in steps if step.off >= MAX_WRONG]:
        called = sum(bool(step.reasons) for step in wrong)
        name = "whatever is wrong by 2 % is called invalid"
        found.append(Bound(name, f"{called} of {len(wrong)} steps", called == len(wrong)))
    if wide is not None:
        shown, kept = f"{wide.most:,} at once, {wide.failed} errors", wide.most >= 10_000 and not wide.failed
        found.append(Bound("10,000 open streams without an error", shown, kept))
    return found


def medians_of(runs: Mapping[Client, Sequence[Figures]]) -> dict[Client, Figures]:
    """Return the medians over the rounds, by streams."""
    return {
        client: Figures(*map(statistics.median, zip(*runs[client], strict=True)))
        for client in sorted(runs, key=lambda it: it[:2])
    }


def text(
    medians: Mapping[Client, Figures], steps: Sequence[Step], wide: Wide | None, judged: Sequence[Bound]
) -> str:
    """Return the results as Markdown."""
    rows = [
        [
            f"{client.streams:,}{' TLS' if client.tls else ''}",
            f"**{client.name}**" if client.name == OURS else client.name,
            f"{it.cpu_us:.1f}",
            f"{it.whole_us:.1f}",
            f"{it.request_us:,.0f}",
            f"{it.tokens_per_s:,.0f}",
            "" if math.isnan(it.stamp_p50_ms) else f"{it.stamp_p50_ms:.2f} / {it.stamp_p99_ms:.2f}",
            "" if math.isnan(it.bound_ms) else f"{it.bound_ms:.2f}",
            f"{it.ttft_p50_ms:.2f} / {it.ttft_p99_ms:.2f}",
            f"{it.next_p50_ms:.2f} / {it.next_p99_ms:.2f}",
        ]
        for client, it in medians.items()
    ]
    heads = (
        "streams | client | CPU µs a token | whole | CPU µs a request | tokens/s | stamp of a token off, ms"
    )
    parts = [_markdown(f"{heads} | own bound, ms | TTFT off, ms | end to next request, ms", rows)]
    rows = [
        [
            f"{step.tokens_per_s:,.0f}",
            f"{step.itl_ms:g}",
            f"{step.figure} {step.off:.1%}",
            f"{step.late_ms:.2f}",
            f"{step.bound_ms:.2f}",
            step.reasons or "valid",
        ]
        for step in steps
    ]
    heads = "tokens/s | interval, ms | off most | stamps late (p99), ms | own bound, ms | verdict"
    parts += ["## A rising load", RISING, _markdown(heads, rows)]
    if wide is not None:
        verdict = wide.reasons or "valid."
        parts.append(
            f"With {wide.processes} processes {wide.most:,} streams were open at once, with {wide.failed} "
            f"errors. 99 % of the stamps were late by at most {wide.late_ms:.1f} ms, and the client's own "
            f"bound was {wide.bound_ms:.1f} ms. Verdict: {verdict}"
        )
    rows = [[bound.name, bound.shown, "kept" if bound.kept else "**broken**"] for bound in judged]
    return "\n\n".join([*parts, "## Bounds", _markdown("must be | was | ", rows)])


def _markdown(heads: str, rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(
        f"| {row} |" for row in (heads, " | ".join(["---"] * len(rows[0])), *map(" | ".join, rows))
    )


def write_page(page: Path, results: str, versions: Mapping[str, str], arguments: argparse.Namespace) -> None:
    """Write the page: ``page.md``, with the machine, the versions and the results in their places."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    kernel, cores = platform.release().partition("-")[0], len(os.sched_getaffinity(0))
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{cpu[1] if cpu else platform.machine()}, {cores} cores, Linux {kernel}, "
        f"Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {it}" for name, it in {OURS: __version__, **versions}.items()),
        "rounds": f"{arguments.rounds}",
        "seconds": f"{arguments.seconds:g}",
        "priority": "ordinary" if arguments.ordinary_priority else "real-time, which it takes where it may",
        "results": results,
    }
    written = Path(__file__).with_name("page.md").read_text()
    for name, value in facts.items():
        written = written.replace(f"{{{name}}}", value)
    page.write_text(written)
