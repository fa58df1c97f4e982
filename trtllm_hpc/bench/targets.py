"""Whom a benchmark asks, chosen from its settings and from what the server says of the model."""

from __future__ import annotations

from dataclasses import replace

from trtllm_hpc.bench.analysis.slo import Slo, parse_slo
from trtllm_hpc.bench.load import CoreModel, Target
from trtllm_hpc.client.describe import ServedModel, describe
from trtllm_hpc.client.tensors import TextModel
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import InvalidMeasurement, RequestFailed
from trtllm_hpc.runtime.records import Endpoint

_CORE_INPUT = "input_ids"
_LEAST_LENGTH = ("min_length", "sampling_param_min_tokens", "min_tokens")
"""What the models call the least length of an answer: upstream's, and the LLM API's (0.19 on)."""

_STREAM = ("stream", "streaming")
"""What asks a decoupled model for its tokens one by one: upstream's text models, and ``tensorrt_llm``."""


def targets_of(settings: Benchmark, endpoint: Endpoint, text_model: str) -> list[Target]:
    """The models to ask in turn, mostly a single one, and the way to ask them.

    Args:
        text_model: asked where the settings name no model.

    Raises:
        RequestFailed: the server has no such model, or it cannot be asked in this way.
        InvalidMeasurement: what is to be measured cannot be had from this model.
        BadSlo: the limits cannot be read.
    """
    names = settings.models or [settings.model or text_model]
    targets = [_target(settings, endpoint, name) for name in names]
    for other in targets[1:]:
        if replace(other, model=names[0]) != targets[0]:
            raise RequestFailed(
                f"Models {names[0]!r} and {other.model!r} are asked differently: they cannot take turns.",
                hint="measure one after the other",
            )
    if settings.slo is not None:
        _refuse_unmeasurable(parse_slo(settings.slo), targets[0])
    return targets


def _refuse_unmeasurable(slo: Slo, target: Target) -> None:
    """Limits that no answer could keep or break: a search would go down to the lowest rate for nothing."""
    if not slo.needing_streaming or (target.streaming and target.decoupled):
        return
    if target.decoupled:
        why, hint = "answers are not streamed", "stream them (--streaming, companion.benchmark.streaming)"
    else:
        why = f"model {target.model!r} gives each answer in one piece"
        hint = "serve it with repository.decoupled: true"
    raise InvalidMeasurement(
        f"Limits of the SLO are about {', '.join(slo.needing_streaming)}, which only an answer that is "
        f"streamed has; {why}.",
        hint=f"{hint}, or limit the latency instead (--slo 'latency<1s')",
    )


def _target(settings: Benchmark, endpoint: Endpoint, name: str) -> Target:
    served = describe(endpoint, name, settings.request_timeout_seconds)
    streaming = served.decoupled if settings.streaming is None else settings.streaming
    return Target(
        endpoint=endpoint,
        model=name,
        kind=_kind(name, served),
        protocol=settings.protocol,
        streaming=streaming,
        timeout_s=settings.request_timeout_seconds,
        decoupled=served.decoupled,
        stream_input=_stream_input(served),
        min_length_input=_least_length(name, served) if settings.exact_output else None,
    )


def _kind(name: str, served: ServedModel) -> TextModel | CoreModel:
    if served.takes_text:
        return served.text
    if _CORE_INPUT in served.inputs:
        return CoreModel(served.batched)
    raise RequestFailed(
        f"Model {name!r} takes neither 'text_input' nor {_CORE_INPUT!r}: its inputs are "
        f"{', '.join(sorted(served.inputs)) or 'none'}.",
        hint="choose ensemble, tensorrt_llm_bls or tensorrt_llm with --model",
    )


def _stream_input(served: ServedModel) -> str | None:
    return next((known for known in _STREAM if known in served.inputs), None)


def _least_length(name: str, served: ServedModel) -> str:
    for known in _LEAST_LENGTH:
        if known in served.inputs:
            return known
    raise InvalidMeasurement(
        f"Model {name!r} has no input that keeps an answer from ending early ({', '.join(_LEAST_LENGTH)}).",
        hint="leave --exact-output (companion.benchmark.exact_output) out",
    )
