"""Scores of an evaluation, judged by a threshold or by a paired comparison with another run.

This module imports nothing large, because ``status`` reads scores.
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
"""Probability of a false alarm, at most, if a run is called worse."""

Scores = Mapping[str, float]
"""Scores of questions, between 0 and 1, by hash of the question."""


@dataclass(frozen=True)
class TaskScore:
    """The score of one task."""

    task: str
    metric: str
    """Metric of ``lm-eval``, e.g. ``exact_match,strict-match``."""
    score: float
    """Mean of the questions' scores, between 0 and 1."""
    standard_error: float
    questions: int
    asked: Mapping[str, Any]
    """Used ``protocol``, ``few_shot``, ``max_tokens`` and ``temperature``; ``null``: the task's own."""
    passed: bool | None = None
    """Whether the score passes the gate; ``None`` without a gate."""
    gate: str = ""
    """Reason of ``passed``, in words."""

    def __str__(self) -> str:
        error = f"standard error {100 * self.standard_error:.1f} points, {self.questions} questions"
        return f"{self.task} {100 * self.score:.1f} % ({error}){self.gate and ': '}{self.gate}"


@dataclass(frozen=True)
class EvaluationSummary(JsonRecord):
    """The result of an evaluation."""

    PRINTED = ("passed",)

    model: str
    tasks: Sequence[TaskScore]
    asked: int
    """Number of questions that the last attempt asked."""
    kept: int
    """Number of answers from earlier attempts."""
    lm_eval: str
    """Version of ``lm-eval``."""

    @property
    def passed(self) -> bool | None:
        """Whether every task passes the gate; ``None`` without a gate."""
        judged = [task.passed for task in self.tasks if task.passed is not None]
        return all(judged) if judged else None

    def lines(self) -> list[str]:
        """Return a line with the score of each task."""
        return [str(task) for task in self.tasks]

    def check(self, hint: str) -> None:
        """Raise AccuracyTooLow if a task does not pass the gate."""
        if failed := "; ".join(str(task) for task in self.tasks if task.passed is False):
            raise AccuracyTooLow(f"The model answers worse than the gate allows: {failed}.", hint=hint)


def read_evaluation(file: Path) -> EvaluationSummary | None:
    """Read the summary of an evaluation; ``None`` if the file is missing or damaged."""
    summary = EvaluationSummary.read(file)
    tasks: Any = summary and summary.tasks
    return summary and replace(summary, tasks=[TaskScore(**task) for task in tasks])


def mean_of(scores: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, which is 1 for a single question."""
    count, mean = len(scores), sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / (count - 1) / count if count > 1 else 1.0
    return mean, math.sqrt(variance)


def against_threshold(score: TaskScore, threshold: float) -> TaskScore:
    """Return the score judged by a threshold."""
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
    """Return the score judged by another run's answers to the same questions, with McNemar's exact test.

    The tasks (``names``) that both runs have share the probability of a false alarm. Runs with other settings
    or other questions cannot be compared.
    """
    tasks = base.tasks if base else ()
    same = (known for known in tasks if (known.task, known.metric) == (score.task, score.metric))
    other = next(same, None)
    common = sorted(scores.keys() & base_scores.keys())
    if other is None or not common:
        return replace(score, passed=False, gate=f"not compared: run {run} has no score of these questions")
    own = "as the task says"
    asked = {
        key: value for key, value in other.asked.items() if key != "metric" and score.asked.get(key) != value
    }
    if unlike := [f"{key} {own if value is None else value}" for key, value in asked.items()]:
        return replace(score, passed=False, gate=f"not compared: run {run} used {', '.join(unlike)}")
    losses = [base_scores[key] - scores[key] for key in common]
    if not set(losses) <= {-1.0, 0.0, 1.0}:
        return replace(score, passed=False, gate="not compared: not every answer is right or wrong")
    alpha = SIGNIFICANCE / len({score.task, *names} & {known.task for known in tasks})
    # Probability that chance alone makes this run worse by as much.
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
    """Return the smallest loss that the test finds in 4 of 5 cases; at least one difference is assumed."""
    from statistics import NormalDist

    errors = NormalDist().inv_cdf(1 - alpha) + NormalDist().inv_cdf(0.8)
    spread = math.sqrt((sum(loss * loss for loss in losses) + 1) / (len(losses) + 1))
    return min(1.0, errors * spread / math.sqrt(len(losses)))
