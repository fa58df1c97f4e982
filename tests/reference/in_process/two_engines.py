"""One rank of an engine over several: rank 0 answers requests and prints the answers as JSON.

Usage: ``python -m tests.reference.in_process.two_engines ENGINE REQUESTS`` with RANK and its companions set.
REQUESTS is a pickled list of lists; each list is submitted when the one before is answered.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from trtllm_hpc.reference import engine
from trtllm_hpc.reference.engine_config import EngineFolder, ServeSettings
from trtllm_hpc.reference.leader import Leader, follow
from trtllm_hpc.reference.world import World

from .leader import NoShutdown, ask


def main(folder: str, requests: str) -> None:
    world = World.from_environment(os.environ)
    thread = engine.one_thread()
    thread.submit(world.connect).result()
    settings = ServeSettings()
    loaded = thread.submit(engine.load, EngineFolder(folder), settings, world).result()
    shutdown: Any = NoShutdown()
    if not world.is_leader:
        thread.submit(follow, loaded, shutdown, world.rank).result()
        return
    leader = Leader(loaded, settings, shutdown)
    leader.start(thread)
    answers = []
    for together in pickle.loads(Path(requests).read_bytes()):
        for heard in ask(leader, *together):
            answers.append(heard.wait().parts[-1])
    leader.stop()
    print(json.dumps([{"tokens": answer.tokens, "log_probs": answer.log_probs} for answer in answers]))


if __name__ == "__main__":
    main(*sys.argv[1:])
