"""Whether a workload's file can be read, told before there is a server to ask."""

from __future__ import annotations

from pathlib import Path

from trtllm_hpc.bench.workload.dataset import read_questions
from trtllm_hpc.bench.workload.histogram import read_bins
from trtllm_hpc.bench.workload.trace import check_trace
from trtllm_hpc.config.benchmark import Workload


def check_file(workload: Workload) -> None:
    """Read the workload's file, if it has one, without tokenizer and engine.

    Raises:
        ConfigError: no requests can be made of it; with file and line.
    """
    if workload.path is None:
        return
    path = Path(workload.path)
    if workload.kind == "dataset":
        read_questions(path, workload.tokens_per_word)
    elif workload.kind == "trace":
        check_trace(path, workload.tokens_per_word)
    elif workload.kind == "histogram":
        read_bins(path)
