"""HTTP calls of Triton's protocol and of OpenAI's that need no client library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from trtllm_hpc.errors import AnswerTimedOut, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.response import error_message


def _open(endpoint: Endpoint, request: urllib.request.Request, timeout_s: float) -> Any:
    # Clusters often set http_proxy for the outside world; such a proxy cannot reach compute nodes.
    direct = urllib.request.ProxyHandler({})
    secure = urllib.request.HTTPSHandler(context=endpoint.tls())
    return urllib.request.build_opener(direct, secure).open(request, timeout=timeout_s)


def is_ready(endpoint: Endpoint, timeout_s: float) -> bool:
    """Return whether the server answers 200 within ``timeout_s`` seconds when asked whether it is ready.

    Triton is asked at ``/v2/health/ready``, another server at ``/health``.
    """
    try:
        if endpoint.is_triton:
            url = f"{endpoint.scheme}://{endpoint.http}/v2/health/ready"
        else:
            url = f"{endpoint.openai_root}/health"
        request = urllib.request.Request(url, headers=endpoint.authorization)
        with _open(endpoint, request, timeout_s) as reply:
            return bool(reply.status == 200)
    except (OSError, HTTPException):
        return False


def openai_models(endpoint: Endpoint, timeout_s: float) -> list[str]:
    """Return the names of the models that a server with OpenAI's protocol lists.

    Raises RequestFailed if it has no such list, or does not answer.
    """
    url = f"{endpoint.openai_url}/models"
    listed = _call_url(endpoint, url, timeout_s)
    data = listed.get("data") if isinstance(listed, dict) else None
    names = [item.get("id") for item in data if isinstance(item, dict)] if isinstance(data, list) else [None]
    if not all(isinstance(name, str) for name in names):
        raise RequestFailed(f"{url} did not return a list of models.")
    return [str(name) for name in names]


def call_json(endpoint: Endpoint, path: str, timeout_s: float, body: Any = None) -> Any:
    """GET ``path`` of Triton, or POST ``body``, and return the JSON answer; raises RequestFailed."""
    return _call_url(endpoint, f"{endpoint.scheme}://{endpoint.http}/{path.lstrip('/')}", timeout_s, body)


def _call_url(endpoint: Endpoint, url: str, timeout_s: float, body: Any = None) -> Any:
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
        raise RequestFailed(f"{url} did not return JSON: {error}") from error
