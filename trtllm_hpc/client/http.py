"""HTTP calls of Triton's protocol that need no client library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from trtllm_hpc.errors import AnswerTimedOut, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint


def _open(endpoint: Endpoint, request: urllib.request.Request, timeout_s: float) -> Any:
    # Clusters often set http_proxy for the outside world; such a proxy cannot reach compute nodes.
    direct = urllib.request.ProxyHandler({})
    secure = urllib.request.HTTPSHandler(context=endpoint.tls())
    return urllib.request.build_opener(direct, secure).open(request, timeout=timeout_s)


def is_ready(endpoint: Endpoint, timeout_s: float) -> bool:
    """Return whether ``/v2/health/ready`` answers 200 within ``timeout_s`` seconds."""
    try:
        url = f"{endpoint.scheme}://{endpoint.http}/v2/health/ready"
        request = urllib.request.Request(url, headers=endpoint.authorization)
        with _open(endpoint, request, timeout_s) as reply:
            return bool(reply.status == 200)
    except (OSError, HTTPException):
        return False


def call_json(endpoint: Endpoint, path: str, timeout_s: float, body: Any = None) -> Any:
    """GET ``path``, or POST ``body`` to it as JSON, and return the JSON answer.

    Raises:
        RequestFailed: with the server's error message if there is one.
    """
    url = f"{endpoint.scheme}://{endpoint.http}/{path.lstrip('/')}"
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **endpoint.authorization}
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with _open(endpoint, request, timeout_s) as reply:
            return json.loads(reply.read().decode("utf-8", errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            reason = error_message(error.read(65536)) or error.reason
        raise RequestFailed(f"{url} answered {error.code}: {reason}") from error
    except TimeoutError as error:
        raise AnswerTimedOut(f"{url} did not answer within {timeout_s:g} s.") from error
    except (OSError, HTTPException) as error:
        raise ServerUnreachable(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from error
    except ValueError as error:
        raise RequestFailed(f"{url} answered what is not JSON: {error}") from error


def error_message(body: bytes) -> str:
    """Return the message of Triton's ``{"error": ...}``, else the body as it is."""
    text = body.decode("utf-8", errors="replace").strip()
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text
