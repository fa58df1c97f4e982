"""What is wrong with a model repository, all of it at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_hpc.errors import RenderError


@dataclass(frozen=True)
class Problem:
    """One thing that Triton would refuse, or take for something else."""

    model: str
    sentence: str
    remedy: str
    line: int | None = None
    """Line of upstream's ``config.pbtxt``."""

    def __str__(self) -> str:
        where = self.model if self.line is None else f"{self.model}, line {self.line} of its config.pbtxt"
        return f"{where}: {self.sentence}\n    next: {self.remedy}"


class RepositoryInvalid(RenderError):
    """The repository cannot be made from these templates and values."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        said = f"The model repository has {count} problem{'s' if count != 1 else ''}."
        super().__init__("\n".join([said, *map(str, self.problems)]))
