"""The served model that a measurement asks, and how."""

from __future__ import annotations

from trtllm_hpc.bench.analysis.slo import parse_slo
from trtllm_hpc.bench.load.messages import Target
from trtllm_hpc.client import connect
from trtllm_hpc.client.request import BY_NAME
from trtllm_hpc.config.benchmark import OPENAI_PROTOCOLS, Benchmark, Protocol
from trtllm_hpc.errors import InvalidMeasurement, InvalidRequest, RequestFailed
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.served_model import STREAM_INPUTS

_CORE_INPUT = "input_ids"


def target_of(settings: Benchmark, endpoint: Endpoint, text_model: str | None) -> Target:
    """Return the model, and how requests are sent to it.

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
    if is_openai:
        name = settings.model or connect.usual_openai_model(endpoint, settings.request_timeout_seconds)
        target = Target(
            endpoint=endpoint,
            model=name,
            protocol=protocol,
            streaming=settings.streaming is not False,
            timeout_s=settings.request_timeout_seconds,
            decoupled=True,
            min_length_input="min_tokens" if settings.exact_output else None,
            extra_body=settings.extra_body,
        )
    elif settings.extra_body:
        raise InvalidMeasurement(
            f"Further keys of the body ({', '.join(settings.extra_body)}) go over OpenAI's protocol, and the "
            f"model is asked over {protocol}.",
            hint="--protocol openai, or remove --extra-body (companion.benchmark.extra_body)",
        )
    else:
        name = settings.model or text_model or connect.usual_model(endpoint)
        target = _triton_target(settings, endpoint, name, protocol)
    # A search for limits that no answer has a figure for would end at the lowest rate.
    streamed = parse_slo(settings.slo).needing_streaming if settings.slo is not None else []
    if streamed and not (target.streaming and target.decoupled):
        reason, hint = "answers are not streamed", "stream them (--streaming, companion.benchmark.streaming)"
        if not target.decoupled:
            reason = f"model {target.model!r} gives each answer in one piece"
            hint = "serve it with repository.decoupled: true"
        raise InvalidMeasurement(
            f"The SLO limits {', '.join(streamed)}, which only streamed answers have; {reason}.",
            hint=f"{hint}, or limit the latency instead (--slo 'latency<1s')",
        )
    return target


def with_protocol(settings: Benchmark, spoken: str, url: str) -> Benchmark:
    """Return settings with the protocol that a server without a run speaks; raises InvalidRequest."""
    protocol = settings.protocol or spoken
    if protocol not in (OPENAI_PROTOCOLS if spoken == "openai" else (spoken,)):
        raise InvalidRequest(
            f"{url} speaks {spoken}, and the settings say {protocol}.", hint=f"--protocol {spoken}"
        )
    return settings.model_copy(update={"protocol": protocol})


def _triton_target(settings: Benchmark, endpoint: Endpoint, name: str, protocol: Protocol) -> Target:
    served = connect.describe(endpoint, name, settings.request_timeout_seconds, protocol)
    if not served.takes_text and _CORE_INPUT not in served.inputs:
        raise RequestFailed(
            f"Model {name!r} has neither the input 'text_input' nor {_CORE_INPUT!r}: its inputs are "
            f"{', '.join(sorted(served.inputs)) or 'none'}.",
            hint="choose ensemble, tensorrt_llm_bls or tensorrt_llm with --model",
        )
    min_length = BY_NAME["min_tokens"].input_of(served) if settings.exact_output else None
    if settings.exact_output and not min_length:
        raise InvalidMeasurement(
            f"Model {name!r} has no input for the minimum length of answers (min_length).",
            hint="remove --exact-output (companion.benchmark.exact_output)",
        )
    return Target(
        endpoint=endpoint,
        model=name,
        served=served,
        protocol=protocol,
        streaming=served.decoupled if settings.streaming is None else settings.streaming,
        timeout_s=settings.request_timeout_seconds,
        decoupled=served.decoupled,
        stream_input=next((known for known in STREAM_INPUTS if known in served.inputs), None),
        min_length_input=min_length,
    )
