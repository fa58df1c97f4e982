"""The model that the LLM API on PyTorch loads: the one that is named, or what a build stage makes of it."""

from __future__ import annotations

from pathlib import PurePosixPath

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_cache.recipe import Argument, BuildStep, Placeholder
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

_OPTIONS = {
    "kv_cache": "--kv-cache",
    "calibration_dataset": "--calibration-dataset",
    "calibration_size": "--calibration-size",
    "batch_size": "--batch-size",
}
KEYS = ("method", *_OPTIONS)
"""Keys of ``engine.quantization`` that the step knows."""
_WRITER = 1
"""To be counted up when ``runtime/quantize.py`` writes something else than before."""


def loaded_model(job: JobFile, paths: RunPaths) -> str | None:
    """Return the folder of the checkpoint; ``None`` if the job file names none.

    ``trtllm-serve`` calls the model by the last part of this name.
    """
    if job.model.path is None or job.engine.quantization.method is None:
        return job.model.path
    return f"{paths.engine}/{_name(job)}"


def quantize_step(facts: JobFacts, python: str) -> BuildStep:
    """Return the step that quantizes the model's checkpoint."""
    wanted, release = facts.job.engine.quantization, facts.release
    values = {option: getattr(wanted, key) for key, option in _OPTIONS.items()}
    command: tuple[Argument, ...] = (
        *(python, Placeholder("run", "/runtime.pyz"), "quantize"),
        *("--model", Placeholder("model"), "--output", Placeholder("output", f"/{_name(facts.job)}")),
        *("--method", str(wanted.method)),
        *(word for option, value in values.items() if value is not None for word in (option, str(value))),
    )
    dataset = wanted.calibration_dataset
    return BuildStep(
        "quantize",
        (command,),
        inputs=("model", *(() if dataset is None else (dataset,))),
        identity={"tensorrt_llm": None if release is None else release.version, "writer": _WRITER},
    )


def _name(job: JobFile) -> str:
    return f"{PurePosixPath(job.model.path or job.name).name}-{job.engine.quantization.method}"
