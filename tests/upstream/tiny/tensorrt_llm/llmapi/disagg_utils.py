"""The file of the process in front of disaggregated servers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass
class ServerConfig:
    """A server."""

    type: str
    url: str


@dataclass
class RouterConfig:
    """How a phase's server is chosen."""

    type: str = "round_robin"


@dataclass
class DisaggServerConfig:
    """The whole file."""

    server_configs: list[ServerConfig]
    ctx_router_config: RouterConfig
    gen_router_config: RouterConfig


def parse_disagg_config_file(yaml_config_file: str) -> DisaggServerConfig:
    """Read it."""
    config: dict[str, Any] = yaml.safe_load(Path(yaml_config_file).read_text())
    servers, routers = [], []
    for kind, name in (("ctx", "context_servers"), ("gen", "generation_servers")):
        phase = config[name]
        routers.append(RouterConfig(**phase.pop("router", {})))
        if len(phase["urls"]) != phase["num_instances"]:
            raise ValueError("the number of urls should be equal to the number of instances")
        servers += [ServerConfig(kind, url) for url in phase["urls"]]
    return DisaggServerConfig(servers, *routers)
