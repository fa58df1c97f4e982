from __future__ import annotations

import json

import pytest

from tests.sandbox.conftest import Commands
from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox.cluster import free_subnet


def routes(commands: Commands, *destinations: str) -> None:
    told = json.dumps([{"dst": destination} for destination in destinations])
    commands.add("ip", script=f"echo '{told}'")


def test_routed_and_claimed_subnets_are_left_alone(commands: Commands) -> None:
    routes(commands, "default", "10.97.0.0/23", "10.97.3.9")
    assert free_subnet(["10.97.2"]) == "10.97.4"


def test_no_free_subnet_is_an_error(commands: Commands) -> None:
    routes(commands, "10.0.0.0/8", "172.16.0.0/12", "198.18.0.0/15")
    with pytest.raises(SandboxError, match="Routes of this machine cover"):
        free_subnet([])
