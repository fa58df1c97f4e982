"""A real server with OpenAI's protocol on a real, small model: ``transformers serve``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtllm_hpc.reference import synthetic
from trtllm_hpc.runtime.node import free_ports


def make_model(folder: Path) -> None:
    """Make a model as published ones are: configuration, weights, tokenizer. The folder must be new."""
    synthetic.make_tokenizer(folder)
    synthetic.make_model(seed=0, dtype="float32", max_seq_len=512).save_pretrained(folder)


@contextmanager
def transformers_serve(model: Path, address: str, log: Path) -> Iterator[str]:
    """Serve a model at an address of this machine; yields the URL at once, some seconds before it answers."""
    [port] = free_ports(1)
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(model)]
    options = [f"--host={address}", f"--port={port}", "--device=cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as said:
        server = subprocess.Popen([*command, *options], env=environment, stdout=said, stderr=said)
        try:
            yield f"http://{address}:{port}"
        finally:
            server.kill()
            server.wait()
