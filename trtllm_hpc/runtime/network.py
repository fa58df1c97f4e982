"""Addresses and free ports of this node."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import struct

_SIOCGIFADDR = 0x8915
"""ioctl that returns an interface's IPv4 address (netdevice(7))."""

_PORTS = range(20_000, 32_000)
"""Below Linux's default range of ephemeral ports (32768 on), so that no outgoing connection takes one."""


def interface_address(interface: str) -> str | None:
    """IPv4 address of an interface, or ``None`` if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def own_address(interface: str | None = None) -> str:
    """IPv4 address at which other nodes reach this one.

    Args:
        interface: its interface, if the profile names one.

    Raises:
        SystemExit: the named interface has no address here.
    """
    if interface is not None:
        address = interface_address(interface)
        if address is None:
            present = ", ".join(name for _, name in socket.if_nameindex())
            raise SystemExit(
                f"error: {socket.gethostname()} has no interface {interface!r} with an IPv4 address "
                f"(it has: {present}).\n  next: set network_interface in the cluster profile"
            )
        return address
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = "127.0.0.1"
    if not named.startswith("127."):
        return named
    addresses = (interface_address(name) for _, name in socket.if_nameindex())
    return next((address for address in addresses if address and not address.startswith("127.")), named)


def interface_towards(address: str) -> str | None:
    """Name of the interface through which this node reaches ``address``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # connecting a datagram socket sends nothing
            local = probe.getsockname()[0]
        except OSError:
            return None
    return next((name for _, name in socket.if_nameindex() if interface_address(name) == local), None)


def free_ports(count: int) -> list[int]:
    """Ports that can be bound on this node now, all different.

    They are drawn at random, so that two jobs that start on one node in the
    same second hardly ever draw the same ones.

    Raises:
        SystemExit: there are not so many.
    """
    draw = random.Random(os.urandom(16))
    found: list[int] = []
    for port in draw.sample(_PORTS, len(_PORTS)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise SystemExit(
        f"error: {socket.gethostname()} has no {count} free ports in {_PORTS.start}-{_PORTS.stop - 1}."
    )
