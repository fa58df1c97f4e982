"""The sandbox's network: a bridge in the head's network namespace, and a veth pair to the machine.

The bridge is not on the machine itself, because there the machine's firewall (Docker's, for
example) would filter the traffic between the nodes.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterable
from contextlib import suppress

from trtllm_hpc.errors import SandboxError
from trtllm_hpc.sandbox import processes
from trtllm_hpc.sandbox.hosts import POOLS, SandboxLayout, interface_name
from trtllm_hpc.sandbox.nodes import Node


def free_subnet(claimed: Iterable[str]) -> str:
    """Return the first three numbers of a /24 that is neither routed nor claimed; raises SandboxError."""
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
    networks = []
    for route in routes:
        # The default route covers everything.
        if route["dst"] not in ("default", "0.0.0.0/0"):
            with suppress(ValueError):
                networks.append(ipaddress.ip_network(route["dst"], strict=False))
    return networks


def connect(layout: SandboxLayout, head: Node, nodes: list[Node]) -> None:
    """Make the bridge in the head, and connect the machine and every node to it by a veth pair.

    A node's interface is called ``eth0``.
    """
    interface = interface_name(layout.name)
    _ip(
        f"link add {interface} type veth peer name machine netns {head.pid}",
        f"address add {layout.subnet}.254/24 dev {interface}",
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
    _ip(*lines, inside=head)
    for node in nodes:
        _ip(f"address add {node.address}/24 dev eth0", "link set eth0 up", inside=node)


def remove(name: str) -> None:
    """Remove the machine's end of its veth pair; the rest ends with the namespaces."""
    interface = interface_name(name)
    if _exists(interface):
        with suppress(SandboxError):  # the kernel may be removing it at this moment
            _ip(f"link delete {interface}")
    if not processes.wait_until(lambda: not _exists(interface), 10):
        raise SandboxError(
            f"The interface {interface} cannot be removed.", hint=f"ip link delete {interface}"
        )


def _exists(interface: str) -> bool:
    try:
        socket.if_nametoindex(interface)
    except OSError:
        return False
    return True


def _ip(*lines: str, inside: Node | None = None) -> None:
    """Run several `ip` commands in one process, in a node's network namespace if a node is given."""
    enter = [] if inside is None else ["nsenter", f"--target={inside.pid}", "--net", "--"]
    processes.run([*enter, "ip", "-batch", "-"], text_in="\n".join(lines) + "\n")
