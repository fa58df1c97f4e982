"""A rendered script as something that submitit can submit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import add_event, read_events
from trtllm_hpc.scheduler.journal import read_journal
from trtllm_hpc.scheduler.processes import end_group, is_same_process

_POLL_S = 0.2


@dataclass(frozen=True)
class StageScript:
    """One stage's script.

    Our own executor hands the file to ``sbatch`` and never calls this object;
    submitit's local executor calls it in a process of its own, and the very
    same file is run by bash.
    """

    run_folder: str
    stage: str
    after: tuple[tuple[str, str], ...]
    """(kind, stage) of each dependency, as in the plan."""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> Path:
        """The script."""
        return RunPaths(self.run_folder).sbatch(self.stage)

    def __call__(self) -> int:
        """Wait for the dependencies, then run the script with bash; returns its exit code."""
        paths = RunPaths(self.run_folder)
        _on_end(lambda: _give_up(paths, self.stage))
        for kind, stage in self.after:
            if not _wait_for(paths, kind, stage):
                _give_up(paths, self.stage)
        return self._run(paths)

    def _run(self, paths: RunPaths) -> int:
        with paths.batch_log(self.stage).open("ab") as log:
            process = subprocess.Popen(
                ["bash", str(self.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **dict(self.environment)},
                start_new_session=True,  # so that the whole stage can be signalled
            )
        _on_end(lambda: end_group(process.pid))
        code = process.wait()
        end_group(process.pid)  # a script that was killed outright leaves what it had started
        if not _has_ended(paths, self.stage):
            # Killed outright, or never begun: nobody else is left to say so.
            add_event(paths, self.stage, "stage_end", exit_code=code if code >= 0 else 128 - code)
        if code:
            raise RuntimeError(f"{self.path} ended with exit code {code}")
        return code


def _on_end(action: Callable[[], None]) -> None:
    """Do this when the controller, or a person, ends this process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Ctrl-C at the terminal that submitted is ignored from the start (lifecycle.local).
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: action())


def _give_up(paths: RunPaths, stage: str) -> NoReturn:
    """Say that this stage never starts, for those that wait for it, and end."""
    if paths.folder.is_dir() and not _has_ended(paths, stage):
        add_event(paths, stage, "stage_cancelled")
    raise SystemExit(1)


def _has_ended(paths: RunPaths, stage: str) -> bool:
    return any(event.name in ("stage_end", "stage_cancelled") for event in read_events(paths, stage))


def _wait_for(paths: RunPaths, kind: str, stage: str) -> bool:
    """Wait until a stage has started (``after``) or ended well (``afterok``); False if it cannot.

    The wait is bounded by submitit's own time limit for this job.
    """
    while True:
        for event in read_events(paths, stage):
            if kind == "after" and event.name == "stage_begin":
                return True
            if event.name == "stage_end":
                return bool(event.data.get("exit_code") == 0)
            if event.name in ("submission_interrupted", "stage_cancelled"):
                return False
        if not _can_still_happen(paths, stage):
            return False
        time.sleep(_POLL_S)


def _can_still_happen(paths: RunPaths, stage: str) -> bool:
    """Whether the process of an earlier stage lives, or has just written its last event."""
    journal = read_journal(paths)
    job = journal.stages.get(stage) if journal else None
    if job is None or is_same_process(int(job.job_id), job.process_started):
        return paths.folder.is_dir()
    return _has_ended(paths, stage)
