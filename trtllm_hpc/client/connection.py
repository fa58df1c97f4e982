"""Connections to Triton over gRPC, with the key and the certificate of its door."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import AnswerTimedOut, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint


def channel(endpoint: Endpoint, library: Any) -> Any:
    """Return a channel of ``grpc`` or ``grpc.aio``. Raises RequestFailed if the certificate is unreadable."""
    import grpc  # type: ignore[import-untyped]

    options: list[tuple[str, int | str]] = [
        # A proxy for the outside world cannot reach compute nodes; see http.py.
        ("grpc.enable_http_proxy", 0),
        # gRPC's own limit is 4 MiB: logits and long texts are larger.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
    ]
    if endpoint.certificate_name is not None:
        options.append(("grpc.ssl_target_name_override", endpoint.certificate_name))
    if endpoint.certificate_file is None:
        return library.insecure_channel(endpoint.grpc, options=options)
    try:
        trusted = Path(endpoint.certificate_file).read_bytes()
    except OSError as error:
        sentence = f"The certificate {endpoint.certificate_file} cannot be read: {error.strerror}."
        raise RequestFailed(sentence) from None
    credentials = grpc.ssl_channel_credentials(root_certificates=trusted)
    return library.secure_channel(endpoint.grpc, credentials, options=options)


@contextmanager
def grpc_calls(endpoint: Endpoint, timeout_s: float) -> Iterator[Callable[[str, Any], Any]]:
    """Yield a function that calls a method of Triton's service with a message, and returns the answer.

    It raises ServerUnreachable, AnswerTimedOut, or RequestFailed with the server's message.
    """
    import grpc
    from tritonclient.grpc import service_pb2_grpc

    with channel(endpoint, grpc) as opened:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(opened)

        def call(method: str, message: Any) -> Any:
            metadata = tuple(endpoint.authorization.items())
            try:
                return getattr(stub, method)(message, timeout=timeout_s, metadata=metadata)
            except grpc.RpcError as error:
                raise call_failure(error, endpoint, timeout_s) from error

        yield call


def call_failure(
    error: Any, endpoint: Endpoint, timeout_s: float, *, model: str | None = None, responses: int = 0
) -> RequestFailed:
    """Return what gRPC's error of a call means, after a number of responses of a model."""
    import grpc

    where = f"{endpoint.grpc} (gRPC)"
    subject = where if model is None else f"Model {model!r} at {where}"
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return AnswerTimedOut(
            f"{subject} did not answer within {timeout_s:g} s.", hint="give it longer: --timeout-seconds"
        )
    if code == grpc.StatusCode.UNAVAILABLE and not responses:
        return ServerUnreachable(f"{where} cannot be reached: {details}")
    if code == grpc.StatusCode.UNAVAILABLE:
        return RequestFailed(f"{where} was lost after {responses} responses: {details}")
    return RequestFailed(f"{subject} failed: {details or code.name}")
