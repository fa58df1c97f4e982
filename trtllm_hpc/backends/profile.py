"""Profiles of ranks: upstream's variables, and the command line of Nsight Systems.

As in TensorRT-LLM's ``docs/source/developer-guide/perf-analysis.md``: the engine starts and stops the
profiler at two of its steps (``TLLM_PROFILE_START_STOP``), and marks what it does with NVTX.
"""

from __future__ import annotations

from trtllm_hpc.config.job import Profile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.server_spec import RankProfile, literal

ENDINGS = {"nsys": "nsys-rep", "torch": "json"}
"""Of the files, by tool."""


def rank_profile(profile: Profile, paths: RunPaths) -> RankProfile:
    """Return how ranks are profiled; step and rank are placeholders in the files' names."""
    file = f"{literal(str(paths.profiles))}/{{step}}_{{rank}}"
    variables = {"TLLM_PROFILE_START_STOP": profile.iterations, "TLLM_LLMAPI_ENABLE_NVTX": "1"}
    if profile.tool == "torch":
        trace = {"TLLM_TORCH_PROFILE_TRACE": f"{file}.{ENDINGS['torch']}"}
        return {"ranks": profile.ranks, "words": [], "environment": variables | trace}
    words = [
        *("nsys", "profile", f"--output={file}", "--force-overwrite=true", "--trace=cuda,nvtx"),
        # The server goes on after the last step; by default it would be ended.
        *("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
        *("--cuda-graph-trace=node", "--trace-fork-before-exec=true"),
    ]
    return {"ranks": profile.ranks, "words": words, "environment": variables}
