"""``runtime engine``: every step that the cache does not have, built once."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_cache.cache import Cache, Entry
from trtllm_hpc.runtime.engine_cache.child import run_child
from trtllm_hpc.runtime.engine_cache.keys import StepKey, step_keys
from trtllm_hpc.runtime.engine_cache.lock import POLL_VARIABLE, Held, Lock, Owner, Watch, seconds, try_lock
from trtllm_hpc.runtime.engine_cache.machine import (
    WrongMachine,
    check_version,
    compute_capability,
    installed_versions,
)
from trtllm_hpc.runtime.engine_cache.model_files import NoModel
from trtllm_hpc.runtime.engine_cache.recipe import BadRecipe, BuildStep, Recipe
from trtllm_hpc.runtime.engine_cache.seal import Empty, seal
from trtllm_hpc.runtime.engine_cache.staging import Staging
from trtllm_hpc.runtime.engine_cache.uses import link, register
from trtllm_hpc.runtime.process import adopt_orphans, kill_descendants, on_signals
from trtllm_hpc.runtime.records import add_event

_TELL_S = 60.0
"""Pause between two lines about the same wait."""

_WRITTEN_S = 2.0
"""A lock has no owner for the moment between its making and its writing."""

_ATTEMPTS = 10
"""An output may be gone between the look and the use, or another build may take over; not for ever."""


class StepFailed(Exception):
    """A step did not come to its end; the sentence says why.

    Args:
        hint: the next thing to do.
    """

    def __init__(self, sentence: str, hint: str | None = None) -> None:
        super().__init__(sentence)
        self.hint = hint


class Interrupted(Exception):
    """A signal asked this process to end."""


def build_engine(paths: RunPaths) -> int:
    """Make sure that the run's engine is in the cache, and link it; returns the exit code."""
    asked: list[str] = []
    on_signals(asked.append)
    adopt_orphans()
    try:
        recipe = Recipe.read(paths.build_recipe)
        versions = installed_versions()
        check_version(recipe, versions)
        capability = compute_capability(recipe)
        keys = step_keys(recipe, compute_capability=capability, edited_script=_edited(paths, recipe))
        _Builder(paths, recipe, keys, versions, asked).run()
    except Interrupted:
        print(f"the build stops: got {asked[0]}", flush=True)
        return 128 + signal.Signals[asked[0]]
    except (BadRecipe, NoModel) as error:
        return _refuse(f"{error}", None)
    except (WrongMachine, StepFailed) as error:
        return _refuse(f"{error}", error.hint)
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return _refuse(f"the engine cache cannot be used: {where}{error.strerror or error}", None)
    finally:
        kill_descendants()
    return ExitCode.OK


def _refuse(sentence: str, hint: str | None) -> int:
    following = f"\n  next: {hint}" if hint else ""
    print(f"error: {sentence}.{following}", file=sys.stderr, flush=True)
    return ExitCode.BUILD


def _edited(paths: RunPaths, recipe: Recipe) -> str | None:
    """Hash of ``build.sh`` if a person has changed it: what it makes must not pass for what was planned."""
    digest = hashlib.sha256(paths.script("build").read_bytes()).hexdigest()
    return None if digest == recipe.script_sha256 else digest


@dataclass(frozen=True)
class _Job:
    """One step and where it stands in the build."""

    step: BuildStep
    key: StepKey
    entry: Entry
    number: int


