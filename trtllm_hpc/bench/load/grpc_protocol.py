"""How gRPC uses HTTP/2: headers of a call, its status.

The protocol's own description is
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import unquote

from trtllm_hpc.bench.load.target import Target
from trtllm_hpc.bench.records import OK

_SERVICE = "/inference.GRPCInferenceService/"
_CODES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""By number: gRPC's statuscodes.md."""
_CODE_OF_HTTP = {
    "400": "INTERNAL",
    "401": "UNAUTHENTICATED",
    "403": "PERMISSION_DENIED",
    "404": "UNIMPLEMENTED",
    "429": "UNAVAILABLE",
    "502": "UNAVAILABLE",
    "503": "UNAVAILABLE",
    "504": "UNAVAILABLE",
}
"""What a status of HTTP means where a proxy answered: gRPC's http-grpc-status-mapping.md."""


_SERVER_LATER_MS = 50
"""The server is told so much more than the limit, lest its clock, which counts in milliseconds, ends a
request just before the client's does."""


def call_headers(target: Target) -> list[tuple[str, str]]:
    """Headers of every call to a target."""
    method = "ModelStreamInfer" if target.by_stream else "ModelInfer"
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", _SERVICE + method),
        (":authority", target.endpoint.grpc),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "trtllm-hpc"),
        ("grpc-timeout", _timeout(target.timeout_s)),
    ]
    # Asks Triton to end a stream with the status of its error (2.44 on); older ones send the words alone.
    return [*headers, ("triton_grpc_error", "true")] if target.by_stream else headers


def _timeout(timeout_s: float) -> str:
    """The time limit as the server is told it: a number of at most eight digits, and its unit."""
    milliseconds = math.ceil(timeout_s * 1000) + _SERVER_LATER_MS
    return f"{milliseconds}m" if milliseconds < 10**8 else f"{math.ceil(timeout_s) + 1}S"


def status_of(trailers: Mapping[str, str], http: str) -> tuple[str, str | None]:
    """Status and words of a call that has ended.

    Args:
        http: status of HTTP that the response began with.
    """
    code = trailers.get("grpc-status")
    if code == "0":
        return OK, None
    if code is None:
        http = trailers.get(":status", http)
        words = "the stream ended without a status" if http == "200" else f"HTTP {http}"
        return _CODE_OF_HTTP.get(http, "UNKNOWN"), words
    name = _CODES[int(code)] if code.isdecimal() and int(code) < len(_CODES) else "UNKNOWN"
    return name, unquote(trailers.get("grpc-message", "")) or None
