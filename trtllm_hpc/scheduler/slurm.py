"""Slurm's commands: the one place that starts sbatch, squeue, sacct, scontrol and scancel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.scheduler.states import JobState, parse_state

TIMEOUT_S = 60.0
"""Bound on one command. A busy controller answers late; one that is gone must not hang us."""

_OPTIONS_OF_THE_SITE = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_")
"""Variables that Slurm's commands take for options. SBATCH_PARTITION would silently change what a
script says, SQUEUE_USERS make a running job look lost."""

_TRANSIENT = ("timed out", "Unable to contact slurm controller", "Socket timed out", "Connection refused")


@dataclass(frozen=True)
class JobInfo:
    """What Slurm says of one job."""

    job_id: str
    state: JobState
    reason: str = ""
    """Why it pends; empty otherwise."""
    nodes: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    source: str = "squeue"


@dataclass
class Slurm:
    """One cluster's commands.

    Args:
        conf: value for ``SLURM_CONF``; ``None`` leaves it as it is.
    """

    conf: str | None = None
    _no_accounting: bool = field(default=False, init=False)

    def submit(
        self, script: Path, *, dependency: str | None = None, environment: dict[str, str] | None = None
    ) -> str:
        """Submit a script as it is; returns the job id.

        Raises:
            SubmissionError: sbatch is not there or refused, with its own words.
        """
        options = ["--parsable"]
        if dependency is not None:
            # A stage whose predecessor failed must leave the queue.
            options += [f"--dependency={dependency}", "--kill-on-invalid-dep=yes"]
        # A session of its own: Ctrl-C in the terminal must not cut a submission
        # in two, between Slurm taking the job and its id being written down.
        answer = self._run(["sbatch", *options, str(script)], environment, new_session=True)
        if answer.returncode:
            raise _refused(answer, f"sbatch refused {script}")
        # "JOBID" or "JOBID;CLUSTER" (sbatch(1), --parsable).
        match = re.match(
            r"(\d+)(;\S+)?\s*$", answer.stdout.strip().splitlines()[-1] if answer.stdout.strip() else ""
        )
        if match is None:
            raise SubmissionError(f"sbatch answered {answer.stdout!r}, which is no job id.")
        return match[1]

    def query(self, job_ids: Iterable[str]) -> dict[str, JobInfo]:
        """What Slurm knows of these jobs; a job that it does not know is left out.

        One squeue for all. sacct is asked only for those that have left the
        queue or ended (squeue has no exit codes), scontrol where there is no
        accounting.
        """
        wanted = sorted(set(job_ids))
        if not wanted:
            return {}
        known = self._squeue(wanted)
        ended = [job for job in wanted if job not in known or known[job].state.final]
        if ended:
            known.update(self._sacct(ended))
        missing_codes = [job for job in ended if job in known and known[job].exit_code is None]
        for job in missing_codes:
            info = self._scontrol(job)
            if info is not None:
                known[job] = info
        return known

    def find_scripts(self, scripts: Iterable[Path]) -> dict[Path, str]:
        """Job ids of this user's jobs in the queue that run one of these scripts; the newest of each."""
        wanted = {str(script): script for script in scripts}
        if not wanted or not is_installed():
            return {}
        answer = self._run(["squeue", "--noheader", "--me", "--format=%i|%o"])
        if answer.returncode:
            raise _refused(answer, "squeue failed")
        lines = (line.split("|", 1) for line in answer.stdout.splitlines() if "|" in line)
        return {wanted[script]: job_id for job_id, script in lines if script in wanted}

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Cancel jobs; those that have ended are passed over.

        Raises:
            SubmissionError: scancel failed for another reason.
        """
        wanted = sorted(set(job_ids))
        if not wanted:
            return
        answer = self._run(["scancel", *wanted])
        if answer.returncode and "Invalid job id" not in answer.stderr and "already" not in answer.stderr:
            raise _refused(answer, "scancel failed")

    # The commands ---------------------------------------------------------------------

    def _squeue(self, job_ids: Sequence[str]) -> dict[str, JobInfo]:
        answer = self._run(
            ["squeue", "--noheader", "--states=all", "--format=%i|%T|%r|%N", f"--jobs={','.join(job_ids)}"]
        )
        if answer.returncode:
            if "Invalid job id" in answer.stderr:
                return {}  # all of them have left the queue
            raise _refused(answer, "squeue failed")
        found = {}
        for line in answer.stdout.splitlines():
            job_id, state, reason, nodes = [*line.split("|"), "", "", ""][:4]
            parsed = parse_state(state)
            pending = reason if parsed.name == "PENDING" else ""
            found[job_id] = JobInfo(job_id, parsed, pending, nodes)
        return found

    def _sacct(self, job_ids: Sequence[str]) -> dict[str, JobInfo]:
        if self._no_accounting:
            return {}
        answer = self._run(
            [
                "sacct",
                "--noheader",
                "--parsable2",
                "--allocations",
                "--format=JobIDRaw,State,ExitCode,NodeList",
                f"--jobs={','.join(job_ids)}",
            ]
        )
        if answer.returncode:
            # Some sites have no accounting, or keep it from users; scontrol and
            # the run's own events must do then.
            self._no_accounting = True
            return {}
        found = {}
        for line in answer.stdout.splitlines():
            job_id, state, code, nodes = [*line.split("|"), "", "", ""][:4]
            parsed = parse_state(state)
            if parsed.final:
                found[job_id] = JobInfo(job_id, parsed, "", _nodes(nodes), *_exit(code), source="sacct")
        return found

    def _scontrol(self, job_id: str) -> JobInfo | None:
        answer = self._run(["scontrol", "--oneliner", "show", "job", job_id])
        if answer.returncode:
            return None  # the controller forgets a job after MinJobAge
        fields = dict(re.findall(r"(\w+)=(\S*)", answer.stdout))
        if "JobState" not in fields:
            return None
        return JobInfo(
            job_id,
            parse_state(fields["JobState"]),
            "",
            _nodes(fields.get("NodeList", "")),
            *_exit(fields.get("ExitCode", "")),
            source="scontrol",
        )

    def _run(
        self, command: list[str], extra: dict[str, str] | None = None, *, new_session: bool = False
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_OPTIONS_OF_THE_SITE)
        }
        if self.conf is not None:
            environment["SLURM_CONF"] = self.conf
        environment.update(extra or {})
        try:
            return subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
                stdin=subprocess.DEVNULL,
                start_new_session=new_session,
            )
        except FileNotFoundError:
            raise SubmissionError(
                f"There is no {command[0]} on this machine: Slurm is not installed here.",
                hint="run this on a login node, or try --cluster local (no Slurm needed)",
            ) from None
        except subprocess.TimeoutExpired:
            raise SubmissionError(
                f"{command[0]} did not answer within {TIMEOUT_S:.0f} s.",
                hint="sinfo (is the controller up?), then the same command again",
                transient=True,
            ) from None


def is_installed() -> bool:
    """Whether Slurm's sbatch is on this machine."""
    return shutil.which("sbatch") is not None


def _nodes(text: str) -> str:
    """A job that ended in the queue has no nodes; sacct and scontrol have words for that."""
    return "" if text in ("None assigned", "(null)") else text


def _exit(text: str) -> tuple[int | None, int | None]:
    """``code:signal`` as sacct and scontrol print it."""
    match = re.match(r"(\d+):(\d+)$", text)
    return (int(match[1]), int(match[2])) if match else (None, None)


def _refused(answer: subprocess.CompletedProcess[str], what: str) -> SubmissionError:
    words = (answer.stderr or answer.stdout).strip() or f"exit code {answer.returncode}"
    transient = any(sign in words for sign in _TRANSIENT)
    hint = "sinfo (is the controller up?), then the same command again" if transient else None
    # "Invalid account or account/partition combination specified" is about the account.
    if "account" in words.lower():
        hint = "sacctmgr show assoc user=$USER, then set account in the cluster profile"
    elif "partition" in words.lower():
        hint = "sinfo, then set partition in the cluster profile"
    return SubmissionError(f"{what}: {words}", hint=hint, transient=transient)
