"""Scores of an evaluation, and the gate: a threshold, or a paired comparison with another run.

``status`` reads them, so this module imports nothing large.
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
"""A run is called worse if a difference as large comes by chance with at most this probability."""

Scores = Mapping[str, float]
"""The score of each question, between 0 and 1, by a hash of the question."""


@dataclass(frozen=True)
class TaskScore:
    """The score of one task."""

    task: str
    metric: str
    """As ``lm-eval`` names it, e.g. ``exact_match,strict-match``."""
    score: float
    """Mean of the questions' scores, between 0 and 1."""
    standard_error: float
    questions: int
    asked: Mapping[str, Any]
    """How: ``protocol``, ``few_shot``, ``max_tokens``, ``temperature``; ``null``: as the task says."""
    passed: bool | None = None
    """Whether it passes the gate; ``None`` without a gate."""
    gate: str = ""
    """Why, in words."""

    def __str__(self) -> str:
        error = f"standard error {100 * self.standard_error:.1f} points, {self.questions} questions"
        return f"{self.task} {100 * self.score:.1f} % ({error}){self.gate and ': '}{self.gate}"


@dataclass(frozen=True)
class EvaluationSummary(JsonRecord):
    """What an evaluation has found."""

    PRINTED = ("passed",)

    model: str
    tasks: Sequence[TaskScore]
    asked: int
    """Questions that the last attempt has asked."""
    kept: int
    """Answers kept from earlier attempts."""
    lm_eval: str
    """Version of ``lm-eval``."""

    @property
    def passed(self) -> bool | None:
        """Whether every task passes the gate; ``None`` without a gate."""
        judged = [it.passed for it in self.tasks if it.passed is not None]
        return all(judged) if judged else None

    def lines(self) -> list[str]:
        """Return the scores in words, a line for each task."""
        return [str(task) for task in self.tasks]

    def check(self, hint: str) -> None:
        """Raise AccuracyTooLow if a task does not pass the gate."""
        if failed := "; ".join(str(it) for it in self.tasks if it.passed is False):
            raise AccuracyTooLow(f"The model answers worse than the gate allows: {failed}.", hint=hint)


def read_evaluation(file: Path) -> EvaluationSummary | None:
    """Return the evaluation whose summary is in a file; ``None`` if it is missing or damaged."""
    found = EvaluationSummary.read(file)
    tasks: Any = found and found.tasks
    return found and replace(found, tasks=[TaskScore(**it) for it in tasks])


def mean_of(scores: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; the error of a single question is not known, so 1."""
    count, mean = len(scores), sum(scores) / len(scores)
    variance = sum((it - mean) ** 2 for it in scores) / (count - 1) / count if count > 1 else 1.0
    return mean, math.sqrt(variance)


def against_threshold(score: TaskScore, threshold: float) -> TaskScore:
    """Return the score with its judgement by a threshold."""
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
    """Return the score with its judgement by the same questions of another run.

    The test is McNemar's, exact. Those of this run's tasks (``names``) that the other run has, too, share the
    probability of a false alarm. A run that was asked otherwise, or other questions, cannot be compared.
    """
    tasks = base.tasks if base else ()
    other = next((it for it in tasks if (it.task, it.metric) == (score.task, score.metric)), None)
    common = sorted(scores.keys() & base_scores.keys())
    if other is None or not common:
        return replace(score, passed=False, gate=f"not compared: run {run} has no score of these questions")
    own = "as the task says"
    asked = {key: it for key, it in other.asked.items() if key != "metric" and score.asked.get(key) != it}
    if unlike := [f"{key} {own if it is None else it}" for key, it in asked.items()]:
        return replace(score, passed=False, gate=f"not compared: run {run} used {', '.join(unlike)}")
    losses = [base_scores[key] - scores[key] for key in common]
    if not set(losses) <= {-1.0, 0.0, 1.0}:
        return replace(score, passed=False, gate="not compared: not every answer is right or wrong")
    alpha = SIGNIFICANCE / len({score.task, *names} & {it.task for it in tasks})
    # The probability that chance alone makes the second run as much worse.
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
    """Return the smallest loss that the test finds in 4 of 5 cases; no difference counts as a single one."""
    from statistics import NormalDist

    errors = NormalDist().inv_cdf(1 - alpha) + NormalDist().inv_cdf(0.8)
    spread = math.sqrt((sum(it * it for it in losses) + 1) / (len(losses) + 1))
    return min(1.0, errors * spread / math.sqrt(len(losses)))
