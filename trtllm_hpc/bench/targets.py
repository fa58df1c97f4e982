"""Choose the model that a measurement sends requests to, and the form of the requests."""

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
"""By body key: the setting, and its value for servers that refuse the key."""


def target_of(settings: Benchmark, endpoint: Endpoint, text_model: str | None) -> Target:
    """Return the model and the form of its requests.

    Args:
        text_model: Triton model if the settings name none; ``None``: the usual model.

    Raises:
        RequestFailed: the server lacks the model, or the model does not accept such requests.
        InvalidRequest: the server lacks the protocol of the settings, or no model can be chosen.
        InvalidMeasurement: the model cannot give the figures that are to be measured.
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
        message = f"extra_body needs OpenAI's protocol, but the protocol is {protocol}."
        raise InvalidMeasurement(message, hint="--protocol openai, or remove extra_body")
    else:
        name = settings.model or text_model or connect.usual_model(endpoint)
        target = _triton_target(settings, endpoint, name, protocol)
    # Without the figures that the limits need, a search would go on to the lowest rate.
    streamed = parse_slo(settings.slo).needing_streaming if settings.slo is not None else []
    if streamed and not (target.streaming and target.decoupled):
        reason, hint = "answers are not streamed", "stream them (--streaming, companion.benchmark.streaming)"
        if not target.decoupled:
            reason = f"the model {target.model!r} sends each answer in one piece"
            hint = "serve it with repository.decoupled: true"
        raise InvalidMeasurement(
            f"The SLO limits {', '.join(streamed)}, which need streamed answers, but {reason}.",
            hint=f"{hint}, or limit the latency instead (--slo 'latency<1s')",
        )
    return target


def fitted(target: Target, settings: Benchmark) -> tuple[Target, list[str]]:
    """Return the target without body keys that its server refuses, and a note for each refused key.

    A request of one token finds refused keys, and is repeated without them. All other errors of the server
    are left to the measurement.
    """
    plain, accepted, notes = dict(settings), target, list[str]()
    unsure = {
        key: fallback for key, fallback in _WITHOUT.items() if target.is_openai and plain[fallback[0]] is None
    }
    while (unsure or notes) and (refusal := _first_refusal(accepted)) is not None:
        refused = [key for key in unsure if re.search(rf"\b{key}\b", refusal)]
        if not refused:
            return target, []
        setting, value = unsure.pop(refused[0])
        accepted = replace(accepted, **{setting: value})
        notes.append(f"The server refuses {refused[0]}, so {setting} is {scalar(value)}.")
    return accepted, notes


def _first_refusal(target: Target) -> str | None:
    """Return the error if the server refuses a short request as invalid, else ``None``."""
    payload = encode_request(WorkloadRequest(1, "Hello"), target)
    quick = replace(target, timeout_s=min(target.timeout_s, _FIRST_TIMEOUT_S))
    with suppress(NotReady):
        load = run_load(ClosedPlan(quick, [payload], Clock(), 1, 1))
        if load.interrupted:
            raise KeyboardInterrupt
        return next((reply.error for reply in load.replies if reply.status in ("HTTP 400", "HTTP 422")), None)
    return None


def with_protocol(settings: Benchmark, spoken: str, url: str) -> Benchmark:
    """Return settings with the protocol ``spoken``. Raises InvalidRequest if they name another one."""
    protocol = settings.protocol or spoken
    if protocol not in (OPENAI_PROTOCOLS if spoken == "openai" else (spoken,)):
        raise InvalidRequest(f"{url} has the protocol {spoken}, not {protocol}.", hint=f"--protocol {spoken}")
    return settings.model_copy(update={"protocol": protocol})


def _triton_target(settings: Benchmark, endpoint: Endpoint, name: str, protocol: Protocol) -> Target:
    served = connect.describe(endpoint, name, settings.request_timeout_seconds, protocol)
    if not served.takes_text and _CORE_INPUT not in served.inputs:
        raise RequestFailed(
            f"Model {name!r} has neither the input 'text_input' nor {_CORE_INPUT!r}, only "
            f"{', '.join(sorted(served.inputs)) or 'no inputs'}.",
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
