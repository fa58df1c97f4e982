"""``docs/reference/recipes.md``: each job file for the PyTorch backend, its source, and who ran it."""

from __future__ import annotations

import re
from pathlib import Path

from trtllm_hpc.runs.shipped_jobs import ShippedJob, shipped_jobs

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

The shipped job files of models for TensorRT-LLM's PyTorch backend, each with the file of NVIDIA's that its
settings are from; `trtllm-hpc jobs show NAME` prints it, and its top says what is ours. `make golden` writes
this page.

"Run" in the last column means that somebody ran the job and added it here. Until then, "parsed" means that
TensorRT-LLM's own parsers accepted the command lines and YAML files rendered for it, and "not parsed" that it
needs a later release than theirs. Neither says that it is fast, fits into memory, or starts. A dash: the file
names none.

## Add a run

After a run of one of these jobs has served:

```console
$ trtllm-hpc jobs ran RUN --by "Ana, Example University" >> jobs/runs.toml
$ make golden
```

`jobs ran` reads the GPUs, the image and the hash of its header, the release, and the keys of `engine` that
you changed in the run's `lock.json`. The tokens/s are those of the companion's measurement; 0 means that
there is none. Read the entry before you send it: it has the name that you typed and the image's path.

## Job files

| job file | model | GPUs | precision | goal | NVIDIA's file | status |
|---|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the whole document."""
    return _HEAD + "".join(_row(job) for job in shipped_jobs() if job.status is not None)


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
        job.status,
    )
    return f"| {' | '.join(map(str, cells))} |\n"
