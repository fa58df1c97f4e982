"""Weights on a node's own disk (``model.stage: node``): each node copies a model once for all runs.

<folder>/.trtllm-hpc-UID/lock           locked by the process on this node that copies models or removes
copies
                         COPY/NAME/     a copy of a model's folder, with only complete files
                              partial/  incomplete files
                              used      touched at each use
         trtllm-hpc-RUN/NAME            link to the complete copy, which the servers of a run load
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.engine_cache.cache import link as make_link
from trtllm_hpc.runtime.engine_cache.cache import size_fault
from trtllm_hpc.runtime.engine_cache.keys import HUB_RECORD, files_of, needed_files
from trtllm_hpc.runtime.engine_cache.shared_files import remove, sync_folder
from trtllm_hpc.runtime.node import step_tasks, task_number
from trtllm_hpc.runtime.records import RankRecord, try_event

_FILES_AT_ONCE, _BLOCK_BYTES, _NEWS_S = 8, 2**23, 5.0


def stage_model(paths: RunPaths, source: Path, link: Path, days: float, first: int) -> None:
    """Copy a model to this node unless it has a copy, and make the run's ``link``; raise StartFailed.

    Copies unused for ``days`` are removed. ``first`` is the number of the step's first node in the job.
    """
    progress = _Progress(paths, first)
    try:
        _stage(source, link, days, progress)
    except (StartFailed, OSError) as error:
        if isinstance(error, StartFailed):
            failed = error
        else:
            why = f"{error.strerror} ({error.filename or link.parents[1]})"
            hint = "look at that folder on the node; node_models_folder in the profile names another"
            message = f"node {progress.host} cannot copy {source} to its own disk: {why}"
            failed = StartFailed(message, hint=hint)
        try_event(paths, "serve", "staging_failed", reason=failed.message, next=failed.hint)
        progress.note(failed.exit_code)
        raise failed from None
    progress.note(0)
    if progress.number == 0:
        try_event(paths, "serve", "staged")


def _stage(source: Path, name: Path, days: float, progress: _Progress) -> None:
    folder, stats = name.parents[1], {file: path.stat() for file, path in files_of(source)}
    files = [(file, stats[file].st_size, stats[file].st_mtime_ns) for file in needed_files(stats)]
    digest = hashlib.sha256(json.dumps([os.path.realpath(source), files]).encode()).hexdigest()
    copy = folder / f".trtllm-hpc-{os.geteuid()}" / digest[:16]
    if not folder.is_dir():
        with suppress(FileExistsError):  # another job has just made the folder
            folder.mkdir(parents=True)
            folder.chmod(0o1777)  # every user may make copies here, as in /tmp
    _own(copy.parent, progress.host)
    print(f"{progress.host}: copies the files of {source} that are not yet in {copy}", flush=True)
    with (copy.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_unused(copy, days, progress.host)
        for own in (name.parent, copy, copy / name.name):
            _own(own, progress.host)
        (copy / "used").touch()
        missing = {file: size for file, size, _ in files if size_fault(copy / name.name / file, file, size)}
        remove(copy / "partial")
        needed, free = sum(missing.values()), shutil.disk_usage(folder).free
        if needed > free:
            message = (
                f"node {progress.host} has {_gib(free)} free in {folder}, and the model needs {_gib(needed)}"
            )
            hint = "--set model.stage=null, or cluster.node_models_folder=FOLDER"
            raise StartFailed(message, hint=hint)
        if missing:
            _copy(source, copy, name.name, missing, progress)
        make_link(name, Path("..", *copy.parts[-2:], name.name))
    print(f"{progress.host}: {len(missing)} of {len(files)} files were copied", flush=True)


def _own(folder: Path, host: str) -> None:
    """Make a folder that no other user can enter; raise StartFailed if another user has made it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)  # the licence of a gated model may cover this user only
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        message = f"{folder} on {host} belongs to another user"
        raise StartFailed(message, hint="name another node_models_folder in the profile")


