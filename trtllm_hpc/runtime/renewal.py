"""Renewal: a server that outlives the time limit of its job, because the next job already waits in the queue.

When the batch script begins, it submits itself again (``--dependency=afterany``), so the next job starts
however this job ends. Near its time limit a job lets open requests finish and stops. A next job that must not
serve is cancelled at the end of this job, or ends by itself when it begins.
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
"""Requester of the stop of a server whose time limit is near."""

_MOST_FAILURES = 3
"""Jobs in a row that may fail soon after their begin; after one more the run ends."""
_SOON_S = 600.0
_FIRST_PAUSE_S = 10.0
_RANK_FILE = re.compile(r"(?:serve(?:\.\d+)?|preflight|repository)_\d+\.")
_JOB_ENDED = (130, 143)
"""Exit codes of a batch script that Slurm has ended by a signal."""


@dataclass(frozen=True)
class Renewal(JsonRecord):
    """The job that serves, and the job that waits for its end."""

    job_id: str
    """Slurm's ID of the serving job."""
    next_job_id: str | None = None
    """Slurm's ID of the waiting job; ``None``: no job waits."""
    number: int = 0
    """Number of jobs of the run that served before this job."""
    failures: int = 0
    """Number of the last jobs in a row that never became ready, or failed soon after."""
    failed: list[dict[str, Any]] = field(default_factory=list)
    """All jobs that failed, each a :class:`FailedJob`."""


@dataclass(frozen=True)
class FailedJob:
    """A job of a renewed server that failed; the next job served in its place."""

    job_id: str
    """Slurm's ID of the job."""
    why: str
    """Description of the job's end, with the cause if its logs show one."""
    attempt: int
    """Number N of the folder ``attempts/N`` with the job's logs and records."""


def queue_next(paths: RunPaths) -> int:
    """Submit the next job, which waits for the end of this job. Return SUBMISSION if no job waits.

    ``TRTLLM_HPC_FOLLOWS`` names the job whose server the next job is to follow: this job, or, if this job got
    an excluded node and may not serve, the job before. The next job must not get an excluded node either.
    """
    this, follows = os.environ["SLURM_JOB_ID"], os.environ["TRTLLM_HPC_FOLLOWS"]
    name = os.environ["SLURM_JOB_NAME"]
    options = [f"--job-name={name}", f"--dependency=afterany:{this}", *filter(None, [exclude_option(paths)])]
    token = (
        name.partition(":")[2] or os.urandom(8).hex()
    )  # the name has the token if the profile sets a comment
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
    """Prepare this job to serve after ``job_id``, which ended in ``state``; return CANCELLED to refuse."""
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
    paths.endpoint.unlink(missing_ok=True)  # a killed job leaves its endpoint
    # Logs and records of the previous job move to a folder of their own; GPU readings are removed.
    for file in paths.ranks.glob("*.gpus.*"):  # 36 MB per GPU and day
        file.unlink()
    aside = paths.new_attempt()
    for folder, target in ((paths.logs, aside.logs), (paths.ranks, aside.ranks)):
        target.mkdir()
        for file in folder.iterdir():
            if _RANK_FILE.match(file.name):
                file.rename(target / file.name)
    failed = [] if why is None else [asdict(FailedJob(job_id, why, int(aside.run_id)))]
    this = os.environ["TRTLLM_HPC_JOB_ID"]
    Renewal(this, None, last.number + 1, failures, last.failed + failed).write(paths.renewal)
    if failures:
        time.sleep(_FIRST_PAUSE_S * 2 ** (failures - 1))
    return ExitCode.OK


def unwanted_next(paths: RunPaths, exit_code: int) -> str | None:
    """Return the ID of the waiting job if it must not serve, and drop it from the record; else ``None``."""
    renewal = Renewal.read(paths.renewal)
    if renewal is None or renewal.next_job_id is None or renewal.job_id != os.environ["TRTLLM_HPC_JOB_ID"]:
        return None
    request = StopRequest.read(paths.stop_request)
    why, was_ready, is_soon = _end_of_last_job(paths, request)
    if request is None:
        is_wanted = exit_code in _JOB_ENDED
    else:
        # A server that has never been ready, e.g. because of its engine, would fail again.
        is_wanted = request.by == RENEWAL or (request.by == SUPERVISOR and was_ready)
    if is_wanted and (renewal.failures < _MOST_FAILURES or why is None or not is_soon):
        return None
    replace(renewal, next_job_id=None).write(paths.renewal)
    return renewal.next_job_id


def change_of_next(paths: RunPaths, job_id: str) -> str | None:
    """Exclude nodes that ended the server of job ``job_id``; return scontrol's change of the waiting job.

    Standard input has sinfo's lines, as for ``Pool.of``. ``None``: nothing to change.
    """
    pool = Pool.of(sys.stdin, wanted=int(os.environ.get("SLURM_JOB_NUM_NODES", "1")))
    hosts = bad_hosts(paths)
    has_new = bool(hosts) and exclude(paths, hosts, job_id=job_id, pools=[pool])
    renewal = Renewal.read(paths.renewal)
    is_own = renewal is not None and renewal.job_id == os.environ["TRTLLM_HPC_JOB_ID"]
    if not has_new or renewal is None or not is_own or renewal.next_job_id is None:
        return None
    return f"JobId={renewal.next_job_id} ExcNodeList={exclude_option(paths).removeprefix('--exclude=')}"


def note_renewed(paths: RunPaths, ready_at: float) -> None:
    """Record that this job serves in place of another, and for how many seconds no job served."""
    renewal = Renewal.read(paths.renewal)
    if renewal is None or renewal.number == 0:
        return
    stops = [event.time for event in read_events(paths, "serve") if event.name == "server_stop"]
    downtime_s = round(ready_at - stops[-1], 1) if stops else None  # a killed job recorded no stop
    add_event(paths, "serve", "renewed", number=renewal.number, downtime_s=downtime_s)


def _end_of_last_job(
    paths: RunPaths, request: StopRequest | None, state: str = ""
) -> tuple[str | None, bool, bool]:
    """Return how the last job failed, whether it was ever ready, and whether it ended before or soon after.

    The first value is ``None`` if the job did not fail: its time limit was over, Slurm ended it, or another
    job preempted it. A job that was never ready counts as failed, unless it was preempted.
    """
    # Without bad nodes, which the next job records when it begins, maybe hours later.
    events = of_last_job([event for event in read_events(paths, "serve") if event.name != EVENT])
    ready_at = next((event.time for event in events if event.name == "ready"), None)
    was_ready = ready_at is not None
    is_soon = ready_at is None or events[-1].time - ready_at < _SOON_S
    codes = [event.data.get("exit_code") for event in events if event.name == "stage_end"]
    if request is not None:
        was_planned = request.by == RENEWAL
    else:
        was_planned = state == "TIMEOUT" or any(code in _JOB_ENDED for code in codes[-1:])
    ends = [
        event.data for event in events if "reason" in event.data or event.name in ("failed", "instance_end")
    ]
    if state == "PREEMPTED" or (was_planned and was_ready):
        why = None
    elif ends:
        why = str(ends[-1].get("reason") or ends[-1].get("why"))
    elif was_planned:
        why = "it was not ready when its time was over"
    else:
        why = f"its exit code was {codes[-1]}" if codes else f"it was killed{f' ({state})' if state else ''}"
    return why, was_ready, is_soon
