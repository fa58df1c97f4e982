"""What the gateway counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trtllm_hpc.gateway.metrics import Metrics


@pytest.mark.parametrize(
    ("scope", "count"),
    [
        ({"type": "lifespan"}, 0),
        ({"type": "http", "path": "/metrics"}, 0),
        ({"type": "http", "path": "/v1/completions"}, 1),
    ],
)
def test_only_requests_for_answers_are_open(scope: dict[str, Any], count: int) -> None:
    metrics, pages = Metrics(), list[bytes]()

    async def app(*_: Any) -> None:
        pages.append(bytes((await metrics.page(None)).body))  # type: ignore[arg-type]

    asyncio.run(metrics.counting(app)(scope, None, None))  # type: ignore[arg-type]
    assert f"trtllm_hpc_gateway_requests_open {count}.0".encode() in pages[0]
