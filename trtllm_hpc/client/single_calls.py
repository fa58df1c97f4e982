"""Single calls to a server over HTTP and gRPC, with the key and the certificate of its proxy."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import AnswerTimedOut, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.response import error_message


def _open(endpoint: Endpoint, url: str, timeout_s: float, data: bytes | None = None) -> Any:
    # Ignore http_proxy: a cluster's proxy for the internet cannot reach compute nodes.
    direct = urllib.request.ProxyHandler({})
    secure = urllib.request.HTTPSHandler(context=endpoint.tls())
    headers = {"Content-Type": "application/json", **endpoint.authorization}
    request = urllib.request.Request(url, data=data, headers=headers)
    return urllib.request.build_opener(direct, secure).open(request, timeout=timeout_s)


def not_ready(endpoint: Endpoint, timeout_s: float) -> str | None:
    """Return ``None`` if a server is ready, else why not, as the end of a sentence about the server.

    A ready server answers 200 within ``timeout_s`` seconds: Triton at ``/v2/health/ready``, others at
    ``/health``.
    """
    try:
        if endpoint.is_triton:
            url = f"{endpoint.scheme}://{endpoint.http}/v2/health/ready"
        else:
            url = f"{endpoint.openai_root}/health"
        with _open(endpoint, url, timeout_s) as reply:
            return None if reply.status == 200 else "did not answer as ready"
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        if getattr(error, "code", None) == HTTPStatus.UNAUTHORIZED:
            return f"refuses the key in {endpoint.key_file}"
        if isinstance(reason, ConnectionRefusedError):
            return "cannot be reached: nothing listens there"
        if type(reason).__name__ == "SSLCertVerificationError":
            return f"has another certificate than {endpoint.certificate_file}"
        return "did not answer as ready"


def openai_models(endpoint: Endpoint, timeout_s: float) -> list[str]:
    """Return the names of the models that a server with OpenAI's protocol lists.

    Raises RequestFailed if the server does not answer or has no list.
    """
    url = f"{endpoint.openai_url}/models"
    try:
        names = [model["id"] for model in _call_url(endpoint, url, timeout_s)["data"]]
    except (TypeError, KeyError):
        names = [None]
    if not all(isinstance(name, str) for name in names):
        raise RequestFailed(f"{url} did not return a list of models.")
    return [str(name) for name in names]


def key_hint(status: int | str) -> str | None:
    """Return a hint if a status, such as ``HTTP 401`` or ``UNAUTHENTICATED``, means that a key is missing."""
    is_refused = str(status)[-3:] in ("401", "403") or status in ("UNAUTHENTICATED", "PERMISSION_DENIED")
    return "--key-file FILE, with the server's key" if is_refused else None


def call_json(endpoint: Endpoint, path: str, timeout_s: float, body: Any = None) -> Any:
    """GET ``path`` of Triton, or POST ``body``, and return the JSON answer; raises RequestFailed."""
    return _call_url(endpoint, f"{endpoint.scheme}://{endpoint.http}/{path.lstrip('/')}", timeout_s, body)


def _call_url(endpoint: Endpoint, url: str, timeout_s: float, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        with _open(endpoint, url, timeout_s, data) as reply:
            return json.loads(reply.read().decode("utf-8", errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            reason = error_message(error.read(65536)) or error.reason
        raise RequestFailed(f"{url} answered {error.code}: {reason}", hint=key_hint(error.code)) from error
    except TimeoutError as error:
        raise AnswerTimedOut(f"{url} did not answer within {timeout_s:g} s.") from error
    except (OSError, HTTPException) as error:
        hint = f"curl -i {url} shows whether a server listens there"
        message = f"{url} cannot be reached: {getattr(error, 'reason', error)}"
        raise ServerUnreachable(message, hint=hint) from error
    except ValueError as error:
        raise RequestFailed(f"{url} did not return JSON: {error}") from error


def channel(endpoint: Endpoint, library: Any) -> Any:
    """Return a channel of ``grpc`` or ``grpc.aio``. Raises RequestFailed if the certificate is unreadable."""
    import grpc  # type: ignore[import-untyped]

    options: list[tuple[str, int | str]] = [
        # A proxy for the internet cannot reach compute nodes.
        ("grpc.enable_http_proxy", 0),
        # No limits: gRPC's default is 4 MiB, but LoRA weights and long texts are larger.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
    ]
    if endpoint.certificate_file is None:
        return library.insecure_channel(endpoint.grpc, options=options)
    try:
        trusted = Path(endpoint.certificate_file).read_bytes()
    except OSError as error:
        sentence = f"The certificate {endpoint.certificate_file} cannot be read: {error.strerror}."
        raise RequestFailed(sentence) from None
    credentials = grpc.ssl_channel_credentials(root_certificates=trusted)
    return library.secure_channel(endpoint.grpc, credentials, options=options)


def call_grpc(
    endpoint: Endpoint, method: str, message: str, timeout_s: float, **fields: Any
) -> dict[str, Any]:
    """Call a method of Triton's gRPC service with a message, and return the answer as plain JSON types.

    Raises ServerUnreachable, AnswerTimedOut, or RequestFailed with the server's message.
    """
    import grpc
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    metadata = tuple(endpoint.authorization.items())
    with channel(endpoint, grpc) as opened:
        call = getattr(service_pb2_grpc.GRPCInferenceServiceStub(opened), method)
        try:
            answer = call(getattr(service_pb2, message)(**fields), timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise call_failure(error, endpoint, timeout_s) from error
    plain: dict[str, Any] = MessageToDict(answer, preserving_proto_field_name=True)
    return plain


def call_failure(
    error: Any, endpoint: Endpoint, timeout_s: float, *, model: str | None = None, responses: int = 0
) -> RequestFailed:
    """Return the exception for gRPC's error of a call, after a number of responses of a model."""
    import grpc

    where = f"{endpoint.grpc} (gRPC)"
    subject = where if model is None else f"Model {model!r} at {where}"
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        message = f"{subject} did not answer within {timeout_s:g} s."
        return AnswerTimedOut(message, hint="raise --timeout-seconds")
    if code == grpc.StatusCode.UNAVAILABLE and responses:
        return RequestFailed(f"{where} was lost after {responses} responses: {details}")
    if code == grpc.StatusCode.UNAVAILABLE:
        return ServerUnreachable(f"{where} cannot be reached: {details}")
    return RequestFailed(f"{subject} failed: {details or code.name}", hint=key_hint(code.name))
