"""A server that outlives the time limit of its job: while one job serves, the next one waits in the queue.

The batch script submits itself again as soon as it begins (``--dependency=afterany``), so the next job starts
after any end of this one. Near its time limit a job lets the open requests end and stops. A next job that
must not serve is cancelled at this one's end, or ends by itself at its own begin.
"""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from subprocess import CompletedProcess
from typing import Any

from trtllm_hpc.errors import ExitCode, SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.bad_nodes import EVENT, Pool, bad_hosts, exclude, exclude_option
from trtllm_hpc.runtime.process import captured
from trtllm_hpc.runtime.records import JsonRecord, StopRequest, add_event, of_last_job, read_events
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


def queue_next(paths: RunPaths) -> int:
    """Submit the next server, which waits until this job has ended. Returns SUBMISSION if none waits.

    It follows the server of this job, or of the one that this job was to follow and may not, because of a
    node. Then the next job must not get that node either.
    """
    this, follows = os.environ["SLURM_JOB_ID"], os.environ["TRTLLM_HPC_FOLLOWS"]
    name = os.environ["SLURM_JOB_NAME"]
    options = [f"--job-name={name}", f"--dependency=afterany:{this}", *filter(None, [exclude_option(paths)])]
    token = name.partition(":")[2] or os.urandom(8).hex()  # in the name, if the profile sets a comment
    next_job_id, why = None, ""

    def refusal(answer: CompletedProcess[str], what: str) -> SubmissionError:
        return SubmissionError(f"{what}: {answer.stderr.strip()}")

    try:
        next_job_id = submit_script(captured, options, paths.sbatch("serve"), token, refusal)
    except (SubmissionError, OSError) as error:
        why = getattr(error, "message", str(error))
    if next_job_id is not None or follows == this:
        last = Renewal.read(paths.renewal)
        last = last if last is not None and last.job_id == follows else Renewal(follows)
        replace(last, next_job_id=next_job_id).write(paths.renewal)
    if next_job_id is None and follows == this:
        add_event(paths, "serve", "not_renewed", why=why)
        print(f"The next server could not be queued: this one ends with its time limit. {why}", flush=True)
    return ExitCode.OK if next_job_id is not None else ExitCode.SUBMISSION


def may_follow(paths: RunPaths, job_id: str, state: str) -> int:
    """Prepare this job to serve after another one in that state; returns CANCELLED if it is not to serve."""
    request, last = StopRequest.read(paths.stop_request), Renewal.read(paths.renewal) or Renewal(job_id)
    why, _, is_soon = _end_of_last_job(paths, request, state)
    failures = last.failures + 1 if why is not None and is_soon else 0
    refusal = None
    if request is not None and request.by not in (RENEWAL, SUPERVISOR):
        refusal = f"the run was stopped by {request.by}: {request.reason}"
    elif state.startswith("CANCELLED"):
        refusal = f"job {job_id} before it was cancelled"
    elif failures > _MOST_FAILURES:
        refusal = f"{failures} jobs in a row failed soon after their begin"
    if refusal is not None:
        print(f"Nothing is started: {refusal}.", flush=True)
        return ExitCode.CANCELLED
    paths.stop_request.unlink(missing_ok=True)
    paths.endpoint.unlink(missing_ok=True)  # of a job that was killed
    # Logs and records of the job before go to a folder of their own, but no readings of GPUs.
    for file in paths.ranks.glob("*.gpus.*"):  # 36 MB per GPU and day
        file.unlink()
    aside = paths.new_attempt()
    for folder, target in ((paths.logs, aside.logs), (paths.ranks, aside.ranks)):
        target.mkdir()
        for file in folder.iterdir():
            if _OF_RANK.match(file.name):
                file.rename(target / file.name)
    failed = [] if why is None else [asdict(FailedJob(job_id, why, int(aside.run_id)))]
    this = os.environ["TRTLLM_HPC_JOB_ID"]
    Renewal(this, None, last.number + 1, failures, last.failed + failed).write(paths.renewal)
    if failures:
        time.sleep(_FIRST_PAUSE_S * 2 ** (failures - 1))
    return ExitCode.OK


def unwanted_next(paths: RunPaths, exit_code: int) -> str | None:
    """Return the job that waits for the end of this one, if it is not to serve; it is forgotten then."""
    renewal = Renewal.read(paths.renewal)
    if renewal is None or renewal.next_job_id is None or renewal.job_id != os.environ["TRTLLM_HPC_JOB_ID"]:
        return None
    request = StopRequest.read(paths.stop_request)
    why, was_ready, is_soon = _end_of_last_job(paths, request)
    if request is None:
        is_wanted = exit_code in _JOB_ENDED
    else:
        # A server that has never been ready, e.g. for its engine, would fail again.
        is_wanted = request.by == RENEWAL or (request.by == SUPERVISOR and was_ready)
    if is_wanted and (renewal.failures < _MOST_FAILURES or why is None or not is_soon):
        return None
    replace(renewal, next_job_id=None).write(paths.renewal)
    return renewal.next_job_id


def change_of_next(paths: RunPaths, job_id: str) -> str | None:
    """Keep the next job from nodes because of which a server has ended; returns how Slurm is to change it.

    ``job_id`` is that server's job. The standard input is what sinfo prints, as for ``Pool.of``.
    """
    pool = Pool.of(sys.stdin, wanted=int(os.environ.get("SLURM_JOB_NUM_NODES", "1")))
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


def _end_of_last_job(
    paths: RunPaths, request: StopRequest | None, state: str = ""
) -> tuple[str | None, bool, bool]:
    """Return how the last job failed, whether it was ready, and whether it ended before or soon after.

    ``None``: it has not failed, since its end was planned: by its time limit, or by Slurm for its reasons. A
    job that never was ready has failed, unless another job has preempted it.
    """
    # The next job records bad nodes when it begins, which may be hours later.
    events = of_last_job([it for it in read_events(paths, "serve") if it.name != EVENT])
    ready_at = next((event.time for event in events if event.name == "ready"), None)
    was_ready = ready_at is not None
    is_soon = ready_at is None or events[-1].time - ready_at < _SOON_S
    codes = [event.data.get("exit_code") for event in events if event.name == "stage_end"]
    if request is not None:
        was_planned = request.by == RENEWAL
    else:
        was_planned = state == "TIMEOUT" or any(code in _JOB_ENDED for code in codes[-1:])
    ends = [it.data for it in events if "reason" in it.data or it.name in ("failed", "instance_end")]
    if state == "PREEMPTED" or (was_planned and was_ready):
        why = None
    elif ends:
        why = str(ends[-1].get("reason") or ends[-1].get("why"))
    elif was_planned:
        why = "it was not ready when its time was over"
    else:
        why = f"its exit code was {codes[-1]}" if codes else f"it was killed{f' ({state})' if state else ''}"
    return why, was_ready, is_soon
