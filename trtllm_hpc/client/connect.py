"""Connect to a served model, by endpoint or URL."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit

from trtllm_hpc.client.over_grpc import GrpcConnection
from trtllm_hpc.client.over_openai import OpenAIConnection
from trtllm_hpc.client.single_calls import call_grpc, call_json, openai_models
from trtllm_hpc.errors import AnswerTimedOut, InvalidRequest, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.served_model import (
    CORE_MODEL,
    TEXT_MODELS,
    ServedModel,
    parse_model_config,
    ready_models,
)

Protocol = Literal["grpc", "openai"]
"""Protocols of the client: Triton's gRPC, and OpenAI's."""

_LOOK_TIMEOUT_S = 30.0
"""Time limit of calls that do not use the model, in seconds."""

_PORTS = {"grpc": 8001, "grpcs": 8001, "http": 80, "https": 443}
"""Default ports by URL scheme."""


@dataclass(frozen=True)
class Address:
    """The address of a server outside any run."""

    url: str
    """``http://`` or ``https://`` for Triton or OpenAI's protocol, ``grpc://`` or ``grpcs://`` for Triton."""
    key_file: Path | None = None
    """File with the server's key, which is sent as a bearer token."""
    certificate_file: Path | None = None
    """File with the certificate to trust; ``None``: the system's certificates."""


Target = Endpoint | Address
Connection = GrpcConnection | OpenAIConnection


def usual_protocol(endpoint: Endpoint) -> Protocol:
    """Return the default protocol of a server."""
    return "grpc" if endpoint.is_triton else "openai"


def refuse_protocol(endpoint: Endpoint, *, is_openai: bool) -> None:
    """Raise InvalidRequest if a server lacks OpenAI's protocol or, without ``is_openai``, Triton's."""
    if is_openai and endpoint.openai_url is None:
        raise InvalidRequest(
            f"The server at {endpoint.place} does not have OpenAI's protocol.", hint="--protocol grpc"
        )
    if not is_openai and not endpoint.is_triton:
        raise InvalidRequest(
            f"The server at {endpoint.place} is not Triton: it has only OpenAI's protocol.",
            hint="--protocol openai",
        )


def parse_url(address: Address) -> tuple[str, Endpoint]:
    """Return the protocol and the endpoint of a Triton server at a URL.

    Raises InvalidRequest for another scheme, or if the text is not a URL.
    """
    try:
        parts = urlsplit(address.url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError as error:
        raise InvalidRequest(f"{address.url!r} is not a URL: {error}.") from None
    if scheme not in _PORTS or not host:
        place = address.url.partition("://")[2] or address.url
        raise InvalidRequest(
            f"{address.url!r} does not begin with http://, https://, grpc:// or grpcs://.",
            hint=f"write http://{place}, or grpc:// for Triton's gRPC port",
        )
    certificate = address.certificate_file
    if certificate is None and scheme.endswith("s"):
        paths = ssl.get_default_verify_paths()
        certificate = Path(paths.cafile or paths.openssl_cafile)
    port = port or _PORTS[scheme]
    return "grpc" if scheme.startswith("grpc") else "http", Endpoint(
        job_id="",
        host=host,
        address=f"[{host}]" if ":" in host else host,
        http_port=port,
        grpc_port=port,
        metrics_port=0,
        models=[],
        ready_at=0.0,
        key_file=None if address.key_file is None else str(address.key_file),
        certificate_file=None if certificate is None else str(certificate),
    )


async def connect(
    target: Target, model: str | None, protocol: Protocol | None, timeout_s: float
) -> Connection:
    """Return a connection to a model of a server, by default to the usual model.

    A URL's scheme determines the protocol. Raises RequestFailed if the server does not answer or lacks the
    model, or if no model can be chosen.
    """
    timeout_s = min(timeout_s, _LOOK_TIMEOUT_S)
    if isinstance(target, Endpoint):
        endpoint, chosen = target, str(protocol or usual_protocol(target))
        refuse_protocol(endpoint, is_openai=chosen == "openai")
    else:
        chosen, endpoint = await asyncio.to_thread(look_at, target, timeout_s)
    if chosen == "openai":
        if model is None:
            model = await asyncio.to_thread(usual_openai_model, endpoint, timeout_s)
        return OpenAIConnection(endpoint, model)
    if chosen == "http":
        raise InvalidRequest(
            f"{endpoint.http} is Triton's HTTP port, but the client needs Triton's gRPC port.",
            hint=f"--url grpc://{endpoint.address}:8001, or Triton's gRPC port there",
        )

    def described() -> tuple[ServedModel, bool]:
        served = describe(endpoint, model or usual_model(endpoint), timeout_s)
        if served.ensemble and CORE_MODEL in endpoint.models:
            return served, describe(endpoint, CORE_MODEL, timeout_s).decoupled
        return served, served.decoupled and served.takes_text

    served, streams = await asyncio.to_thread(described)
    return GrpcConnection(endpoint, served, can_stream=streams)


def look_at(address: Address, timeout_s: float) -> tuple[str, Endpoint]:
    """Find out a server's protocol, ``grpc`` or ``http`` of Triton or ``openai``, and its models.

    Raises RequestFailed.
    """
    protocol, endpoint = parse_url(address)
    if protocol == "grpc":
        index = call_grpc(endpoint, "RepositoryIndex", "RepositoryIndexRequest", timeout_s).get("models", [])
        return protocol, replace(endpoint, models=ready_models(index))
    base = address.url.rstrip("/")
    openai = replace(endpoint, http_port=0, grpc_port=0, openai_url=base)
    if urlsplit(base).path.endswith("/v1"):
        return "openai", openai
    try:
        call_json(endpoint, "v2", timeout_s)
    except (ServerUnreachable, AnswerTimedOut):
        raise
    except RequestFailed:
        return "openai", replace(openai, openai_url=f"{base}/v1")
    try:
        index = call_json(endpoint, "v2/repository/index", timeout_s, {})
    except RequestFailed:
        return protocol, endpoint  # the server does not list its models
    return protocol, replace(endpoint, models=ready_models(index))


def usual_openai_model(endpoint: Endpoint, timeout_s: float) -> str:
    """Return the only model of a server with OpenAI's protocol.

    Raises InvalidRequest if there are several or none, and RequestFailed if the server does not list its
    models.
    """
    # The front server of a disaggregated run lists no models, but the run's endpoint does.
    known = [] if endpoint.is_triton else endpoint.models
    models = known or openai_models(endpoint, timeout_s)
    if len(models) != 1:
        raise InvalidRequest(
            f"{endpoint.openai_url} serves {len(models)} models.",
            hint=f"--model NAME, one of: {', '.join(models)}",
        )
    return models[0]


def usual_model(endpoint: Endpoint) -> str:
    """Return the default model of a Triton server."""
    return next((name for name in TEXT_MODELS if name in endpoint.models), TEXT_MODELS[0])


def describe(endpoint: Endpoint, model: str, timeout_s: float, protocol: str = "grpc") -> ServedModel:
    """Fetch a model's configuration, over gRPC if only that port is known.

    Raises RequestFailed with the server's error message, for example about a missing model.
    """
    if endpoint.http_port != endpoint.grpc_port or protocol == "http":
        config = call_json(endpoint, f"v2/models/{quote(model, safe='')}/config", timeout_s)
    else:
        answer = call_grpc(endpoint, "ModelConfig", "ModelConfigRequest", timeout_s, name=model)
        config = answer.get("config", {})
    return parse_model_config(model, config)
