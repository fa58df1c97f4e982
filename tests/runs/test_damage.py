"""A run of which any single file or folder cannot be read is still shown, with all the rest."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.logs.runs import add_rank
from tests.runs.made import written
from trtllm_hpc.api.run import Run
from trtllm_hpc.bench.progress import Snapshot, Step, write_progress
from trtllm_hpc.cli import command
from trtllm_hpc.evaluation.scores import EvaluationSummary
from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runs.status import RunState
from trtllm_hpc.runs.watch import follow
from trtllm_hpc.runtime.bad_nodes import BadNode
from trtllm_hpc.runtime.process import start_ticks
from trtllm_hpc.runtime.records import Endpoint, Guest, Visits, add_event
from trtllm_hpc.runtime.stop import request_stop
from trtllm_hpc.scheduler.submission_record import SubmissionRecord

DECIDES = ("plan.json", "jobs.json", "events", "endpoint.json")
"""Without these, or what is in them, the state may be another one."""


def make(folder: Path, process: int | None) -> RunPaths:
    """A run of the local profile with every file there is; it has ended, or this process serves it."""
    _, paths = written(folder / "run", scheduler="local", partition=None)
    record = SubmissionRecord("local", complete=True)
    pid, begun = (999_999, 1) if process is None else (process, start_ticks(process))
    for stage in ("build", "serve", "companion"):
        record.add(paths, stage, str(pid), begun)
        add_event(paths, stage, "stage_begin", job_id="local7", group=pid, group_started=begun)
        if process is None or stage == "build":
            add_event(paths, stage, "stage_end", job_id="local7", exit_code=0)
    paths.batch_log("serve").write_text("a line\n")
    gpu = {"uuid": "a", "total_s": 1.0, "total_j": 2.0, "total_peak_w": 3.0}
    ended: dict[str, Any] = {"ended_at": 9.0, "exit_code": 0} if process is None else {}
    for rank in range(2):
        add_rank(paths, rank, log="a line\n", gpus=[gpu], **ended)
        paths.rank_heartbeat("serve", rank).touch()
    Endpoint("local7", "n1", "127.0.0.1", 8, 9, 10, ["m"], 5.0, key_file=str(paths.key)).write(paths.endpoint)
    if process is None:
        request_stop(paths, by="companion", reason="it is done")
    write_json(paths.instances, [{"instance": 0, "state": "ready", "restarts": 0, "reason": None}])
    write_json(paths.bad_nodes, [asdict(BadNode("n9", "it was lost", "7"))])
    Visits(["ada"], {"ada": [3, 5.0]}).write(paths.visits)
    write_json(paths.guests, [asdict(Guest("ada", 1.0, None))])
    paths.guest_key("ada").parent.mkdir()
    for key in (paths.key, paths.servers_key, paths.guest_key("ada")):
        key.write_text("a-secret-key\n")
    write_progress(paths.benchmark_progress, Snapshot(Step(requests=8), 2, 0, 1.0))
    paths.evaluation().parent.mkdir()
    EvaluationSummary("m", [], 1, 0, "0.4").write(paths.evaluation())
    (paths.attempts / "1" / "events").mkdir(parents=True)
    (paths.attempts / "1" / "events" / "serve.jsonl").touch()
    return paths


@contextmanager
def broken(path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file or folder that is not what it was, until the end."""
    aside = path.parent.parent / "aside"
    if how in ("stale", "unreadable"):
        with monkeypatch.context() as patch:
            for module, name in ((io, "open"), (os, "open"), (os, "listdir"), (os, "scandir"), (os, "stat")):
                if name != "stat" or how == "stale":
                    patch.setattr(module, name, refusing(getattr(module, name), path))
            yield
        return
    path.rename(aside)
    try:
        if how == "another kind":
            path.mkdir() if aside.is_file() else path.touch()
        elif how == "a loop":
            path.symlink_to(path)
        elif how != "gone":
            path.write_text(how)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)


def refusing(real: Callable[..., Any], broken: Path) -> Callable[..., Any]:
    """A call of the system that answers for this path, and what is below it, as a shared file system may."""

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        asked = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if asked == str(broken) or asked.startswith(f"{broken}/"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), asked)
        return real(path, *arguments, **options)

    return call


@pytest.fixture(params=["ended", "living"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunPaths]:
    if request.param == "ended":
        yield make(tmp_path, None)
        return
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield make(tmp_path, process.pid)
        finally:
            process.kill()


def shown(paths: RunPaths, *others: str) -> tuple[RunState, str]:
    """State and sentence of the run; ``status``, ``watch`` and the other commands must not fail."""
    folder = str(paths.folder)
    options = {"runs": ["--runs", str(paths.folder.parent)]}
    for name in ("status", *others):
        answer = CliRunner().invoke(command, [name, *options.get(name, [folder])], standalone_mode=False)
        assert answer.exception is None and answer.output, answer
    assert isinstance(Run(paths).jobs, dict), "what `resume` asks for first"
    status = next(follow(paths)).status
    return status.state, status.sentence


@pytest.mark.parametrize("how", ["another kind", "a loop", "gone", "stale", "unreadable", "", "null", "[{}]"])
def test_no_single_file_keeps_status_from_saying_the_rest(
    run: RunPaths, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ("runs", "explain") if how in ("another kind", "stale") else ()
    whole, faults = shown(run, *others), []
    for path in sorted(run.folder.rglob("*")):
        name = str(path.relative_to(run.folder))
        if path.is_dir() and how in ("", "null", "[{}]"):
            continue
        try:
            with broken(path, how, monkeypatch):
                state, sentence = shown(run, *others)
            assert state == whole[0] or name.startswith(DECIDES), state
            if name.startswith("events") and how in ("another kind", "stale"):
                assert f"; {name} cannot be read: " in sentence
        except Exception as fault:  # noqa: BLE001 - every fault is shown
            faults.append(f"{name}: {type(fault).__name__}: {fault}"[:400])
    assert faults == [], "\n".join(faults)
