from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from trtllm_hpc.errors import AccuracyTooLow, ExitCode
from trtllm_hpc.evaluation.scores import (
    EvaluationSummary,
    Scores,
    TaskScore,
    against_run,
    against_threshold,
    detectable_loss,
    mean_of,
    read_evaluation,
)

HOW = {"protocol": "chat", "few_shot": 4}


def scored(scores: Scores, **other: object) -> TaskScore:
    mean, error = mean_of(list(scores.values()))
    return TaskScore("facts", "exact_match,words", mean, error, len(scores), HOW | other)


def summary(*tasks: TaskScore) -> EvaluationSummary:
    return EvaluationSummary("m", tasks, 200, 0, "0.4.13")


def answers(right: int, of: int = 200) -> dict[str, float]:
    return {f"q{number}": float(number < right) for number in range(of)}


def test_the_standard_error_is_that_of_a_share() -> None:
    mean, error = mean_of(list(answers(120).values()))
    assert mean == 0.6 and error == pytest.approx((0.6 * 0.4 / 199) ** 0.5)


def test_a_threshold_is_reached_or_not() -> None:
    score = scored(answers(120))
    assert against_threshold(score, 0.6).passed
    low = against_threshold(score, 0.65)
    assert low.passed is False and low.gate == "below the threshold of 65 %"
    with pytest.raises(AccuracyTooLow, match=r"facts 60.0 %.*below the threshold of 65 %") as failed:
        summary(low).check("next")
    assert failed.value.exit_code is ExitCode.ACCURACY
    summary(score).check("next")  # without a gate


def test_a_clear_loss_fails_and_names_the_power_of_the_test() -> None:
    before, now = answers(130), answers(100)
    judged = against_run(scored(now), now, summary(scored(before)), before, "base")
    assert judged.passed is False
    assert judged.gate.startswith("worse than the 65.0 % of run base (p < 0.001); 200 questions can show a")


def test_no_difference_passes_and_names_the_power_of_the_test() -> None:
    same = answers(120)
    judged = against_run(scored(same), same, summary(scored(same)), same, "base")
    assert judged.passed
    assert (
        judged.gate
        == "not worse than the 60.0 % of run base (p = 1); 200 questions can show a loss of 1.2 points"
    )


def test_a_test_of_200_questions_can_show_a_loss_of_6_points() -> None:
    losses = [1.0] * 12 + [-1.0] * 11 + [0.0] * 177
    assert 100 * detectable_loss(losses) == pytest.approx(6.1, abs=0.1)


@pytest.mark.parametrize("loss, expected", [(0.0, 0.05), (0.06, 0.8)])
def test_the_test_fails_as_often_as_it_promises(loss: float, expected: float) -> None:
    """With 11.5 % of the answers different, 200 questions find a loss of 6 points in 4 of 5 cases."""
    dice, found = random.Random(7), 0
    for _ in range(300):
        drawn = [
            dice.choices((1, -1, 0), (0.0575 + loss / 2, 0.0575 - loss / 2, 0.885))[0] for _ in range(200)
        ]
        before = {f"q{number}": float(one >= 0) for number, one in enumerate(drawn)}
        now = {key: it - drawn[number] for number, (key, it) in enumerate(before.items())}
        found += against_run(scored(now), now, summary(scored(before)), before, "base").passed is False
    share = found / 300
    assert share <= expected if loss == 0 else abs(share - expected) < 0.1


def test_the_tasks_of_both_runs_share_the_false_alarms() -> None:
    before, now = answers(30, 50), answers(25, 50)  # p = 0.031
    facts, more = scored(before), replace(scored(before), task="more")
    alone = against_run(scored(now), now, summary(facts, more), before, "base", ["facts"])
    both = against_run(scored(now), now, summary(facts, more), before, "base", ["facts", "more", "new"])
    assert (alone.passed, both.passed) == (False, True)
    assert "loss of 12 points" in alone.gate and "loss of 14 points" in both.gate


def test_a_metric_that_is_named_is_the_same_as_the_first() -> None:
    same = answers(120)
    base = summary(scored(same, metric=None))
    assert against_run(scored(same, metric="exact_match,words"), same, base, same, "base").passed
    judged = against_run(scored(same), same, summary(scored(same, few_shot=None)), same, "base")
    assert judged.gate == "not compared: run base used the task's own few_shot"


def test_what_was_asked_otherwise_is_not_compared() -> None:
    same = answers(120)
    part = against_run(scored({"q": 0.2}), {"q": 0.2}, summary(scored({"q": 0.7})), {"q": 0.7}, "base")
    assert part.gate == "not compared: not every answer is right or wrong"
    judged = against_run(scored(same), same, summary(scored(same, few_shot=0)), same, "base")
    assert judged.passed is False and judged.gate == "not compared: run base used few_shot 0"
    judged = against_run(scored(same), same, None, {}, "base")
    assert judged.gate == "not compared: run base has no score of these questions"


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = summary(against_threshold(scored(answers(120)), 0.5))
    written.write(tmp_path / "evaluation.json")
    read = read_evaluation(tmp_path / "evaluation.json")
    assert read is not None and read.passed and list(read.tasks) == list(written.tasks)
    (tmp_path / "evaluation.json").write_text("{")
    assert read_evaluation(tmp_path / "evaluation.json") is None
