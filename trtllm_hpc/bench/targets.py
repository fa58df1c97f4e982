"""The models that a benchmark sends requests to, from its settings and the server's model configurations."""

from __future__ import annotations

from dataclasses import replace

from trtllm_hpc.bench.analysis.slo import Slo, parse_slo
from trtllm_hpc.bench.load.messages import Target
from trtllm_hpc.client import connect
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.config.benchmark import OPENAI_PROTOCOLS, Benchmark, Protocol
from trtllm_hpc.errors import InvalidMeasurement, InvalidRequest, RequestFailed
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.served_model import LORA_INPUTS, STREAM_INPUTS, ServedModel

_CORE_INPUT = "input_ids"
_USUAL_MODELS = "choose ensemble, tensorrt_llm_bls or tensorrt_llm with --model"


def targets_of(settings: Benchmark, endpoint: Endpoint, text_model: str | None) -> list[Target]:
    """Return the models that take turns, usually a single one, and how requests are sent to them.

    Args:
        text_model: used with Triton if the settings name no model; ``None``: the usual one.

    Raises:
        RequestFailed: the server has no such model, or the model does not take such requests.
        InvalidRequest: the server does not speak the settings' protocol, or no model can be chosen.
        InvalidMeasurement: the model cannot give what is to be measured.
        BadSlo: the limits cannot be parsed.
    """
    protocol = settings.protocol or connect.usual_protocol(endpoint)
    is_openai = protocol in OPENAI_PROTOCOLS
    connect.refuse_protocol(endpoint, is_openai=is_openai)
    names = settings.models or [settings.model or _usual_model(settings, endpoint, text_model, is_openai)]
    of = _openai_target if is_openai else _triton_target
    targets = [of(settings, endpoint, name, protocol) for name in names]
    for other in targets[1:]:
        served = replace(other.served, name=targets[0].served.name)
        if replace(other, model=names[0], served=served) != targets[0]:
            raise RequestFailed(
                f"Models {names[0]!r} and {other.model!r} take different requests: they cannot take turns.",
                hint="measure one after the other",
            )
    if settings.slo is not None:
        _refuse_unmeasurable(parse_slo(settings.slo), targets[0])
    return targets


def with_protocol(settings: Benchmark, spoken: str, url: str) -> Benchmark:
    """Return settings with the protocol that a server without a run speaks; raises InvalidRequest."""
    protocol = settings.protocol or spoken
    if protocol not in (OPENAI_PROTOCOLS if spoken == "openai" else (spoken,)):
        raise InvalidRequest(
            f"{url} speaks {spoken}, and the settings say {protocol}.", hint=f"--protocol {spoken}"
        )
    if settings.workload.lora and protocol == "http":
        raise InvalidRequest(
            "The weights of LoRA adapters are sent over gRPC.",
            hint="--url grpc://HOST:PORT, or --set workload.lora=[]",
        )
    return settings.model_copy(update={"protocol": protocol})


def _refuse_unmeasurable(slo: Slo, target: Target) -> None:
    """Refuse limits that no answer has a figure for: a search would end at the lowest rate."""
    if not slo.needing_streaming or (target.streaming and target.decoupled):
        return
    if target.decoupled:
        reason, hint = "answers are not streamed", "stream them (--streaming, companion.benchmark.streaming)"
    else:
        reason = f"model {target.model!r} gives each answer in one piece"
        hint = "serve it with repository.decoupled: true"
    raise InvalidMeasurement(
        f"The SLO limits {', '.join(slo.needing_streaming)}, which only streamed answers have; {reason}.",
        hint=f"{hint}, or limit the latency instead (--slo 'latency<1s')",
    )


def _usual_model(settings: Benchmark, endpoint: Endpoint, text_model: str | None, is_openai: bool) -> str:
    if is_openai:
        return connect.usual_openai_model(endpoint, settings.request_timeout_seconds)
    return text_model or connect.usual_model(endpoint)


def _openai_target(settings: Benchmark, endpoint: Endpoint, name: str, protocol: Protocol) -> Target:
    """How a model is asked over OpenAI's protocol, which says nothing about the model."""
    if settings.workload.lora:
        raise InvalidRequest(
            "OpenAI's protocol has no field for the weights of LoRA adapters.",
            hint="measure over gRPC (--protocol grpc), or without adapters (--set workload.lora=[]); those "
            "that the server knows by a name are measured as models: --model NAME",
        )
    return Target(
        endpoint=endpoint,
        model=name,
        protocol=protocol,
        streaming=settings.streaming is not False,
        timeout_s=settings.request_timeout_seconds,
        decoupled=True,
        session=settings.workload.session,
        min_length_input="min_tokens" if settings.exact_output else None,
    )


def _triton_target(settings: Benchmark, endpoint: Endpoint, name: str, protocol: Protocol) -> Target:
    served = connect.describe(endpoint, name, settings.request_timeout_seconds, protocol)
    missing = [each for each in LORA_INPUTS if each not in served.inputs]
    if settings.workload.lora and missing:
        raise RequestFailed(
            f"Model {name!r} takes no LoRA adapters: it has no input {', '.join(map(repr, missing))}.",
            hint=f"{_USUAL_MODELS}, or measure without adapters (--set workload.lora=[])",
        )
    if not served.takes_text and _CORE_INPUT not in served.inputs:
        raise RequestFailed(
            f"Model {name!r} has neither the input 'text_input' nor {_CORE_INPUT!r}: its inputs are "
            f"{', '.join(sorted(served.inputs)) or 'none'}.",
            hint=_USUAL_MODELS,
        )
    return Target(
        endpoint=endpoint,
        model=name,
        served=served,
        protocol=protocol,
        streaming=served.decoupled if settings.streaming is None else settings.streaming,
        timeout_s=settings.request_timeout_seconds,
        decoupled=served.decoupled,
        session=settings.workload.session,
        stream_input=next((known for known in STREAM_INPUTS if known in served.inputs), None),
        min_length_input=_min_length_input(name, served) if settings.exact_output else None,
    )


def _min_length_input(name: str, served: ServedModel) -> str:
    if found := BY_NAME["min_tokens"].input_of(served):
        return found
    raise InvalidMeasurement(
        f"Model {name!r} has no input for the minimum length of answers (min_length).",
        hint="remove --exact-output (companion.benchmark.exact_output)",
    )
