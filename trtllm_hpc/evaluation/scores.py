"""Scores of an evaluation, and the gate: a threshold, or a paired comparison with another run.

``status`` imports this module, so the module imports no large library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import AccuracyTooLow
from trtllm_hpc.runtime.records import JsonRecord

SIGNIFICANCE = 0.05
"""A run counts as worse if chance alone causes such a difference with less than this probability."""

Scores = Mapping[str, float]
"""The score of each question, between 0 and 1, by a hash of the question."""


@dataclass(frozen=True)
class TaskScore:
    """The score of one task."""

    task: str
    metric: str
    """Name of the metric in ``lm-eval``, e.g. ``exact_match,strict-match``."""
    score: float
    """Mean of the questions' scores, between 0 and 1."""
    standard_error: float
    """Standard error of the score, between 0 and 1."""
    questions: int
    """Number of questions."""
    asked: Mapping[str, Any]
    """Options of the questions: ``protocol``, ``few_shot``, ``metric``, ``max_tokens``, ``temperature``;
    ``null``: the task's own."""
    passed: bool | None = None
    """Whether the score passes the gate; ``None`` without a gate."""
    gate: str = ""
    """The reason why the score passes or fails; empty without a gate."""

    def __str__(self) -> str:
        error = f"standard error {100 * self.standard_error:.1f} points, {self.questions} questions"
        return f"{self.task} {100 * self.score:.1f} % ({error}){self.gate and ': '}{self.gate}"


@dataclass(frozen=True)
class EvaluationSummary(JsonRecord):
    """The scores of an evaluation."""

    PRINTED = ("passed",)

    model: str
    tasks: Sequence[TaskScore]
    asked: int
    """Number of questions that the last attempt sent to the server."""
    kept: int
    """Number of answers kept from earlier attempts."""
    lm_eval: str
    """Version of ``lm-eval``."""

    @property
    def passed(self) -> bool | None:
        """Whether every task passes the gate; ``None`` without a gate."""
        judged = [task.passed for task in self.tasks if task.passed is not None]
        return all(judged) if judged else None

    def lines(self) -> list[str]:
        """Return the scores in words, a line for each task."""
        return [str(task) for task in self.tasks]

    def check(self, hint: str) -> None:
        """Raise AccuracyTooLow if a task does not pass the gate."""
        if failed := "; ".join(str(task) for task in self.tasks if task.passed is False):
            raise AccuracyTooLow(f"The model answers worse than the gate allows: {failed}.", hint=hint)


def read_evaluation(file: Path) -> EvaluationSummary | None:
    """Read the summary of an evaluation; return ``None`` if the file is missing or damaged."""
    summary = EvaluationSummary.read(file)
    tasks: Any = summary and summary.tasks
    return summary and replace(summary, tasks=[TaskScore(**task) for task in tasks])


def mean_of(scores: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; 1 for a single question, whose error is unknown."""
    count, mean = len(scores), sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / (count - 1) / count if count > 1 else 1.0
    return mean, math.sqrt(variance)


def against_threshold(score: TaskScore, threshold: float) -> TaskScore:
    """Return the score, marked as passed if it reaches the threshold."""
    passed = score.score >= threshold
    gate = f"{'reaches' if passed else 'below'} the threshold of {100 * threshold:g} %"
    return replace(score, passed=passed, gate=gate)


def against_run(
    score: TaskScore,
    scores: Scores,
    base: EvaluationSummary | None,
    base_scores: Scores,
    run: str,
    names: Iterable[str] = (),
) -> TaskScore:
    """Return the score, marked as passed if it is not worse than another run's score of the same questions.

    McNemar's exact test compares the answers. The tasks that both runs have share the probability of a false
    alarm. Runs with other questions or other options cannot be compared; the score then fails.

    Args:
        score: of a task of this run.
        scores: of the task's questions in this run.
        base: the other run's evaluation; ``None`` if that run was not evaluated.
        base_scores: of the task's questions in the other run.
        run: ID of the other run.
        names: of all tasks of this run.
    """
    tasks = base.tasks if base else ()
    other = next((task for task in tasks if (task.task, task.metric) == (score.task, score.metric)), None)
    common = sorted(scores.keys() & base_scores.keys())
    if other is None or not common:
        return replace(score, passed=False, gate=f"not compared: run {run} has no score of these questions")
    different = {
        key: value for key, value in other.asked.items() if key != "metric" and score.asked.get(key) != value
    }
    if different:
        options = [
            f"the task's own {key}" if value is None else f"{key} {value}" for key, value in different.items()
        ]
        return replace(score, passed=False, gate=f"not compared: run {run} used {', '.join(options)}")
    losses = [base_scores[key] - scores[key] for key in common]
    if not set(losses) <= {-1.0, 0.0, 1.0}:
        return replace(score, passed=False, gate="not compared: not every answer is right or wrong")
    alpha = SIGNIFICANCE / len({score.task, *names} & {task.task for task in tasks})
    # The probability that chance alone makes this run at least as much worse.
    lost, won = losses.count(1.0), losses.count(-1.0)
    p_value = sum(math.comb(lost + won, count) for count in range(lost, lost + won + 1)) / 2 ** (lost + won)
    loss = 100 * detectable_loss(losses, alpha)
    worse = p_value < alpha
    before, _ = mean_of([base_scores[key] for key in common])
    chance = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
    gate = f"{'worse' if worse else 'not worse'} than the {100 * before:.1f} % of run {run} ({chance}); "
    gate += f"{len(common)} questions can show a loss of {loss:.{0 if loss >= 2 else 1}f} points"
    return replace(score, passed=not worse, gate=gate)


def detectable_loss(losses: Sequence[float], alpha: float = SIGNIFICANCE) -> float:
    """Return the smallest loss, between 0 and 1, that the test finds in 4 of 5 cases."""
    from statistics import NormalDist

    errors = NormalDist().inv_cdf(1 - alpha) + NormalDist().inv_cdf(0.8)
    # One more difference is assumed, so that the spread is above 0 if all answers agree.
    spread = math.sqrt((sum(loss * loss for loss in losses) + 1) / (len(losses) + 1))
    return min(1.0, errors * spread / math.sqrt(len(losses)))
