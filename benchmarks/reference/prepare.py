"""Make the model and the engines, and find the bound set by memory bandwidth."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.reference.workload import BenchmarkFailed, Setup

_COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 32}
_COPIES = 10


@dataclass(frozen=True)
class Facts:
    """What was measured, and on what."""

    device: str
    """``cpu`` or ``cuda``."""
    hardware: str
    torch: str
    transformers: str
    parameters: int
    """Of one rank."""
    weight_bytes: int
    """What one rank reads of its weights for one token."""
    bandwidth: float
    """Bytes a second of a large copy on the device, read and written bytes together."""

    @property
    def bound(self) -> float:
        """Tokens per second at concurrency 1 if only reading the weights took time."""
        return self.bandwidth / self.weight_bytes


def prepare(setup: Setup) -> tuple[Setup, Facts]:
    """Write the model and build the engines from it; returns ``setup`` with its vocabulary."""
    import torch
    import transformers

    from trtllm_hpc.reference.engine_config import EngineFolder, EngineInfo

    device = "cuda" if torch.cuda.is_available() else "cpu"
    bandwidth = _bandwidth(device)
    if not setup.source.is_dir():
        _write_synthetic(setup)
    for ranks in sorted({1, setup.tensor_parallel}):
        _build(setup, ranks)
    engine = EngineFolder(setup.engine(setup.tensor_parallel))
    parameters, weight_bytes = _weights(engine.weights(0))
    facts = Facts(
        device=device,
        hardware=torch.cuda.get_device_name() if device == "cuda" else _processor(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        parameters=parameters,
        weight_bytes=weight_bytes,
        bandwidth=bandwidth,
    )
    return replace(setup, vocab_size=EngineInfo.read(engine).vocab_size), facts


def _write_synthetic(setup: Setup) -> None:
    from trtllm_hpc.reference import synthetic

    longest = setup.prompt_tokens + setup.new_tokens
    model = synthetic.make_model(setup.model, seed=0, dtype=setup.dtype, max_seq_len=longest)
    synthetic.make_tokenizer(setup.source, model.config.vocab_size)
    model.save_pretrained(setup.source)


def _build(setup: Setup, ranks: int) -> None:
    from trtllm_hpc.reference import build

    arguments = {
        "--output": setup.engine(ranks),
        "--model": setup.source,
        "--dtype": setup.dtype,
        "--tensor-parallel": ranks,
        "--max-batch-size": setup.most,
        "--max-input-len": setup.prompt_tokens,
        "--max-seq-len": setup.prompt_tokens + setup.new_tokens,
    }
    code = build.main([str(word) for pair in arguments.items() for word in pair])
    if code:
        raise BenchmarkFailed("the engine could not be built")


def _weights(file: Path) -> tuple[int, int]:
    """The number of parameters in a weight file, and the bytes read for one token.

    Of input embeddings a token needs one row, unless the output layer shares them.
    The header's layout: https://huggingface.co/docs/safetensors, section Format.
    """
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        tensors: dict[str, Any] = json.loads(opened.read(length))
    tensors.pop("__metadata__", None)
    has_own_output = "lm_head.weight" in tensors
    parameters = weight_bytes = 0
    for name, tensor in tensors.items():
        begin, end = tensor["data_offsets"]
        count = 1
        for size in tensor["shape"]:
            count *= size
        parameters += count
        if not (has_own_output and name.endswith("embed_tokens.weight")):
            weight_bytes += end - begin
    return parameters, weight_bytes


def _bandwidth(device: str) -> float:
    """Memory bandwidth: the fastest of several copies, each larger than any cache."""
    import torch

    source = torch.ones(_COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    fastest = float("inf")
    for _ in range(_COPIES):
        started = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - started)
    return 2 * source.numel() / fastest


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else "unknown"
