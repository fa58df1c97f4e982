"""The load generator: sends requests on time and keeps what comes back."""

from trtllm_hpc.bench.load.loops import LoadResult
from trtllm_hpc.bench.load.messages import (
    Chunk,
    CoreModel,
    ParsedReply,
    Reply,
    Target,
    encode_request,
    parse_reply,
)
from trtllm_hpc.bench.load.process import real_time_priority
from trtllm_hpc.bench.load.run import run_closed, run_open
from trtllm_hpc.bench.load.timing import Clock

__all__ = [
    "Chunk",
    "Clock",
    "CoreModel",
    "LoadResult",
    "ParsedReply",
    "Reply",
    "Target",
    "encode_request",
    "parse_reply",
    "real_time_priority",
    "run_closed",
    "run_open",
]
