"""A stand-in for Ray: ``ray_cluster.py head PORT``, ``join HOST:PORT`` and ``wait HOST:PORT NODES``.

As with Ray, the head goes on in a session of its own when the command has returned, and a worker stays when
the head is gone. Standard library only.
"""

from __future__ import annotations

import os
import socket
import sys
import time


def head(port: int) -> None:
    """Count the nodes that join, in the background."""
    with socket.create_server(("", port)) as listener:
        if os.fork():
            return
        os.setsid()
        nodes = 1
        while True:
            with listener.accept()[0] as connection:
                nodes += connection.recv(16) == b"join"
                connection.sendall(str(nodes).encode())


def ask(place: str, words: bytes) -> int:
    """Send something to the head, which may not listen yet; returns how many nodes there are."""
    host, _, port = place.partition(":")
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(words)
                return int(connection.recv(16))
        except OSError:
            time.sleep(0.1)


def main(role: str, place: str, nodes: str = "0") -> None:
    """Play a role."""
    if role == "head":
        head(int(place))
        return
    while ask(place, role.encode()) < int(nodes):
        time.sleep(0.1)
    while role == "join":
        time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
