"""One rank of an engine over several: rank 0 answers requests and prints the answers as JSON.

Usage: ``python -m tests.reference.in_process.two_engines ENGINE REQUESTS`` with RANK and its companions set.
REQUESTS is a pickled list of lists; each list is submitted when the one before is answered.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from pathlib import Path

from trtllm_hpc.reference import engine
from trtllm_hpc.reference.engine_config import EngineFolder, ServeSettings
from trtllm_hpc.reference.leader import Leader, follow
from trtllm_hpc.reference.world import World

from .leader import ask, die


def main(folder: str, requests: str) -> None:
    world = World.from_environment(os.environ)
    settings = ServeSettings()
    loaded = engine.load(EngineFolder(folder), settings, world)
    if not world.is_leader:
        follow(loaded, die, world.rank)
        return
    leader = Leader(loaded, settings, die)
    asking = threading.Thread(target=_ask, args=(leader, Path(requests)))
    asking.start()
    leader.run()
    asking.join()


def _ask(leader: Leader, requests: Path) -> None:
    answers = []
    for together in pickle.loads(requests.read_bytes()):
        for heard in ask(leader, *together):
            answers.append(heard.wait().parts[-1])
    leader.stop()
    print(json.dumps([{"tokens": answer.tokens, "log_probs": answer.log_probs} for answer in answers]))


if __name__ == "__main__":
    main(*sys.argv[1:])
