"""The sandbox's bridge: in the head's network namespace, one cable to the machine.

The bridge is not on the machine itself, since there the firewall of the
machine (Docker's, for one) would filter what the nodes say to each other.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.layout import POOLS, Layout, interface_name
from trtllm_hpc.sandbox.machines import Machine


def free_subnet(claimed: Iterable[str]) -> str:
    """The first three numbers of a /24 that no route of this machine covers.

    Args:
        claimed: other sandboxes' subnets, whose routes may not be there yet.

    Raises:
        SandboxError: there is none.
    """
    taken = [*_routed_networks(), *(ipaddress.ip_network(f"{subnet}.0/24") for subnet in claimed)]
    for pool in POOLS:
        for number in range(256):
            candidate = ipaddress.ip_network(f"{pool}.{number}.0/24")
            if not any(candidate.overlaps(network) for network in taken):
                return f"{pool}.{number}"
    pools = ", ".join(f"{pool}.0.0/16" for pool in POOLS)
    raise SandboxError(f"Routes of this machine cover all of {pools}.", hint="ip route")


def _routed_networks() -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    routes = json.loads(processes.run(["ip", "-json", "-4", "route", "show", "table", "all"]) or "[]")
    # The default route covers everything and says nothing.
    named = [route["dst"] for route in routes if route["dst"] not in ("default", "0.0.0.0/0")]
    networks = []
    for name in named:
        with suppress(ValueError):
            networks.append(ipaddress.ip_network(name, strict=False))
    return networks


def connect(layout: Layout, head: Machine, nodes: list[Machine]) -> None:
    """Make the bridge in the head, and lay a cable to it from the machine and every node.

    A node's interface is called ``eth0``.
    """
    interface = interface_name(layout.name)
    _ip(
        f"link add {interface} type veth peer name machine netns {head.pid}",
        f"address add {layout.machine_address}/24 dev {interface}",
        f"link set {interface} up",
    )
    lines = [
        "link add bridge0 type bridge forward_delay 0",
        f"address add {layout.head.address}/24 dev bridge0",
        "link set bridge0 up",
        "link set machine master bridge0",
        "link set machine up",
    ]
    for index, node in enumerate(nodes, start=1):
        lines += [
            f"link add n{index} type veth peer name eth0 netns {node.pid}",
            f"link set n{index} master bridge0",
            f"link set n{index} up",
        ]
    _ip(*lines, inside=head.netns)
    for node in nodes:
        _ip(f"address add {node.address}/24 dev eth0", "link set eth0 up", inside=node.netns)


def remove(name: str) -> None:
    """Remove the machine's end of the cable; the rest goes with the namespaces."""
    interface = interface_name(name)
    if _is_there(interface):
        with suppress(SandboxError):  # it may go by itself at this very moment
            _ip(f"link delete {interface}")
    if not processes.wait_until(lambda: not _is_there(interface), 10):
        raise SandboxError(f"The interface {interface} does not go away.", hint=f"ip link delete {interface}")


def _is_there(interface: str) -> bool:
    try:
        socket.if_nametoindex(interface)
    except OSError:
        return False
    return True


def _ip(*lines: str, inside: Path | None = None) -> None:
    """Run several `ip` commands, in one process, in a network namespace."""
    enter = [] if inside is None else ["nsenter", f"--net={inside}", "--"]
    processes.run([*enter, "ip", "-batch", "-"], text_in="\n".join(lines) + "\n")
