"""One rank of a world of several: loads its part of an engine and continues a prompt greedily.

Usage: ``python -m tests.reference.in_process.two_ranks ENGINE TOKENS…`` with RANK and its companions set.
Rank 0 prints the tokens and the logits of the first new one as JSON.
"""

from __future__ import annotations

import json
import os
import sys

from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo
from trtllm_hpc.reference.weights import load_model
from trtllm_hpc.reference.world import Channel, World

from ..oracle import generate


def main(folder: str, *prompt: str) -> None:
    import torch

    torch.set_num_threads(1)
    world = World.from_environment(os.environ)
    world.join(Channel(world))
    engine = EngineFolder(folder)
    model = load_model(engine, EngineInfo.read(engine), world)
    tokens = [int(token) for token in prompt]
    new = generate(model, tokens, 24)[0]
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, -1]
    if world.is_leader:
        print(json.dumps({"tokens": tokens + new, "logits": logits.tolist()}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    # Now and then a thread of gloo outlives its group, and the interpreter's end aborts (std::terminate).
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
