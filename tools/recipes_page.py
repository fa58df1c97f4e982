"""Write ``docs/reference/recipes.md``: each job file for the PyTorch backend with its source."""

from __future__ import annotations

import re
from pathlib import Path

from trtllm_hpc.runs.job_files import ShippedJob, shipped_jobs

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "recipes.md"
UPSTREAM = "https://github.com/NVIDIA/TensorRT-LLM/blob"
_PRECISION = re.compile(r"\b(BF16|FP8|NVFP4|MXFP4)\b")
_GOAL = re.compile(r"\b(latency|throughput)\b")
_SOURCE = re.compile(
    r"NVIDIA/TensorRT-LLM@(?P<commit>[\w.]+), (?P<file>\S+\.(?:yaml|md|rst))"
    r"|Settings: (?P<own>\S+\.yaml) \(commit (?P<at>\w+)"
)
_HEAD = """\
# Recipes

The shipped job files for TensorRT-LLM's PyTorch backend, and NVIDIA's file from which each takes its
settings. `trtllm-hpc jobs show NAME` prints a job file; its first lines list the changes. This project has
not run these job files on a GPU. A dash means that the job file does not state the value.

| job file | model | GPUs | precision | goal | NVIDIA's file |
|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the page as Markdown."""
    return _HEAD + "".join(_row(job) for job in shipped_jobs() if job.backend == "pytorch")


def _row(job: ShippedJob) -> str:
    text = Path(job.file).read_text(encoding="utf-8")
    top = " ".join(line.lstrip("# ") for line in text.partition("\nname:")[0].splitlines())
    model = re.search(r"huggingface\.co/([\w./-]+\w)", top)
    source, precision = _SOURCE.search(top), _PRECISION.search(top)
    stated = re.search(r"(?m)^# Goal: (.+)$", text)
    goal = _GOAL.search(stated[1] if stated else f"{job.name} {top.partition('The checkpoint')[0]}")
    link = "-"
    if source:
        file, commit = source["file"] or source["own"], source["commit"] or source["at"]
        at = f"v{commit}" if "." in commit else commit  # a tag
        link = f"[{Path(file).name}]({UPSTREAM}/{at}/{file})"
    cells = (
        f"`{job.name}`",
        model[1] if model else job.model,
        f"{job.gpus} x {job.gpu_types or 'any'}",
        precision[1] if precision else "-",
        goal[1] if goal else "-",
        link,
    )
    return f"| {' | '.join(map(str, cells))} |\n"
