from __future__ import annotations

import json

import pytest

from tests.sandbox.conftest import Commands
from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import network


def routes(commands: Commands, *destinations: str) -> None:
    told = json.dumps([{"dst": destination} for destination in destinations])
    commands.add("ip", script=f"echo '{told}'")


def test_a_default_route_takes_no_subnet(commands: Commands) -> None:
    routes(commands, "default", "192.168.1.0/24", "192.168.1.7")
    assert network.free_subnet([]) == "10.97.0"


def test_routed_and_claimed_subnets_are_left_alone(commands: Commands) -> None:
    routes(commands, "default", "10.97.0.0/23", "10.97.3.9")
    assert network.free_subnet(["10.97.2"]) == "10.97.4"


def test_a_vpn_over_all_of_10_is_gone_round(commands: Commands) -> None:
    routes(commands, "10.0.0.0/8")
    assert network.free_subnet([]) == "172.29.0"


def test_no_free_subnet_is_an_error(commands: Commands) -> None:
    routes(commands, "10.0.0.0/8", "172.16.0.0/12", "198.18.0.0/15")
    with pytest.raises(SandboxError, match="Routes of this machine cover"):
        network.free_subnet([])
