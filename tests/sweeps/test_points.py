"""Points, the frontier and the best variant of sweeps, from real measurements of a modelled server."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tests.plans import planned_stage, write_plan
from tests.report.make import noted
from tests.sweeps.make import BATCH, FINDING, SLO, TP, grid, measured, with_invalid_level, write_sweep
from trtllm_hpc.bench.analysis.intervals import holm
from trtllm_hpc.bench.analysis.slo import BadSlo
from trtllm_hpc.bench.results import Verdict
from trtllm_hpc.sweeps.measured import Point, best_variant, frontier

EMPTY = Point("a", {}, "1 at once", 1.0, "closed-loop", 1, 1, True, [], None, None, None, None, {}, [])


def point(
    variant: str, gpu: float, user: float, *, valid: bool = True, each: tuple[float, ...] = ()
) -> Point:
    rates = {"output_tokens_per_s_per_gpu": gpu, "tokens_per_s_per_user": user, "each_pass": each or (gpu,)}
    return replace(EMPTY, variant=variant, valid=valid, holds_slo=True, **rates)  # type: ignore[arg-type]


# Points -----------------------------------------------------------------------------------------------


def test_a_point_has_the_figures_of_its_level_by_gpu_and_by_user(tmp_path: Path) -> None:
    sweep = grid(tmp_path / "s")
    found = next(it for it in sweep.results().points if it.variant == "tp4-bs8")
    figures = measured(1.7 * 0.9, 32).measurement.levels[0].metrics
    output = figures["output_tokens_per_s"].mean  # type: ignore[union-attr]
    tpot = figures["tpot_ms"]["p50"].mean  # type: ignore[index]
    assert (found.level, found.load, found.load_kind, found.gpus) == ("2 at once", 2.0, "closed-loop", 4)
    assert found.values == {TP: 4, BATCH: 8} and found.passes == 3 and len(found.each_pass) == 3
    assert found.output_tokens_per_s_per_gpu == pytest.approx(output / 4)
    assert sum(found.each_pass) / 3 == pytest.approx(output / 4)
    assert found.tokens_per_s_per_user == pytest.approx(1000 / tpot)
    row = found.row()
    assert row[TP] == 4 and row["ttft_ms.p99"] == found.figures["ttft_ms.p99"]


def test_gpus_count_on_all_nodes_and_a_server_without_any_counts_as_a_whole(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", {"a": ({TP: 2}, measured(1.0)), "b": ({TP: 4}, measured(1.0))})
    write_plan(sweep.paths.run("a"), stages=(planned_stage("serve", nodes=2, gpus_per_node=4),))
    write_plan(sweep.paths.run("b"), stages=(planned_stage("serve"),))
    results = sweep.results()
    many, none = (next(it for it in results.points if it.variant == name) for name in "ab")
    assert (many.gpus, none.gpus) == (8, 0)
    assert many.output_tokens_per_s_per_gpu == pytest.approx(many.figures["output_tokens_per_s"] / 8)
    assert none.output_tokens_per_s_per_gpu == pytest.approx(none.figures["output_tokens_per_s"])
    assert any("no GPU" in note for note in results.notes)


def test_a_finding_about_one_level_leaves_the_others_valid(tmp_path: Path) -> None:
    made = with_invalid_level(measured(1.0), 1)
    whole = measured(1.0).changed(verdict=Verdict([noted("The server was restarted.")]))
    sweep = write_sweep(tmp_path / "s", {"a": ({TP: 2}, made), "b": ({TP: 4}, whole)})
    points = sweep.results().points
    assert [(it.valid, it.findings) for it in points[:3]] == [(True, []), (False, [FINDING]), (True, [])]
    assert [(it.valid, it.findings) for it in points[3:]] == [(False, ["The server was restarted."])] * 3


def test_another_slo_decides_which_levels_hold_it_and_leaves_no_goodput(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", {"a": ({TP: 2}, measured(1.0))})
    own, later = sweep.results(), sweep.results(slo="ttft.p99<60ms")
    assert own.slo == SLO and all("goodput_per_s" in it.figures for it in own.points)
    assert later.slo == "ttft.p99<60ms" and {it.holds_slo for it in later.points} == {True, False}
    assert not any("goodput_per_s" in it.figures for it in later.points)
    assert later.points[0].figures["ttft_ms.p99"] == own.points[0].figures["ttft_ms.p99"]
    with pytest.raises(BadSlo, match="nothing"):
        sweep.results(slo="nothing<5ms")


def test_variants_with_different_slos_or_workloads_are_compared_with_care(tmp_path: Path) -> None:
    longer = measured(1.0).changed(settings={**measured(1.0).measurement.settings, "max_tokens": 99})
    other = measured(1.2, slo="ttft.p99<60ms")
    variants = {"a": ({TP: 2}, measured(1.0)), "b": ({TP: 4}, longer), "c": ({TP: 8}, other)}
    results = write_sweep(tmp_path / "s", variants).results()
    assert results.slo is None and "different SLOs" in results.notes[0]
    assert "b and a differ in workload: max_tokens" in results.notes[1]
    assert results.best.ranking == [] and "--slo" in results.best.sentence


def test_without_streaming_there_is_no_interactivity_and_no_frontier(tmp_path: Path) -> None:
    results = write_sweep(tmp_path / "s", {"a": ({TP: 2}, measured(1.0, streaming=False))}).results()
    assert all(it.tokens_per_s_per_user is None and not it.frontier for it in results.points)


# The frontier -----------------------------------------------------------------------------------------


def by_pandas(points: list[Point]) -> list[bool]:
    """The definition, literally: no row that counts is at least as good in both and better in one."""
    rows = pd.DataFrame(
        [
            (it.tokens_per_s_per_user, it.output_tokens_per_s_per_gpu, it.valid and it.holds_slo is not False)
            for it in points
        ],
        columns=["user", "gpu", "valid"],
    )
    valid = rows[rows.valid]
    as_good = [valid[(valid.user >= row.user) & (valid.gpu >= row.gpu)] for row in rows.itertuples()]
    better = [
        (other.user > row.user) | (other.gpu > row.gpu)
        for other, row in zip(as_good, rows.itertuples(), strict=True)
    ]
    return [bool(row.valid and not it.any()) for it, row in zip(better, rows.itertuples(), strict=True)]


@pytest.mark.parametrize("seed", range(8))
def test_the_frontier_is_what_pandas_says(seed: int) -> None:
    draw = random.Random(seed)
    # Few different values, so that many points are equal in one figure or in both.
    points = [
        replace(
            point(str(place), draw.randint(1, 9), draw.randint(1, 9), valid=draw.random() < 0.8),
            holds_slo=draw.choice((True, False, None)),
        )
        for place in range(draw.choice((0, 1, 2, 40)))
    ]
    assert frontier(points) == by_pandas(points)


# The best variant -------------------------------------------------------------------------------------


def test_the_best_variant_has_the_most_at_a_valid_level_that_holds_the_slo() -> None:
    best, worse = (100.0, 101.0, 102.0), (80.0, 81.0, 82.0)
    points = [
        point("a", 81.0, 10, each=worse),
        replace(point("a", 500.0, 10), valid=False),
        replace(point("a", 400.0, 10), holds_slo=False),
        point("b", 101.0, 10, each=best),
        point("b", 60.0, 10),
    ]
    found = best_variant(points, SLO)
    assert [(it.variant, it.output_tokens_per_s_per_gpu) for it in found.ranking] == [
        ("b", 101.0),
        ("a", 81.0),
    ]
    assert found.ranking[1].significant and found.ranking[0].p_value is None
    assert "b (1 at once): 101 output tokens/s/GPU, 24.7 % more than the runner-up, a" in found.sentence
    assert found.sentence.endswith("The difference is significant (p < 0.001).")


def test_a_difference_within_the_spread_may_be_chance() -> None:
    points = [
        point("a", 100.0, 1, each=(90.0, 100.0, 110.0)),
        point("b", 103.0, 1, each=(93.0, 103.0, 113.0)),
    ]
    found = best_variant(points, SLO)
    assert found.ranking[1].significant is False and "may be chance" in found.sentence


def test_a_single_pass_decides_nothing() -> None:
    found = best_variant([point("a", 100.0, 1), point("b", 300.0, 1)], SLO)
    assert found.ranking[1].significant is None and "benchmark.repeats=5" in found.sentence


def test_without_a_level_that_counts_nothing_is_best() -> None:
    assert best_variant([], None).ranking == [] and best_variant([], SLO).ranking == []
    only = best_variant([point("a", 100.0, 1)], SLO)
    assert only.sentence == f"Only a (1 at once): 100 output tokens/s/GPU is valid and holds {SLO}."


def test_equal_variants_are_seldom_called_different() -> None:
    """The best of twelve equal variants is called better than any other in 5 % of sweeps at most."""
    draw, wrong = random.Random(5), 0
    for _ in range(60):
        passes = {str(name): tuple(draw.gauss(100, 1) for _ in range(5)) for name in range(12)}
        found = best_variant([point(name, sum(it) / 5, 1, each=it) for name, it in passes.items()], SLO)
        wrong += any(it.significant for it in found.ranking)
    assert wrong <= 5


def test_holm_is_that_of_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.7, 0.9]) == [1.0, 1.0]
