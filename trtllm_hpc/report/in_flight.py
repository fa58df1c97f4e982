"""How many requests were outstanding at each moment, from the client's records."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_hpc.bench.records import RequestRecord


def in_flight(records: Sequence[RequestRecord]) -> list[tuple[float, int]]:
    """Each moment at which the number changes, with the number from then on."""
    changes = sorted(
        [(record.sent_s, 1) for record in records] + [(record.ended_s, -1) for record in records]
    )
    steps: list[tuple[float, int]] = []
    count = 0
    for time_s, change in changes:
        count += change
        if steps and steps[-1][0] == time_s:
            steps[-1] = (time_s, count)
        else:
            steps.append((time_s, count))
    return steps


def most_in_flight(records: Sequence[RequestRecord], most: int) -> list[tuple[float, int]]:
    """The same thinned to about ``most`` moments: each stretch of time with its largest number."""
    steps = in_flight(records)
    if len(steps) <= most:
        return steps
    begin, end = steps[0][0], steps[-1][0]
    width = (end - begin) / most or 1.0
    largest: dict[int, tuple[float, int]] = {}
    for time_s, count in steps[:-1]:
        stretch = int((time_s - begin) / width)
        if stretch not in largest or count > largest[stretch][1]:
            largest[stretch] = (time_s, count)
    return [*largest.values(), steps[-1]]
