"""Causes of a failure in words, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_hpc.logs.causes.explain import Finding
from trtllm_hpc.logs.causes.table import Kind
from trtllm_hpc.logs.reading import for_output

_MOST = 4
"""Causes shown on a terminal; JSON has all."""


def cause_lines(found: Sequence[Finding], *, places: bool = False) -> list[str]:
    """Return the likeliest cause with what to do, and the others; ``places``: with the line of which log."""
    lines = []
    for number, one in enumerate(found[:_MOST]):
        if number == 0:
            lines += [f"cause: {one.sentence}", f"next: {one.next}"]
        else:
            lines.append(f"{'also' if one.kind is Kind.ROOT else 'then'}: {one.sentence}")
        if one.line is None:
            lines += [f"  | {line}" for line in one.match.splitlines()]
        elif places and one.file is not None:
            rank = "" if one.rank is None else f", rank {one.rank}"
            lines.append(f"  {one.file}:{one.line}{rank}: {one.match}")
    if len(found) > _MOST:
        lines.append(f"and {len(found) - _MOST} more (--json shows all)")
    return [for_output(line) for line in lines]
