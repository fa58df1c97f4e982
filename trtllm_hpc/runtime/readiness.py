"""Is the leader ready? Its own HTTP endpoint decides; log text never does."""

from __future__ import annotations

import http.client
import json
from typing import Any

_TIMEOUT_S = 2.0


def _ask(address: str, port: int, method: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def is_ready(address: str, port: int) -> bool:
    """Whether ``GET /v2/health/ready`` answers 200."""
    try:
        status, _ = _ask(address, port, "GET", "/v2/health/ready")
    except (OSError, http.client.HTTPException):
        return False
    return status == 200


def models(address: str, port: int) -> dict[str, str]:
    """Model name to state, from the repository's index; empty if it does not answer."""
    try:
        status, body = _ask(address, port, "POST", "/v2/repository/index")
        index: list[dict[str, Any]] = json.loads(body) if status == 200 else []
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return {entry["name"]: entry.get("state", "") for entry in index}


def ready_models(address: str, port: int) -> list[str] | None:
    """Names of the models once the server is ready and all of them are; ``None`` before."""
    if not is_ready(address, port):
        return None
    states = models(address, port)
    if not states or any(state != "READY" for state in states.values()):
        return None
    return sorted(states)