def _remove_unused(copy: Path, days: float, host: str) -> None:
    """Remove other copies unused for ``days``, and links of runs that are as old or point to nothing."""
    oldest = time.time() - days * 86_400
    for used in copy.parent.glob("*/used"):
        if used.stat().st_mtime < oldest and used.parent != copy:
            print(f"{host}: {used.parent} is removed: no run has used it for {days} days", flush=True)
            remove(used.parent)
    for run in copy.parents[1].glob("trtllm-hpc-*"):
        with suppress(OSError):  # the folder belongs to another user
            is_broken = any(link.is_symlink() and not link.exists() for link in run.iterdir())
            if run.stat().st_uid == os.geteuid() and (is_broken or run.stat().st_mtime < oldest):
                remove(run)


def _copy(source: Path, copy: Path, name: str, missing: Mapping[str, int], progress: _Progress) -> None:
    """Copy files, several at once, the largest first; move each to its place once it is complete."""
    hashes = dict[str, str]()
    with suppress(OSError, ValueError, TypeError):  # the model does not come from a hub
        record = read_json(source.parent / HUB_RECORD) or {"files": {}}
        hashes = {file: digest for file, (_, digest) in record["files"].items() if len(digest) == 64}
    (copy / "partial").mkdir(mode=0o700)
    progress.total, progress.begun = sum(missing.values()), time.monotonic()
    progress.note()
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        jobs = [
            pool.submit(_copy_file, source / file, copy / name / file, part, hashes.get(file), progress)
            for number, file in enumerate(sorted(missing, key=lambda file: -missing[file]))
            for part in [copy / "partial" / str(number)]
        ]
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException:  # the other copies stop after their current block
            progress.is_stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    sync_folder(copy / name)
    remove(copy / "partial")


def _copy_file(source: Path, target: Path, part: Path, digest: str | None, progress: _Progress) -> None:
    actual, size = hashlib.sha256(), source.stat().st_size
    with source.open("rb", buffering=0) as reading, part.open("wb") as writing:
        while (block := reading.read(_BLOCK_BYTES)) and not progress.is_stopped:
            writing.write(block)
            if digest is not None:
                actual.update(block)
            progress.add(len(block))
        writing.flush()
        os.fsync(writing.fileno())
    fault = size_fault(part, source.name, size)
    if fault is None and digest is not None and actual.hexdigest() != digest:
        fault = "its hash differs from the hub's"
    if fault is not None:
        hint = f"rm '{source}' if it is a hub's, then trtllm-hpc submit the job file again"
        raise StartFailed(f"{source} is damaged, or has changed: {fault}", hint=hint)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part.replace(target)


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


class _Progress:
    """This node's progress, for the log and for ``status``."""

    def __init__(self, paths: RunPaths, first: int) -> None:
        self.number, self.host = first + task_number(), socket.gethostname()
        self.total = self._copied = 0
        self.begun = self._said = time.monotonic()
        self.is_stopped = False
        self._file, self._lock = paths.rank_record("staging", self.number), Lock()
        self._record = RankRecord.begun("staging", self.number, step_tasks() or 1)
        self.note()

    def add(self, count: int) -> None:
        with self._lock:
            self._copied += count
            now = time.monotonic()
            if now - self._said > _NEWS_S or self._copied == self.total:
                self._said, rate = now, self._copied / max(now - self.begun, 1e-3)
                print(f"{self.host}: {_gib(self._copied)} of {_gib(self.total)}, {_gib(rate)}/s", flush=True)
                self.note()

    def note(self, exit_code: int | None = None) -> None:
        details = {"copied": self._copied, "bytes": self.total, "seconds": time.monotonic() - self.begun}
        ended_at = None if exit_code is None else time.time()
        record = replace(self._record, ended_at=ended_at, exit_code=exit_code, details=details)
        with suppress(OSError):
            record.write(self._file)
