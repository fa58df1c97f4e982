"""The figures of the benchmark, their bounds, and the page that shows them."""

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
"""A figure is wrong if it differs from the true figure by at least this share."""
NAN = math.nan


class Figures(NamedTuple):
    """Figures of one run of a client, or medians of several; NaN: the client does not report the figure."""

    cpu_us: float
    """CPU time per token in microseconds, from the first request to the last token."""
    whole_us: float
    """CPU time per token in microseconds, including the client's work after the last token."""
    request_us: float
    """CPU time per request in microseconds, from the first request to the last token."""
    tokens_per_s: float
    ttft_p50_ms: float
    """Median error of a request's TTFT (our client), or error of the reported median (peers)."""
    ttft_p99_ms: float
    """p99 of the error of a request's TTFT (our client), or error of the reported p99 (peers)."""
    next_p50_ms: float
    """Median time on the server from the end of an answer to the next request."""
    next_p99_ms: float
    """p99 of the time on the server from the end of an answer to the next request."""
    stamp_p50_ms: float = NAN
    """Median of a token's time on the client minus its send by the server."""
    stamp_p99_ms: float = NAN
    """p99 of a token's time on the client minus its send by the server."""
    bound_ms: float = NAN
    """The client's own upper bound on the error of 99 % of its token times."""
    failed: float = 0.0
    """Number of failed requests."""


LIMITS_MS = (
    ("stamp of a token (p99)", "stamp_p99_ms", 128, 1.5),
    ("stamp of a token (p99)", "stamp_p99_ms", 512, 5.0),
    ("error of TTFT (p50)", "ttft_p50_ms", 128, 1.0),
    ("error of TTFT (p99)", "ttft_p99_ms", 128, 3.0),
    ("answer's end to next request (p99)", "next_p99_ms", 128, 3.0),
)
"""Bounds for our client: label, figure, number of streams, largest allowed value in milliseconds."""


RISING = """The interval between the tokens of 512 streams becomes shorter from step to step. Of the p50 and
p99 of TTFT and inter-token latency, *off most* is the figure that differs most from the server's figure. A
measurement with a figure that is wrong by 2 % or more must be invalid."""


class Step(NamedTuple):
    """One step of the rising load."""

    tokens_per_s: float
    itl_ms: float
    """Interval between two tokens of a stream, in milliseconds."""
    figure: str
    """Name of the figure with the largest error."""
    off: float
    """The largest error as a share of the true figure."""
    late_ms: float
    """p99 of a token's time on the client minus its send by the server."""
    bound_ms: float
    """The client's own upper bound on ``late_ms``."""
    reasons: str
    """Reasons of the client's verdict that the figures are invalid; empty if they are valid."""


class Wide(NamedTuple):
    """Results of our client with 10,000 streams; the last three fields are those of ``Step``."""

    processes: int
    """Number of processes of the client."""
    most: int
    """Largest number of streams that were open at the same time, according to the server."""
    failed: int
    """Number of failed requests."""
    late_ms: float
    bound_ms: float
    reasons: str


class Bound(NamedTuple):
    """A bound, the measured value in words, and whether the bound is kept."""

    name: str
    shown: str
    kept: bool


class Client(NamedTuple):
    """A row of the table: a client with one load."""

    streams: int
    tls: bool
    name: str


def bounds(medians: Mapping[Client, Figures], steps: Sequence[Step], wide: Wide | None) -> list[Bound]:
    """Return a verdict on each bound whose figures were measured."""
    judged = list[Bound]()
    for client, figures in medians.items():
        where = f"{client.streams:,} streams{' over TLS' if client.tls else ''}"
        if client.name == OURS:
            for name, field, streams, limit_ms in LIMITS_MS:
                if streams == client.streams:
                    value_ms = getattr(figures, field)
                    kept = value_ms <= limit_ms
                    judged.append(
                        Bound(f"{where}: {name} at most {limit_ms:g} ms", f"{value_ms:.2f} ms", kept)
                    )
        peers = {
            peer: medians[peer].cpu_us for peer in medians if peer[:2] == client[:2] and peer.name != OURS
        }
        if client.name == OURS and peers:
            cheapest = min(peers, key=lambda peer: peers[peer])
            share = figures.cpu_us / peers[cheapest]
            name = f"{where}: CPU per token at most half of the cheapest peer's"
            judged.append(Bound(name, f"{share:.2f} of {cheapest.name}'s", share <= 0.5))
    if steps and min(step.itl_ms for step in steps) < 10:
        # The client keeps up if a token is read before the next one of its stream is sent.
        carried = max((step.tokens_per_s for step in steps if step.late_ms < step.itl_ms), default=0.0)
        judged.append(
            Bound("one core carries 50,000 tokens/s", f"{carried:,.0f} tokens/s", carried >= 50_000)
        )
    if wrong := [step for step in steps if step.off >= MAX_WRONG]:
        called = sum(bool(step.reasons) for step in wrong)
        name = "figures that are wrong by 2 % are called invalid"
        judged.append(Bound(name, f"{called} of {len(wrong)} steps", called == len(wrong)))
    if wide is not None:
        shown, kept = f"{wide.most:,} at once, {wide.failed} errors", wide.most >= 10_000 and not wide.failed
        judged.append(Bound("10,000 open streams without an error", shown, kept))
    return judged


def medians_of(runs: Mapping[Client, Sequence[Figures]]) -> dict[Client, Figures]:
    """Return the medians over the rounds, sorted by number of streams."""
    return {
        client: Figures(*map(statistics.median, zip(*runs[client], strict=True)))
        for client in sorted(runs, key=lambda client: client[:2])
    }


def text(
    medians: Mapping[Client, Figures], steps: Sequence[Step], wide: Wide | None, judged: Sequence[Bound]
) -> str:
    """Return the results as Markdown."""
    rows = [
        [
            f"{client.streams:,}{' TLS' if client.tls else ''}",
            f"**{client.name}**" if client.name == OURS else client.name,
            f"{median.cpu_us:.1f}",
            f"{median.whole_us:.1f}",
            f"{median.request_us:,.0f}",
            f"{median.tokens_per_s:,.0f}",
            ""
            if math.isnan(median.stamp_p50_ms)
            else f"{median.stamp_p50_ms:.2f} / {median.stamp_p99_ms:.2f}",
            "" if math.isnan(median.bound_ms) else f"{median.bound_ms:.2f}",
            f"{median.ttft_p50_ms:.2f} / {median.ttft_p99_ms:.2f}",
            f"{median.next_p50_ms:.2f} / {median.next_p99_ms:.2f}",
        ]
        for client, median in medians.items()
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
    """Write the page from ``page.md``, filled in with the machine, the versions and the results."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    kernel, cores = platform.release().partition("-")[0], len(os.sched_getaffinity(0))
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{cpu[1] if cpu else platform.machine()}, {cores} cores, Linux {kernel}, "
        f"Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {number}" for name, number in {OURS: __version__, **versions}.items()),
        "rounds": f"{arguments.rounds}",
        "seconds": f"{arguments.seconds:g}",
        "priority": "ordinary" if arguments.ordinary_priority else "real-time, which it takes if allowed",
        "results": results,
    }
    content = Path(__file__).with_name("page.md").read_text()
    for name, value in facts.items():
        content = content.replace(f"{{{name}}}", value)
    page.write_text(content)
