"""Figures of conversations: by turn, and of the slowest turn of each conversation."""

from __future__ import annotations

from collections.abc import Iterable

from trtllm_hpc.bench.levels import ClosedLoop
from trtllm_hpc.bench.metrics import CACHED_SHARE, INPUT_TOKENS, LATENCY, TTFA, TTFT, figures
from trtllm_hpc.bench.records import RequestRecord, Sample
from trtllm_hpc.bench.results import TurnFigures, Window

_METRICS = (INPUT_TOKENS, CACHED_SHARE, TTFT, TTFA, LATENCY)
_SINGLE_TURNS = 8
"""Turns with figures of their own; later ones are put together: 9 to 16, 17 to 32 and so on."""


def by_turn(records: Iterable[RequestRecord]) -> list[TurnFigures]:
    """Return the figures of each turn, and of the slowest turn of each conversation; none without turns."""
    groups: dict[int, list[RequestRecord]] = {}
    slowest: dict[tuple[int, str | None], RequestRecord] = {}
    for record in records:
        if record.measured and record.turn is not None:
            last = record.turn if record.turn <= _SINGLE_TURNS else 1 << (record.turn - 1).bit_length()
            groups.setdefault(last, []).append(record)
            session = record.repeat, record.session
            slowest[session] = max(
                record,
                slowest.get(session, record),
                key=lambda it: (it.first_token_s or it.ended_s) - it.scheduled_s,
            )
    named = {
        str(last) if last <= _SINGLE_TURNS else f"{last // 2 + 1} to {last}": groups[last]
        for last in sorted(groups)
    }
    if slowest:
        named["slowest"] = [*slowest.values()]
    samples = {turn: Sample(group, Window(0.0, 0.0), ClosedLoop(1)) for turn, group in named.items()}
    return [
        TurnFigures(turn, len(of.measured), len(of.measured) - len(of.answered), figures(of, _METRICS))
        for turn, of in samples.items()
    ]
