"""Submit a script by ``sbatch``, on a login node or in a job; no job is lost or submitted twice.

``sbatch`` can fail, or be killed, after Slurm has accepted the job, and a site's wrapper can print lines of
its own. So each job carries a mark (its stage and a token) in its comment or name, by which the queue is
searched.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

from trtllm_hpc.errors import SubmissionError, UnclearSubmission

LOOKUP_S = 30.0
"""Seconds for which the queue is searched for a job after an unclear answer."""
_SBATCH_TIMEOUT_S, _LOOK_TIMEOUT_S, _PAUSE_S = 60.0, 10.0, 2.0
_JOB_ID = re.compile(r"^(\d+)(?:;\S+)?[ \t\r]*$", re.MULTILINE)
"""``JOBID`` or ``JOBID;CLUSTER`` (sbatch(1), --parsable)."""
_UNCLEAR = re.compile(
    "timed out|Connection reset|Zero Bytes|Transport endpoint|(send|receive|shutdown) failure"
)
"""Errors after which Slurm may have accepted the job; with a ``connect failure`` nothing was sent."""
QUEUE = ("squeue", "--noheader", "--me", "--format=%i\x1f%T\x1f%o\x1f%k %j")
"""Command that lists this user's jobs that have not ended, for :func:`queued`."""
_QUEUED = re.compile("^(\\d+)[^\x1f]*\x1f([^\x1f]*)\x1f([^\x1f]*)\x1f(.*)", re.MULTILINE)


def queued(text: str) -> list[tuple[str, str, str, list[str]]]:
    """Return ID, state, script and marks of each job, the newest last; 123+1 and 123_[0-9] become 123."""
    rows = sorted(_QUEUED.findall(text), key=lambda row: int(row[0]))
    return [(job, state, path, re.findall(r"\w+:[0-9a-f]{16}\b", kept)) for job, state, path, kept in rows]


def submit_script(
    run: Callable[[Sequence[str], float], CompletedProcess[str]],
    options: Sequence[str],
    script: Path,
    token: str,
    refused: Callable[[CompletedProcess[str], str], SubmissionError],
) -> str:
    """Submit a script unchanged; return the job's ID.

    After an unclear answer the queue is searched for the job's mark or, if a site overwrites comments, for
    its script. A second job with the same mark, which a site's retrying wrapper can leave, is cancelled.

    Args:
        run: runs a Slurm command with a timeout in seconds.
        refused: makes the error if Slurm has refused the script.

    Raises:
        SubmissionError: Slurm has refused the script, or cannot be reached.
        UnclearSubmission: it is not known whether Slurm has accepted the script.
    """
    mark, text = f"{script.stem}:{token}", script.read_text("utf-8", "replace") if script.is_file() else ""
    name = re.search(r"^#SBATCH --job-name=(\S+)\n.*^#SBATCH --comment\b", text, re.MULTILINE | re.DOTALL)
    kept = f"--comment=trtllm-hpc:{mark}" if name is None else f"--job-name={name[1]}:{token}"
    try:
        answer = run(["sbatch", "--parsable", kept, *options, str(script)], _SBATCH_TIMEOUT_S)
    except (SubmissionError, TimeoutExpired) as error:
        if not getattr(error, "transient", True):
            raise
        answer = CompletedProcess((), -9, "", getattr(error, "message", str(error)))
    ids: list[str] = _JOB_ID.findall(answer.stdout)
    # With several numbers, one may be the wrapper's own: the queue shows which is the job.
    job_id = ids[0] if len(set(ids)) == 1 and answer.returncode == 0 else None
    if not _UNCLEAR.search(answer.stderr) and 0 <= answer.returncode < 128:
        if job_id is not None:
            return job_id
        if answer.returncode and not ids:
            raise refused(answer, f"sbatch refused {script}")
    until = time.monotonic() + LOOKUP_S
    while True:
        with suppress(SubmissionError, OSError, TimeoutExpired):  # OSError: the node has no squeue
            this = os.environ.get(
                "SLURM_JOB_ID"
            )  # skipped below: a renewed server's job runs the same script
            jobs = [job for job in queued(run(QUEUE, _LOOK_TIMEOUT_S).stdout) if job[0] != this]
            marked = list(dict.fromkeys(job[0] for job in jobs if mark in job[3]))
            ours = [job for job in jobs if job[2] == str(script) and not job[3] and job[1] != "COMPLETING"]
            job_id = job_id or next(reversed(marked or [job[0] for job in ours]), None)
            if others := [job for job in marked if job != job_id]:
                run(["scancel", *others], _LOOK_TIMEOUT_S)
        if job_id is not None:
            return job_id
        if time.monotonic() > until:
            said = (answer.stderr or answer.stdout).strip() or f"no word, exit code {answer.returncode}"
            said = f"It is not clear whether Slurm has taken {script}: {said}"
            said += f"\nFor {LOOKUP_S:.0f} s squeue has shown no job with {kept}."
            hint = "squeue --me -o '%i %j %k' (scancel that job if it is there), then this command again"
            raise UnclearSubmission(said, hint=hint, transient=True)
        time.sleep(_PAUSE_S)
