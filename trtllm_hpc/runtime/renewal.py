"""A server that outlives the time limit of its job: while one job serves, the next one waits in the queue.

The batch script submits itself again as soon as it begins (``--dependency=afterany``), so the next job starts
after any end of this one. Near its time limit a job lets the open requests end and stops. A next job that
must not serve is cancelled at this one's end, or ends by itself at its own begin.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from subprocess import CompletedProcess
from typing import Any

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.bad_nodes import EVENT, Pool, bad_hosts, exclude, exclude_option
from trtllm_hpc.runtime.process import captured
from trtllm_hpc.runtime.records import Event, JsonRecord, StopRequest, add_event, of_last_job, read_events
from trtllm_hpc.runtime.stop import SUPERVISOR
from trtllm_hpc.runtime.submission import submit_script

RENEWAL = "renewal"
"""Who requests the stop of a server whose time limit is near."""

_MOST_FAILURES = 3
"""Jobs in a row that fail soon; then the run ends."""
_SOON_S = 600.0
_FIRST_PAUSE_S = 10.0
_OF_RANK = re.compile(r"(?:serve(?:\.\d+)?|preflight|repository)_\d+\.")
_JOB_ENDED = (130, 143)
"""Exit codes of a script that Slurm has ended, for any of its reasons."""


@dataclass(frozen=True)
class Renewal(JsonRecord):
    """The job that serves, and the one that waits for its end."""

    job_id: str
    next_job_id: str | None = None
    """``None``: none waits."""
    number: int = 0
    """How many jobs of the run have served before."""
    failures: int = 0
    """How many of the last ones, one after the other, never were ready or failed soon."""
    failed: list[dict[str, Any]] = field(default_factory=list)
    """All that have failed, each a :class:`FailedJob`."""


@dataclass(frozen=True)
class FailedJob:
    """A job of a renewed server that failed; the next one served in its place."""

    job_id: str
    """Slurm's."""
    why: str
    """How it ended, and the cause, if its logs show one."""
    attempt: int
    """Its logs and records are in ``attempts/N`` with this number."""


def queue_next(paths: RunPaths) -> bool:
    """Submit the next server, which waits until this job has ended; record it, and return whether it waits.

    It follows the server of this job, or of the one that this job was to follow and may not, because of a
    node. Then the next job must not get that node either.
    """
    this, follows = os.environ["SLURM_JOB_ID"], os.environ["TRTLLM_HPC_FOLLOWS"]
    name = os.environ["SLURM_JOB_NAME"]
    options = [f"--job-name={name}", f"--dependency=afterany:{this}", *filter(None, [exclude_option(paths)])]
    token = name.partition(":")[2] or os.urandom(8).hex()  # in the name, if the profile sets a comment
    next_job_id, why, script = None, "", paths.sbatch("serve")
    try:
        next_job_id = submit_script(captured, options, script, token, _refusal)
    except (SubmissionError, OSError) as error:
        why = getattr(error, "message", str(error))
    if next_job_id is not None or follows == this:
        last = Renewal.read(paths.renewal)
        last = last if last is not None and last.job_id == follows else Renewal(follows)
        replace(last, next_job_id=next_job_id).write(paths.renewal)
    if next_job_id is None and follows == this:
        add_event(paths, "serve", "not_renewed", why=why)
        print(f"The next server could not be queued: this one ends with its time limit. {why}", flush=True)
    return next_job_id is not None


def _refusal(answer: CompletedProcess[str], what: str) -> SubmissionError:
    return SubmissionError(f"{what}: {answer.stderr.strip()}")


def may_follow(paths: RunPaths, job_id: str, state: str) -> bool:
    """Return whether this job is to serve after another one in that state, and prepare it."""
    request = StopRequest.read(paths.stop_request)
    if request is not None and request.by not in (RENEWAL, SUPERVISOR):
        return _refused(f"the run was stopped by {request.by}: {request.reason}")
    if state.startswith("CANCELLED"):
        return _refused(f"job {job_id} before it was cancelled")
    last = Renewal.read(paths.renewal) or Renewal(job_id)
    why = _why_failed(paths, request, state)
    failures = last.failures + 1 if why is not None and _ended_soon(paths) else 0
    if failures > _MOST_FAILURES:
        return _refused(f"{failures} jobs in a row failed soon after their begin")
    paths.stop_request.unlink(missing_ok=True)
    paths.endpoint.unlink(missing_ok=True)  # of a job that was killed
    attempt = _set_aside(paths)
    failed = last.failed + ([] if why is None else [asdict(FailedJob(job_id, why, attempt))])
    Renewal(os.environ["TRTLLM_HPC_JOB_ID"], None, last.number + 1, failures, failed).write(paths.renewal)
    if failures:
        time.sleep(_FIRST_PAUSE_S * 2 ** (failures - 1))
    return True


