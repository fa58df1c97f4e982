"""``sbatch`` on a login node or inside a job: an unclear answer loses no job, and submits none twice.

``sbatch`` can fail, or be killed, after Slurm has taken the job, and a site's wrapper can print lines of its
own. So each job carries a mark, its stage and a token, which Slurm keeps.
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
"""How long the queue is searched for a job after an unclear answer."""
_SBATCH_TIMEOUT_S, _LOOK_TIMEOUT_S, _PAUSE_S = 60.0, 10.0, 2.0
_JOB_ID = re.compile(r"^(\d+)(?:;\S+)?[ \t\r]*$", re.MULTILINE)
"""``JOBID`` or ``JOBID;CLUSTER`` (sbatch(1), --parsable)."""
_UNCLEAR = re.compile(
    "timed out|Connection reset|Zero Bytes|Transport endpoint|(send|receive|shutdown) failure"
)
"""Errors after which Slurm may have taken the job; before a ``connect failure`` nothing was sent."""
QUEUE = ("squeue", "--noheader", "--me", "--format=%i\x1f%T\x1f%o\x1f%k %j")
"""Lists this user's jobs that have not ended, for :func:`queued`."""
_QUEUED = re.compile("^(\\d+)[^\x1f]*\x1f([^\x1f]*)\x1f([^\x1f]*)\x1f(.*)", re.MULTILINE)


def queued(text: str) -> list[tuple[str, str, str, list[str]]]:
    """Return id, state, script and marks of each job, with 123 of 123+1 and 123_[0-9]; the newest last."""
    rows = sorted(_QUEUED.findall(text), key=lambda row: int(row[0]))
    return [(job, state, path, re.findall(r"\w+:[0-9a-f]{16}\b", kept)) for job, state, path, kept in rows]


def submit_script(
    run: Callable[[Sequence[str], float], CompletedProcess[str]],
    options: Sequence[str],
    script: Path,
    token: str,
    refused: Callable[[CompletedProcess[str], str], SubmissionError],
) -> str:
    """Submit a script unchanged; return the job's id.

    After an unclear answer the queue is searched for the job's mark or, where a site overwrites comments, for
    its script. A second job with the mark, which a wrapper that tries again can leave, is cancelled. ``run``
    runs a command of Slurm's with a bound in seconds. Raises SubmissionError, as ``refused`` words it if
    Slurm has refused the script, and UnclearSubmission if that is not known.
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
    # Of several numbers one may be a wrapper's own: the queue knows which is the job.
    job_id = ids[0] if len(set(ids)) == 1 and answer.returncode == 0 else None
    if not _UNCLEAR.search(answer.stderr) and 0 <= answer.returncode < 128:
        if job_id is not None:
            return job_id
        if answer.returncode and not ids:
            raise refused(answer, f"sbatch refused {script}")
    until = time.monotonic() + LOOKUP_S
    while True:
        with suppress(SubmissionError, OSError, TimeoutExpired):  # OSError: no squeue here, in a job
            this = os.environ.get("SLURM_JOB_ID")  # runs the same script if the server is renewed
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
