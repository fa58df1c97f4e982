"""The served model that a measurement asks, and how."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

from trtllm_hpc.bench.analysis.slo import parse_slo
from trtllm_hpc.bench.load.loops import ClosedPlan
from trtllm_hpc.bench.load.messages import AskedEndpoint, Target, encode_request
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.client import connect
from trtllm_hpc.client.request import BY_NAME
from trtllm_hpc.config.benchmark import OPENAI_PROTOCOLS, Benchmark, Protocol
from trtllm_hpc.config.dump import scalar
from trtllm_hpc.errors import InvalidMeasurement, InvalidRequest, NotReady, RequestFailed
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.served_model import STREAM_INPUTS

_CORE_INPUT = "input_ids"
_FIRST_TIMEOUT_S = 10.0
_WITHOUT: dict[str, tuple[str, Any]] = {
    "max_tokens": ("max_tokens_key", "max_completion_tokens"),
    "stream_options": ("include_usage", False),
}
"""The setting for a server that refuses a key of the body."""


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
    endpoint = AskedEndpoint(**vars(endpoint), headers=settings.headers)
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
            max_tokens_key=settings.max_tokens_key or "max_tokens",
            include_usage=settings.include_usage is not False,
            extra_body=settings.extra_body,
        )
    elif settings.extra_body:
        message = f"Further keys of the body need OpenAI's protocol, and the model is asked over {protocol}."
        raise InvalidMeasurement(message, hint="--protocol openai, or remove extra_body")
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


def fitted(target: Target, settings: Benchmark) -> tuple[Target, list[str]]:
    """Return the target with the keys that its server takes, and a note of each key that it refuses.

    A request of one token finds out, and is sent again without the key. Whatever else the server answers, the
    load will show.
    """
    plain, found, notes = dict(settings), target, list[str]()
    unsure = {key: it for key, it in _WITHOUT.items() if target.is_openai and plain[it[0]] is None}
    while (unsure or notes) and (refusal := _first_refusal(found)) is not None:
        named = [key for key in unsure if re.search(rf"\b{key}\b", refusal)]
        if not named:
            return target, []
        setting, value = unsure.pop(named[0])
        found = replace(found, **{setting: value})
        notes.append(f"The server refuses {named[0]}: measured with {setting}: {scalar(value)}.")
    return found, notes


def _first_refusal(target: Target) -> str | None:
    """Return why the server refuses a short request as a wrong one; ``None`` if it does not."""
    payload = encode_request(WorkloadRequest(1, "Hello"), target)
    quick = replace(target, timeout_s=min(target.timeout_s, _FIRST_TIMEOUT_S))
    with suppress(NotReady):
        load = run_load(ClosedPlan(quick, [payload], Clock(), 1, 1))
        if load.interrupted:
            raise KeyboardInterrupt
        return next((reply.error for reply in load.replies if reply.status in ("HTTP 400", "HTTP 422")), None)
    return None


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
