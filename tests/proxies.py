"""One request to a port of a run's proxy."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from trtllm_hpc.runtime.records import Endpoint


def ask(
    endpoint: Endpoint,
    port: int,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Return status and text of the answer.

    Args:
        body: sent as JSON.
        headers: in place of the endpoint's key.
    """
    context = endpoint.tls()
    connection = (
        http.client.HTTPConnection(endpoint.address, port, timeout=30)
        if context is None
        else http.client.HTTPSConnection(endpoint.address, port, timeout=30, context=context)
    )
    sent = {"content-type": "application/json", **(endpoint.authorization if headers is None else headers)}
    with closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
