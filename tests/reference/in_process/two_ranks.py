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
from trtllm_hpc.reference.world import World


def main(folder: str, *prompt: str) -> None:
    import torch

    torch.set_num_threads(1)
    world = World.from_environment(os.environ)
    world.connect()
    engine = EngineFolder(folder)
    model = load_model(engine, EngineInfo.read(engine), world)
    tokens = torch.tensor([[int(token) for token in prompt]])
    output = model.generate(tokens, max_new_tokens=24, do_sample=False, pad_token_id=2)
    with torch.no_grad():
        logits = model(tokens).logits[0, -1]
    if world.is_leader:
        print(json.dumps({"tokens": output[0].tolist(), "logits": logits.tolist()}))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
