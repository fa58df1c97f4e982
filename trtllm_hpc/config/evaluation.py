"""``companion.evaluate`` of a job file: the tasks whose scores say whether the model still answers well."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trtllm_hpc.config.types import AbsolutePath, Count, OneLine, Section, TokenCount

Score = Annotated[float, Field(ge=0, le=1)]


class Evaluation(Section):
    """Tasks of EleutherAI's ``lm-eval``, asked over OpenAI's protocol, and the gate that a run must pass.

    Where a key is ``None``, the shipped settings of the task count, then the task's own.
    """

    tasks: Annotated[list[OneLine], Field(min_length=1)]
    """Names of ``lm-eval``'s tasks or groups, or of shipped tasks: ``facts``. Their answers are generated."""
    limit: Count | None = None
    """Ask only so many questions of each task, the first ones."""
    few_shot: Annotated[int, Field(ge=0, le=100)] | None = None
    """Solved examples before each question."""
    threshold: Score | None = None
    """The gate: each task needs at least this score, between 0 and 1."""
    not_worse_than: OneLine | None = None
    """The gate: id or folder of an evaluated run. A task fails if a paired one-sided test finds that this run
    answers the common questions worse."""
    protocol: Literal["completions", "chat"] | None = None
    """``chat``: ``/v1/chat/completions``, through the model's chat template. ``completions``: plain text."""
    metric: OneLine | None = None
    """The metric as ``lm-eval`` names it, e.g. ``exact_match,flexible-extract``; ``None``: the first."""
    max_tokens: TokenCount | None = None
    """Most tokens of an answer."""
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    """Randomness of the answers, for models that must not be asked at 0."""
    data: AbsolutePath | None = None
    """Folder of ``evaluate --prepare``'s data sets; ``None``: ``~/.cache/trtllm-hpc/evaluation``."""
