"""Faults of a repository that Triton would refuse, or notice only at a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from trtllm_hpc.errors import Diagnostic, RenderError
from trtllm_hpc.runtime.model_repository.schema import schema

MODEL_NAMES = (
    "tensorrt_llm_model_name",
    "tensorrt_llm_draft_model_name",
    "multimodal_encoders_name",
    "context_model_name",
    "generation_model_name",
)
"""Parameters of upstream's Python models that name another model."""

_OTHER_TEMPLATE = "take the templates of one release for all models"

Messages = Mapping[str, Any]


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


def check(messages: Messages, files: Mapping[str, Collection[str]]) -> list[Diagnostic]:
    """Return everything that does not fit together in the models and, as relative paths, their files."""
    return [
        problem
        for name, message in messages.items()
        for problem in (
            *_check_names(name, message, files[name], messages),
            *_check_steps(name, message, messages),
            *_check_tensors(name, message, messages),
        )
    ]


def _check_names(name: str, message: Any, files: Collection[str], messages: Messages) -> Iterator[Diagnostic]:
    """Check that the file and the models which a model names are there."""
    file = message.default_model_filename or "model.py"
    if message.backend == "python" and f"1/{file}" not in files:
        hint = "set engine.backend: tensorrtllm, or take a release whose template has the file"
        yield in_model(name, f"has the backend python, but its template lacks 1/{file}.", hint)
    for key in MODEL_NAMES:
        if key in message.parameters:
            other = message.parameters[key].string_value
            if other not in messages:
                yield _unknown_model(name, f"its parameter {key}", other, messages)


def _check_steps(name: str, message: Any, messages: Messages) -> Iterator[Diagnostic]:
    for step in message.ensemble_scheduling.step:
        other = messages.get(step.model_name)
        if other is None:
            yield _unknown_model(name, "a step", step.model_name, messages)
            continue
        inputs = {tensor.name: tensor for tensor in other.input}
        outputs = {tensor.name for tensor in other.output}
        unknown = [f"input {tensor}" for tensor in sorted(set(step.input_map) - set(inputs))]
        unknown += [f"output {tensor}" for tensor in sorted(set(step.output_map) - outputs)]
        for tensor in unknown:
            text = f"its step {step.model_name} names an {tensor}, which that model does not have."
            yield in_model(name, text, _OTHER_TEMPLATE)
        needed = {tensor.name for tensor in inputs.values() if not tensor.optional}
        for tensor in sorted(needed - set(step.input_map)):
            lacks = f"gives no value for the input {tensor}, which that model needs."
            yield in_model(name, f"its step {step.model_name} {lacks}", _OTHER_TEMPLATE)
        if other.max_batch_size < message.max_batch_size:
            text = (
                f"takes batches of {message.max_batch_size}, but its step {step.model_name} "
                f"only of {other.max_batch_size}."
            )
            yield in_model(name, text, "set repository.triton_max_batch_size for all of them")


def _unknown_model(name: str, what: str, other: str, messages: Messages) -> Diagnostic:
    known = ", ".join(sorted(set(messages) - {name})) or "no other"
    text = f"{what} names the model {other!r}, and the repository has {known}."
    return in_model(name, text, "name one of those, or add the model")


def _check_tensors(name: str, message: Any, messages: Messages) -> Iterator[Diagnostic]:
    """Check that each tensor inside an ensemble has one producer and one data type."""
    if not message.ensemble_scheduling.step:
        return
    types, producers = _produced(message, messages)
    for tensor, count in producers.items():
        if count > 1:
            yield in_model(name, f"the tensor {tensor} has {count} producers.", _OTHER_TEMPLATE)
    for step in message.ensemble_scheduling.step:
        if step.model_name in messages:
            wanted = {tensor.name: tensor.data_type for tensor in messages[step.model_name].input}
            for inside, tensor in sorted(step.input_map.items()):
                where = f"input {inside} of its step {step.model_name}"
                yield from _check_use(name, where, tensor, types, wanted.get(inside, 0))
    for output in message.output:
        yield from _check_use(name, f"output {output.name}", output.name, types, output.data_type)


def _produced(message: Any, messages: Messages) -> tuple[dict[str, int], Counter[str]]:
    types = {tensor.name: tensor.data_type for tensor in message.input}
    producers = Counter(dict.fromkeys(types, 1))
    for step in message.ensemble_scheduling.step:
        other = messages.get(step.model_name)
        made = {tensor.name: tensor.data_type for tensor in other.output} if other is not None else {}
        for inside, tensor in step.output_map.items():
            types[tensor] = made.get(inside, 0)
            producers[tensor] += 1
    return types, producers


def _check_use(
    name: str, where: str, tensor: str, types: Mapping[str, int], wanted: int
) -> Iterator[Diagnostic]:
    if tensor not in types:
        text = f"the {where} is the tensor {tensor}, which nothing produces."
        yield in_model(name, text, _OTHER_TEMPLATE)
    elif types[tensor] and wanted and types[tensor] != wanted:
        words = schema().DataType.Name
        text = f"the {where} is {words(wanted)}, but its tensor {tensor} is {words(types[tensor])}."
        yield in_model(name, text, "set the data types of both models alike, e.g. repository.logits_datatype")
