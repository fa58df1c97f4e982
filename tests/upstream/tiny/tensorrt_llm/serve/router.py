"""Routers of the process in front."""

from __future__ import annotations

from typing import Any


def create_router(router_config: Any, servers: list[str]) -> None:
    """Make it, by its name."""
    if router_config.type not in ("round_robin", "load_balancing"):
        raise ValueError(f"Unsupported router type: {router_config.type}")