def unwanted_next(paths: RunPaths, exit_code: int) -> str | None:
    """Return the job that waits for the end of this one, if it is not to serve; it is forgotten then."""
    renewal = Renewal.read(paths.renewal)
    if renewal is None or renewal.next_job_id is None or renewal.job_id != os.environ["TRTLLM_HPC_JOB_ID"]:
        return None
    if _is_wanted(paths, renewal, exit_code):
        return None
    replace(renewal, next_job_id=None).write(paths.renewal)
    return renewal.next_job_id


def change_of_next(paths: RunPaths, job_id: str, sinfo: Iterable[str]) -> str | None:
    """Keep the next job from nodes because of which a server has ended; returns how Slurm is to change it.

    ``job_id`` is that server's job; ``sinfo`` as for ``Pool.of``.
    """
    pool = Pool.of(sinfo, wanted=int(os.environ.get("SLURM_JOB_NUM_NODES", "1")))
    hosts = bad_hosts(paths)
    news = bool(hosts) and exclude(paths, hosts, job_id=job_id, pools=[pool])
    renewal = Renewal.read(paths.renewal)
    is_own = renewal is not None and renewal.job_id == os.environ["TRTLLM_HPC_JOB_ID"]
    if not news or renewal is None or not is_own or renewal.next_job_id is None:
        return None
    return f"JobId={renewal.next_job_id} ExcNodeList={exclude_option(paths).removeprefix('--exclude=')}"


def note_renewed(paths: RunPaths, ready_at: float) -> None:
    """Record that this job serves in the place of another, and for how long nobody served."""
    renewal = Renewal.read(paths.renewal)
    if renewal is None or renewal.number == 0:
        return
    stops = [event.time for event in read_events(paths, "serve") if event.name == "server_stop"]
    downtime_s = round(ready_at - stops[-1], 1) if stops else None  # a killed one recorded no stop
    add_event(paths, "serve", "renewed", number=renewal.number, downtime_s=downtime_s)


def _is_wanted(paths: RunPaths, renewal: Renewal, exit_code: int) -> bool:
    request = StopRequest.read(paths.stop_request)
    has_failed = _why_failed(paths, request) is not None and _ended_soon(paths)
    if renewal.failures >= _MOST_FAILURES and has_failed:
        return False
    if request is None:
        return exit_code in _JOB_ENDED
    # A server that has never been ready, e.g. for its engine, would fail again.
    return request.by == RENEWAL or (request.by == SUPERVISOR and _ready_at(paths) is not None)


def _why_failed(paths: RunPaths, request: StopRequest | None, state: str = "") -> str | None:
    """Return how the last job ended, unless that was planned: by its time limit, or by Slurm for its reasons.

    A job that never was ready has failed, unless another job has preempted it.
    """
    events = _events_of_last_job(paths)
    codes = [event.data.get("exit_code") for event in events if event.name == "stage_end"]
    if request is not None:
        was_planned = request.by == RENEWAL
    else:
        was_planned = state == "TIMEOUT" or any(code in _JOB_ENDED for code in codes[-1:])
    if state == "PREEMPTED" or (was_planned and _ready_at(paths) is not None):
        return None
    ends = [it.data for it in events if "reason" in it.data or it.name in ("failed", "instance_end")]
    if ends:
        return str(ends[-1].get("reason") or ends[-1].get("why"))
    if _ready_at(paths) is None and was_planned:
        return "it was not ready when its time was over"
    return f"its exit code was {codes[-1]}" if codes else f"it was killed{f' ({state})' if state else ''}"


def _ended_soon(paths: RunPaths) -> bool:
    """Return whether the last job never was ready, or ended soon after that."""
    ready_at = _ready_at(paths)
    return ready_at is None or _events_of_last_job(paths)[-1].time - ready_at < _SOON_S


def _ready_at(paths: RunPaths) -> float | None:
    return next((event.time for event in _events_of_last_job(paths) if event.name == "ready"), None)


def _events_of_last_job(paths: RunPaths) -> list[Event]:
    # The next job records bad nodes when it begins, which may be hours later.
    return of_last_job([it for it in read_events(paths, "serve") if it.name != EVENT])


def _set_aside(paths: RunPaths) -> int:
    """Move the ranks' logs and records of the job before to a folder of its own, without readings of GPUs.

    Return the number of that folder.
    """
    for file in paths.ranks.glob("*.gpus.*"):  # 36 MB per GPU and day
        file.unlink()
    aside = paths.new_attempt()
    for folder, target in ((paths.logs, aside.logs), (paths.ranks, aside.ranks)):
        target.mkdir()
        for file in folder.iterdir():
            if _OF_RANK.match(file.name):
                file.rename(target / file.name)
    return int(aside.run_id)


def _refused(why: str) -> bool:
    print(f"Nothing is started: {why}.", flush=True)
    return False
