"""How late stamps are at most."""

from __future__ import annotations

from trtllm_hpc.bench.load.timing import Clock, StampBounds


def turn(bounds: StampBounds, *, reads: int, late_s: float) -> float:
    """A turn of the event loop; returns its last stamp."""
    bounds.select(0)
    bounds.last_read, bounds.reads = bounds._woke + late_s, reads
    bounds._since = bounds._woke
    return bounds.last_read


def test_stamps_count_and_not_turns() -> None:
    """A stall brings one turn with all that came meanwhile."""
    bounds, clock = StampBounds(), Clock()
    assert bounds.p99_s(clock, []) is None
    for _ in range(400):
        turn(bounds, reads=1, late_s=0.001)
    turn(bounds, reads=400, late_s=0.2)
    bounds.select(0)
    found = bounds.p99_s(clock, [])
    bounds.close()
    assert found is not None and abs(found[0] - 0.2) < 1e-6


def test_of_first_reads_99_percent_keep_the_bound_too() -> None:
    bounds, clock = StampBounds(), Clock()
    quick_s = [turn(bounds, reads=1000, late_s=1e-6) for _ in range(20)]
    slow_s = turn(bounds, reads=1, late_s=0.2)
    bounds.select(0)
    assert (found := bounds.p99_s(clock, [at - clock.zero for at in quick_s])) and found[0] < 0.001
    assert (found := bounds.p99_s(clock, [at - clock.zero for at in (*quick_s, slow_s)])) and found[0] > 0.1
    bounds.close()
