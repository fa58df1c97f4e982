"""The local profile: the same scripts through submitit's local executor."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.runtime.records import add_event, read_events
from trtllm_hpc.runtime.sweep import sweep
from trtllm_hpc.scheduler.journal import Journal
from trtllm_hpc.scheduler.processes import end_group, is_same_process

if TYPE_CHECKING:
    from submitit import LocalExecutor


def local_executor(plan: Plan, paths: RunPaths) -> LocalExecutor:
    """submitit's own executor; each stage gets a controller process that outlives this one."""
    from submitit import LocalExecutor

    executor = LocalExecutor(paths.submitit)
    job = plan.job
    executor.update_parameters(
        timeout_min=job.build.time_limit_minutes
        + job.serve.time_limit_minutes
        + job.companion.time_limit_minutes,
        gpus_per_node=plan.cluster.gpus_per_node,
        stderr_to_stdout=True,
    )
    return executor


@contextmanager
def detached(paths: RunPaths) -> Iterator[None]:
    """Start children that do not belong to this terminal.

    submitit starts its controllers as plain children. Ctrl-C, or closing the
    terminal, would end them; and holding its output, they would keep a
    ``submit | tail`` from ending.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    kept = [os.dup(number) for number in (0, 1, 2)]
    log = os.open(paths.logs / "controllers.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        for number, other in enumerate((nothing, log, log)):
            os.dup2(other, number)
        yield
    finally:
        for number, other in enumerate(kept):
            os.dup2(other, number)
        for other in (*kept, log, nothing):
            os.close(other)
        for number, handler in before.items():
            signal.signal(number, handler)


def cancel_local(paths: RunPaths, journal: Journal) -> None:
    """End every stage that runs, and leave nothing of it."""
    # Companion first: it must not take the server's end for a failure.
    for stage in reversed(list(journal.stages)):
        job = journal.stages[stage]
        marks = [event for event in read_events(paths, stage) if event.name.startswith("stage_")]
        if marks and marks[-1].name == "stage_end":
            continue
        with suppress(OSError):  # on a full disk the processes must end all the same
            add_event(paths, stage, "stage_cancelled")
        begun = [event for event in marks if event.name == "stage_begin"]
        if begun:
            group = int(begun[-1].data["group"])
            if is_same_process(group, begun[-1].data["group_started"]):
                end_group(group)
            sweep(f"trt{begun[-1].data['job_id']}_")
        if is_same_process(int(job.job_id), job.process_started):
            with suppress(ProcessLookupError):
                os.kill(int(job.job_id), signal.SIGTERM)
