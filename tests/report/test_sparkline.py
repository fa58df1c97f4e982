from __future__ import annotations

from trtllm_hpc.report.sparkline import over_time, sparkline, spread


def test_blocks_are_as_high_as_their_values() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, None, 0]) == "█ ▁"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([5, 5], lowest=0) == "██"
    assert sparkline([None, None]) == "  "


def test_a_spread_counts_in_equal_bins_from_the_smallest_to_the_largest() -> None:
    assert spread([0, 0, 0, 0, 10], 5) == "█   ▃"
    assert spread([3.0], 4) == "█   "
    assert spread([], 4) == ""


def test_the_course_is_the_mean_of_each_stretch() -> None:
    assert over_time([(0.5, 1), (0.6, 3), (3.5, 4)], 0, 4, 4) == "▅  █"
    # What was due at the very end belongs to the last stretch.
    assert over_time([(4.0, 1)], 0, 4, 4) == "   █"
    assert over_time([], 0, 4, 4) == "" and over_time([(0, 1)], 4, 4, 4) == ""
