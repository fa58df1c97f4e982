"""What is wrong with a model repository, all of it at once."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_hpc.errors import Diagnostic, RenderError


def in_model(model: str, message: str, hint: str, line: int | None = None) -> Diagnostic:
    """A diagnostic about something that Triton would refuse, or misread.

    Args:
        line: of upstream's ``config.pbtxt``.
    """
    file = model if line is None else f"{model}/config.pbtxt"
    return Diagnostic("repository", message, file, line=line, hint=hint)


class RepositoryInvalid(RenderError):
    """The repository cannot be made from these templates and values."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        count = len(self.diagnostics)
        heading = f"The model repository has {count} problem{'s' if count != 1 else ''}."
        super().__init__("\n".join([heading, *map(str, self.diagnostics)]))