class _Builder:
    """Takes the steps of one recipe in their order."""

    def __init__(
        self,
        paths: RunPaths,
        recipe: Recipe,
        keys: tuple[StepKey, ...],
        versions: Mapping[str, str],
        asked: list[str],
    ) -> None:
        self._paths, self._recipe, self._versions, self._asked = paths, recipe, versions, asked
        self._cache = Cache(Path(recipe.engines_folder))
        self._job_id = os.environ.get("TRTLLM_HPC_JOB_ID", "")
        self._jobs = [
            _Job(step, key, self._cache.entry(key), number)
            for number, (step, key) in enumerate(zip(recipe.steps, keys, strict=True), start=1)
        ]

    def run(self) -> None:
        """Build what is missing, and link the last step's output."""
        self._cache.folder.mkdir(parents=True, exist_ok=True)
        for job in self._wanted():
            if not any(self._provide(job) for _ in range(_ATTEMPTS)):
                raise StepFailed(
                    f"step {job.step.name} was built {_ATTEMPTS} times, and each time the cache in "
                    f"{self._cache.folder} lost it",
                    "trtllm-hpc engines verify",
                )
        for job in self._jobs:
            if job.step.name in self._recipe.ends:
                link(self._link(job), job.entry.output)
                print(f"{self._link(job).name}: {job.entry.output}", flush=True)

    def _link(self, job: _Job) -> Path:
        """Where the run folder shows a step's output."""
        return self._paths.engine if job is self._jobs[-1] else self._paths.side_output(job.step.name)

    def _wanted(self) -> list[_Job]:
        """The steps that are wanted for themselves, and those that a missing one reads."""
        wanted = set(self._recipe.ends)
        for job in reversed(self._jobs):
            if job.step.name in wanted and not job.entry.is_whole():
                wanted.update(job.step.reads)
        return [job for job in self._jobs if job.step.name in wanted]

    def _provide(self, job: _Job) -> bool:
        """See to it that a step's output is there; ``False`` if it must be tried again."""
        if job.entry.is_whole():
            self._tell(job, "found", f"found in the cache ({job.entry.name})")
            return register(job.entry, self._paths.folder)
        documents = {other.key.step: other.key.document for other in self._jobs[: job.number]}
        try:
            job.entry.make(job.key, self._recipe.about, documents)
            lock = self._lock(job)
        except FileNotFoundError:
            return False  # somebody has just removed the entry, or tidied it: once more
        if lock is None:
            return False
        try:
            if job.entry.is_whole():  # finished between the look and the lock
                return False
            return self._build(job, lock)
        finally:
            lock.release()

    # Waiting --------------------------------------------------------------------------

    def _lock(self, job: _Job) -> Lock | None:
        """Hold the entry; ``None`` if somebody else has finished it meanwhile."""
        owner = Owner.this_process(job.step.name, str(self._paths.folder), self._job_id)
        watch, begun, told = Watch(), time.monotonic(), float("-inf")
        while True:
            lock = try_lock(job.entry.folder, owner, watch)
            if isinstance(lock, Lock):
                return lock
            waited = time.monotonic() - begun
            being_written = lock.owner is None and waited < _WRITTEN_S
            if time.monotonic() - told >= _TELL_S and not being_written:
                told = time.monotonic()
                self._tell(job, "waiting", _waits(lock, job, waited))
            if waited > self._recipe.wait_seconds:
                raise StepFailed(
                    f"{_waits(lock, job, waited)}, which is as long as this job may wait",
                    "raise build.time_limit_minutes, or look at that job with squeue",
                )
            self._pause(seconds(POLL_VARIABLE))
            if job.entry.is_whole():
                return None

    def _pause(self, pause_s: float) -> None:
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            if self._asked:
                raise Interrupted
            time.sleep(min(0.1, pause_s))

    # Building -------------------------------------------------------------------------

    def _build(self, job: _Job, lock: Lock) -> bool:
        """Run the step's commands and publish what they made; ``False`` if it must be tried again."""
        staging = Staging(job.entry, lock.generation, lock.is_mine)
        took: float | None = None
        try:
            if staging.begin(self._cache, lambda complaint: self._tell_broken(job, complaint)):
                took = self._make(job, staging, lock)
        except (StepFailed, OSError):
            # Who takes over clears the staging folder away under the commands: their failure tells nothing,
            # and may come before this process has noticed.
            if lock.is_mine() and staging.is_ours():
                raise
        finally:
            staging.remove()
        if took is not None:
            self._tell(job, "built", f"built {job.entry.name} in {took:.0f} s")
            return register(job.entry, self._paths.folder)
        if lock.is_lost:
            print(
                f"step {job.step.name}: another build has taken over while this one stood still", flush=True
            )
        return False

    def _tell_broken(self, job: _Job, complaint: str) -> None:
        print(
            f"step {job.step.name}: the cached output is broken ({complaint}), it is built anew", flush=True
        )

    def _make(self, job: _Job, staging: Staging, lock: Lock) -> float | None:
        """Run, seal and publish; the commands' seconds, or ``None`` if this build counts no more."""
        self._tell(job, "building", f"builds {job.step.name}")
        started_at, started = time.time(), time.monotonic()
        self._run(job, staging, lock)
        took = time.monotonic() - started
        self._seal(job, staging, started_at, took)
        return took if staging.publish() else None

    def _run(self, job: _Job, staging: Staging, lock: Lock) -> None:
        code = run_child(
            ["bash", str(self._paths.script("build")), job.step.name],
            {**os.environ, **self._places(job, staging)},
            stop=lambda: bool(self._asked) or lock.is_lost,
        )
        if self._asked:
            raise Interrupted
        if code:
            raise StepFailed(
                f"step {job.step.name} of the build failed (exit code {code}); its own words are above",
                f"mend what they say, or try it by hand: {self._paths.script('build')}",
            )

    def _places(self, job: _Job, staging: Staging) -> dict[str, str]:
        """The variables that ``build.sh`` reads."""
        inputs = {other.step.name: str(other.entry.output) for other in self._jobs}
        read = {name: inputs[name] for name in job.step.reads if name in inputs}
        return {"output": str(staging.output), **read}

    def _seal(self, job: _Job, staging: Staging, started_at: float, took: float) -> None:
        try:
            seal(
                staging.output,
                started_at=started_at,
                seconds=took,
                host=socket.gethostname(),
                job_id=self._job_id,
                versions=self._versions,
            )
        except Empty:
            raise StepFailed(
                f"step {job.step.name} of the build ended well but left nothing in its output folder",
                f"look at its words above, and at {self._paths.script('build')}",
            ) from None

    def _tell(self, job: _Job, state: str, sentence: str) -> None:
        print(f"step {job.step.name}: {sentence}", flush=True)
        add_event(self._paths, "build", "engine_step", step=job.step.name, state=state, entry=job.entry.name)
        message = sentence if job.step.name in sentence else f"{job.step.name}: {sentence}"
        add_event(self._paths, "build", "progress", step=job.number, of=len(self._jobs), message=message)


def _waits(held: Held, job: _Job, waited_s: float) -> str:
    who = "somebody" if held.owner is None else str(held.owner)
    span = f"{waited_s:.0f} s" if waited_s < 60 else f"{waited_s / 60:.0f} min"
    return f"waits for the same output, being built by {who}, step {job.step.name}, for {span}"
