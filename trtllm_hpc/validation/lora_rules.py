"""Rules of the LoRA adapters that the companion names."""

from __future__ import annotations

from pathlib import PurePosixPath

from trtllm_hpc.backends import backend_of
from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.config.job import JobFile


def adapters_fit(job: JobFile) -> Diagnostics:
    """The companion names LoRA adapters that there are, and only if the engine takes any."""
    for field, adapter in job.named_adapters:
        if (adapter.directory is None) == (adapter.adapter is None):
            message = "an adapter is a folder, or one that the build converts, and this is neither or both"
            yield in_job("conflict", field, message, "set either directory or adapter")
        what = backend_of(job).takes_no_adapters
        if what is not None:
            message = f"{what} takes no weights of LoRA adapters"
            yield in_job("conflict", field, message, "remove it, or take engine.backend: tensorrtllm")
        elif job.engine.directory is None and not job.engine.max_lora_rank:
            message = "an engine that is built with engine.max_lora_rank 0 takes no LoRA adapters"
            yield in_job("conflict", field, message, "set engine.max_lora_rank to the adapters' highest rank")
        elif adapter.adapter is not None:
            yield from _converted(job, field, adapter.adapter)


def adapters_keep_their_numbers(job: JobFile) -> Diagnostics:
    """The companion's request and benchmark give no two adapters the same number."""
    asked, benchmark = job.companion.request.lora, job.companion.benchmark
    if asked is None or benchmark is None or not job.companion.enabled:
        return
    task_id, workload = asked.number(1), benchmark.workload
    for number, other in zip(workload.lora_task_ids, workload.lora, strict=True):
        if number == task_id and (other.directory, other.adapter) != (asked.directory, asked.adapter):
            message = f"task id {number} is another adapter in companion.request.lora, which the server keeps"
            yield in_job("conflict", "companion.benchmark.workload.lora", message, "give one another task_id")


def _converted(job: JobFile, field: str, name: str) -> Diagnostics:
    """An adapter that is named is one that the build converts, for the inputs of the server."""
    engine = job.engine
    names = [PurePosixPath(folder).name for folder in engine.lora.adapters]
    if engine.directory is not None or name not in names:
        message = f"the build converts no adapter {name!r}: it converts {', '.join(names) or 'none'}"
        if engine.directory is not None:
            message = f"nothing converts the adapter {name!r}: with engine.directory there is no build"
        hint = "add its folder to engine.lora.adapters, or set directory to a converted one"
        yield in_job("missing", field, message, hint, name)
    elif engine.lora.storage_type != "float16":
        stored = engine.lora.storage_type
        message = f"the build stores it as {stored} (engine.lora.storage_type), and servers take float16 only"
        yield in_job("conflict", field, message, "set engine.lora.storage_type to float16", name)


RULES = (adapters_fit, adapters_keep_their_numbers)
