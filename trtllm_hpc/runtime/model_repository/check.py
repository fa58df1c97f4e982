"""Faults of a repository that Triton would refuse, or notice only at a request."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from trtllm_hpc.errors import Diagnostic, RenderError

MODEL_NAMES = (
    "tensorrt_llm_model_name",
    "tensorrt_llm_draft_model_name",
    "multimodal_encoders_name",
    "context_model_name",
    "generation_model_name",
)
"""Parameters of upstream's Python models that name another model."""


def in_model(model: str, message: str, hint: str, line: int | None = None) -> Diagnostic:
    """Return a diagnostic about something that Triton would refuse; ``line`` is one of ``config.pbtxt``."""
    file = model if line is None else f"{model}/config.pbtxt"
    return Diagnostic("repository", message, file, line=line, hint=hint)


class RepositoryInvalid(RenderError):
    """The repository cannot be made from these templates and values."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        count = len(self.diagnostics)
        heading = f"The model repository has {count} problem{'s' if count != 1 else ''}."
        super().__init__("\n".join([heading, *map(str, self.diagnostics)]))


def check(messages: Mapping[str, Any], files: Mapping[str, Collection[str]]) -> Iterator[Diagnostic]:
    """Yield the files and models that a model names and that are not there, and batches that do not fit.

    ``messages`` and ``files``, as relative paths, are by model.
    """
    for name, message in messages.items():
        file = message.default_model_filename or "model.py"
        if message.backend == "python" and f"1/{file}" not in files[name]:
            hint = "set engine.backend: tensorrtllm, or take a release whose template has the file"
            yield in_model(name, f"has the backend python, but its template lacks 1/{file}.", hint)
        named = {f"its parameter {key}": message.parameters[key].string_value for key in MODEL_NAMES
                 if key in message.parameters}  # fmt: skip
        named |= {f"its step {step.model_name}": step.model_name for step in message.ensemble_scheduling.step}
        for what, other in named.items():
            if other not in messages:
                known = ", ".join(sorted(set(messages) - {name})) or "no other"
                text = f"{what} names the model {other!r}, and the repository has {known}."
                yield in_model(name, text, "name one of those, or add the model")
        for step in message.ensemble_scheduling.step:
            size = messages[step.model_name].max_batch_size if step.model_name in messages else None
            if size is not None and size < message.max_batch_size:
                text = f"takes batches of {message.max_batch_size}, but {step.model_name} only of {size}."
                yield in_model(name, text, "set repository.triton_max_batch_size for all of them")
