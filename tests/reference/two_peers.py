"""One rank that waits for something else than its peers, as for its GPU.

Usage: ``python -m tests.reference.two_peers`` with RANK and its companions set.
Prints a line once it watches the other ranks; ends with ``LOST`` when one is lost.
"""

from __future__ import annotations

import os
import sys
import threading

from trtllm_hpc.reference.channel import Channel
from trtllm_hpc.reference.world import World

LOST = 3


def main() -> None:
    world = World.from_environment(os.environ)
    Channel(world).watch(lambda error: os._exit(LOST))
    print("watching", flush=True)
    threading.Event().wait(60)
    sys.exit("nothing was noticed")


if __name__ == "__main__":
    main()
