"""The local profile: submitit's local executor runs the same scripts with bash."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.node import remove_leftovers
from trtllm_hpc.runtime.process import all_processes, signal_group, start_ticks
from trtllm_hpc.runtime.records import add_event, read_events
from trtllm_hpc.runtime.stage import end
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission

_POLL_S = 0.2
_KILL_POLL_S = 0.1
_TERMINATE_GRACE_S = 20.0
"""Seconds between SIGTERM and SIGKILL to a process group."""


@dataclass(frozen=True)
class StageScript:
    """A stage's script: passed to ``sbatch``, or called by submitit's local executor, which runs bash."""

    run_folder: str
    stage: str
    after: tuple[tuple[str, str], ...]
    """(kind, stage) of each dependency, as in the plan."""
    environment: tuple[tuple[str, str], ...] = ()
    """Environment variables for the script."""
    options: tuple[str, ...] = ()
    """Options of sbatch, which override those in the script."""
    conditions: tuple[str, ...] = ()
    """Further dependencies for sbatch, on jobs of other runs: ``afterany:17``."""

    @property
    def path(self) -> Path:
        """Path of the script."""
        return RunPaths(self.run_folder).sbatch(self.stage)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the script with bash."""
        with RunPaths(self.run_folder).batch_log(self.stage).open("ab") as log:
            return subprocess.Popen(
                ["bash", str(self.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **dict(self.environment)},
                start_new_session=True,  # so that the whole stage can be signalled
            )

    def __call__(self) -> int:
        """Wait for the dependencies, then run the script with bash; return its exit code."""
        paths = RunPaths(self.run_folder)
        _on_termination(lambda: _cancel_stage(paths, self.stage))
        for kind, stage in self.after:
            if not _wait_for(paths, kind, stage):
                _cancel_stage(paths, self.stage)
        process = self.start()
        _on_termination(lambda: _end_group(process.pid))
        code = process.wait()
        _end_group(process.pid)  # a killed script leaves processes
        if not _has_ended(paths, self.stage):
            # The script was killed, or never began, and cannot record its end itself.
            end(paths, self.stage, code if code >= 0 else 128 - code)
        if code:
            raise RuntimeError(f"{self.path} ended with exit code {code}")
        return code


@contextmanager
def detached(paths: RunPaths) -> Iterator[None]:
    """Start child processes that are independent of this terminal.

    Otherwise Ctrl-C would end submitit's controllers, and ``submit | tail`` would wait for their end.
    """
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    saved = [os.dup(number) for number in (0, 1, 2)]
    log = os.open(paths.logs / "controllers.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        for number, replacement in enumerate((null, log, log)):
            os.dup2(replacement, number)
        yield
    finally:
        for number, original in enumerate(saved):
            os.dup2(original, number)
        for descriptor in (*saved, log, null):
            os.close(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def cancel_local(paths: RunPaths, record: SubmissionRecord) -> None:
    """End every stage that is running, with all its processes and shared memory."""
    # The companion first, because it would report the end of its server as a failure.
    for stage in reversed(list(record.stages)):
        job = record.stages[stage]
        events = [event for event in read_events(paths, stage) if event.name.startswith("stage_")]
        if events and events[-1].name == "stage_end":
            continue
        with suppress(OSError):  # the processes must end even on a full disk
            add_event(paths, stage, "stage_cancelled")
        begun = [event for event in events if event.name == "stage_begin"]
        if begun:
            group = int(begun[-1].data["group"])
            if is_same_process(group, begun[-1].data["group_started"]):
                _end_group(group)
            remove_leftovers(f"trt{begun[-1].data['job_id']}_")
        # Do not end the process of a sweep, which goes on with the next variant.
        if record.within is None and is_same_process(int(job.job_id), job.process_started):
            with suppress(ProcessLookupError):
                os.kill(int(job.job_id), signal.SIGTERM)


def is_same_process(pid: int, started: int | None) -> bool:
    """Return whether ``pid`` is still the process that started at ``started`` (ticks since boot)."""
    return started is not None and start_ticks(pid) == started


def _on_termination(action: Callable[[], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        # SIGINT stays ignored if `detached` has ignored it: Ctrl-C at submit's terminal must have no effect.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: action())


def _cancel_stage(paths: RunPaths, stage: str) -> NoReturn:
    """Record, for the stages that wait for it, that this stage never starts; then exit."""
    if paths.folder.is_dir() and not _has_ended(paths, stage):
        add_event(paths, stage, "stage_cancelled")
    raise SystemExit(1)


def _has_ended(paths: RunPaths, stage: str) -> bool:
    return any(event.name in ("stage_end", "stage_cancelled") for event in read_events(paths, stage))


def _wait_for(paths: RunPaths, kind: str, stage: str) -> bool:
    """Wait until a stage has started (``after``) or succeeded (``afterok``); return False if it never will.

    submitit's own time limit for this job limits the wait.
    """
    while True:
        for event in read_events(paths, stage):
            if kind == "after" and event.name == "stage_begin":
                return True
            if event.name == "stage_end":
                return bool(event.data.get("exit_code") == 0)
            if event.name in ("submission_interrupted", "stage_cancelled"):
                return False
        record = read_submission(paths)
        job = record.stages.get(stage) if record else None
        lives = job is None or is_same_process(int(job.job_id), job.process_started)
        # If the process is gone, read the events again: it may have written its last event just before.
        if not (paths.folder.is_dir() if lives else _has_ended(paths, stage)):
            return False
        time.sleep(_POLL_S)


def _end_group(group: int) -> None:
    """End a process group: SIGTERM, then SIGKILL after a grace period."""
    if not signal_group(group, signal.SIGTERM):
        return
    deadline = time.monotonic() + _TERMINATE_GRACE_S
    while time.monotonic() < deadline:
        processes = all_processes().values()
        if not any(int(own_group) == group and state != "Z" for state, _, own_group in processes):
            break
        time.sleep(_KILL_POLL_S)
    signal_group(group, signal.SIGKILL)
