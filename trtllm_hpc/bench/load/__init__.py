"""Requests sent to a server on time, and what came back."""

from trtllm_hpc.bench.load.clock import Clock
from trtllm_hpc.bench.load.payloads import encode
from trtllm_hpc.bench.load.replies import Chunk, Load, Parsed, Reply, parse
from trtllm_hpc.bench.load.run import run_closed, run_open
from trtllm_hpc.bench.load.target import CoreModel, Target

__all__ = [
    "Chunk",
    "Clock",
    "CoreModel",
    "Load",
    "Parsed",
    "Reply",
    "Target",
    "encode",
    "parse",
    "run_closed",
    "run_open",
]
