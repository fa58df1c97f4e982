"""Run Slurm's commands (outside jobs, only this module does), and query the states of one cluster's jobs."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.runtime.process import captured
from trtllm_hpc.runtime.records import TOKEN_VARIABLE
from trtllm_hpc.runtime.submission import QUEUE, queued, submit_script
from trtllm_hpc.scheduler.job_info import JobInfo, JobTimes, Origin, RunJob, accounted, by_id, together
from trtllm_hpc.scheduler.states import LOST, PROLOG_FAILED, JobState, limit_in, parse_state

COMMANDS = logging.getLogger("trtllm_hpc.commands")
"""Receives each command before it runs, for ``trtllm-hpc -v``."""
TIMEOUT_S = 60.0
"""Timeout of a command in seconds: a busy controller answers late, and a missing controller never does."""

_SHORTEST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 15.0
"""Seconds between two queries; the pauses grow with the time since the last event."""

_OPTION_VARIABLES = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_")
"""Prefixes of environment variables that Slurm's commands read as options. SBATCH_PARTITION would silently
override a script, and SQUEUE_USERS would make a running job look lost."""

_SEPARATOR = "\x1f"
"""Separator of columns: a control character, because job names and paths may contain any other character."""
_COLUMNS = ("%i", "%T", "%r", "%N", "%V", "%S", "%e", "%U", "%u", "%j", "%Z", "%o")
_ACCOUNTED = (
    "JobID,State,ExitCode,NodeList,Submit,Start,End,AllocTRES,ConsumedEnergyRaw,"
    "UID,User,JobName,WorkDir,SubmitLine"
)
_DRAINED_S = 10.0
"""Seconds before a job's start or after its end within which Slurm may drain a node for a failed prolog."""
_USER = re.compile(r"^ *UserId=(\S+)\((\d+)\)", re.MULTILINE)

_SECONDS = {"SLURM_TIME_FORMAT": "%s"}
"""Makes squeue and sacct print times in seconds since the epoch, whatever the site's format and time zone."""

_TRANSIENT = (
    "timed out",
    "Unable to contact slurm controller",
    "Connection refused",
    "Connection reset",
    "Zero Bytes were transmitted or received",
    "Transport endpoint is not connected",
    "controller not responding",
)
_NO_CONFIGURATION = ("Could not establish a configuration source", "DNS SRV lookup failed")
"""Messages on a machine that has Slurm's commands, but neither a slurm.conf nor a controller in the DNS."""

_CONTROLLER_HINT = "sinfo (is the controller up?), then the same command again"
_LOGIN_NODE_HINT = "run this on a login node of the cluster; for the sandbox, trtllm-hpc sandbox up first"


@dataclass
class Slurm:
    """Slurm's commands for one cluster."""

    conf: str | None = None
    """Value for ``SLURM_CONF``; ``None`` leaves the variable as it is."""
    clusters: str | None = None
    """Name of the cluster, if this machine serves several; ``None``: the machine's own."""
    timeout_s: float | None = None
    """Timeout of a command in seconds; by default ``TIMEOUT_S``."""
    _no_accounting: bool = field(default=False, init=False)

    def submit(
        self,
        script: Path,
        *,
        dependency: str | None = None,
        environment: dict[str, str] | None = None,
        further: Sequence[str] = (),
    ) -> str:
        """Submit a script unchanged; return the job ID, or raise SubmissionError with sbatch's message.

        The job carries the token in ``environment``, else a new token. ``further`` options override those in
        the script; options after a ``:`` belong to the next component of a heterogeneous job.
        """
        options: list[str] = []
        if dependency is not None:
            # Remove the job from the queue if the stage before it fails.
            options += [f"--dependency={dependency}", "--kill-on-invalid-dep=yes"]

        def run(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
            # In a session of its own, so that Ctrl-C cannot interrupt a submission between Slurm's acceptance
            # of the job and the record of its ID.
            where = self.conf, self.clusters
            return run_command(command, *where, timeout_s=timeout_s, extra=environment, new_session=True)

        token = (environment or {}).get(TOKEN_VARIABLE) or os.urandom(8).hex()
        return submit_script(run, [*options, *further], script, token, _refused)

    def query(self, jobs: Iterable[RunJob]) -> dict[RunJob, JobInfo]:
        """Return Slurm's information about these jobs; jobs unknown to Slurm are left out.

        A job is LOST if Slurm knows only another job with its ID. One squeue covers all jobs. sacct is called
        only for jobs that have left the queue or ended, because squeue has no exit codes; scontrol is called
        without accounting, or if squeue does not print enough to identify a job.
        """
        wanted = sorted(set(jobs), key=lambda job: job.job_id)
        if not wanted:
            return {}
        rows = self._squeue(wanted)
        known = self._queued(wanted, rows)
        ended = [job for job in wanted if job not in known or known[job].state.final]
        history = self._sacct(ended) if ended else {}
        for job in ended:
            queued, before = known.get(job), history.get(job.job_id, [])
            info = accounted(job, before, queued)
            if info is None and queued is not None:
                info = together([row for row in self._scontrol(job.job_id) if job.is_of(row.origin)])
            if info is not None:
                times = info.times if queued is None or info.times.ended_at else queued.times
                known[job] = replace(info, state=self._state_after_prolog(info, times))
            others = [row.origin for row in rows.get(job.job_id, before) if not job.is_of(row.origin)]
            if others and job not in known:
                now = f"{others[-1].name} of {others[-1].user}"
                sentence = f"is lost: job {job.job_id} is another job now: {now}"
                known[job] = JobInfo(job.job_id, replace(LOST, sentence=sentence))
        return known

    def find_scripts(self, scripts: Mapping[Path, str | None]) -> dict[Path, str]:
        """Return, for each script, this user's newest queued job that runs it or carries its token."""
        if not scripts or not is_installed():
            return {}
        answer = self._run(list(QUEUE))
        if answer.returncode:
            raise _refused(answer, "squeue failed")
        wanted = {str(script): script for script in scripts}
        wanted |= {f"{script.stem}:{token}": script for script, token in scripts.items() if token}
        jobs = queued(answer.stdout)
        return {wanted[word]: job for job, _, run, marks in jobs for word in (run, *marks) if word in wanted}

    def nodes(self, partition: str | None) -> list[str]:
        """Return a line ``NODE|HOST NAME|STATE`` for each node; empty if sinfo fails."""
        chosen = [] if partition is None else [f"--partition={partition}"]
        return self._run(["sinfo", "--noheader", "--Node", *chosen, "--format=%N|%n|%t"]).stdout.splitlines()

    def cancel(self, jobs: Iterable[RunJob]) -> None:
        """Cancel jobs, except ended jobs and jobs whose IDs now belong to others; raise SubmissionError."""
        wanted = sorted(set(jobs), key=lambda job: job.job_id)
        if not wanted:
            return
        groups: dict[tuple[int | None, str], list[str]] = {}
        for job, info in self._queued(wanted, self._squeue(wanted)).items():
            if not info.state.final:
                groups.setdefault((info.origin.uid, info.origin.name), []).append(job.job_id)
        for (uid, name), job_ids in groups.items():
            # User and name protect another job that has got one of the IDs since squeue answered.
            answer = self._run(["scancel", f"--user={uid}", f"--name={name}", *job_ids])
            if answer.returncode and "Invalid job id" not in answer.stderr and "already" not in answer.stderr:
                raise _refused(answer, "scancel failed")

    def _queued(self, jobs: Sequence[RunJob], rows: Mapping[str, list[JobInfo]]) -> dict[RunJob, JobInfo]:
        infos = {}
        shown = cache(self._scontrol)
        for job in jobs:
            with_id = rows.get(job.job_id, [])
            own = [row for row in with_id if job.is_of(row.origin)]
            if not own and any(job.has_name_of(row.origin) for row in with_id):
                # squeue does not print the path of a job's log, by which scontrol may identify the job.
                own = with_id if any(job.is_of(row.origin) for row in shown(job.job_id)) else []
            if (info := together(own)) is not None:
                infos[job] = info
        return infos

    def _squeue(self, jobs: Sequence[RunJob]) -> dict[str, list[JobInfo]]:
        """Return squeue's rows for these IDs, one for each component."""
        command = ["squeue", "--noheader", "--states=all", f"--format={_SEPARATOR.join(_COLUMNS)}"]
        answer = self._run([*command, f"--jobs={_ids(jobs)}"], _SECONDS)
        if answer.returncode:
            if "Invalid job id" in answer.stderr:
                return {}  # all jobs have left the queue
            raise _refused(answer, "squeue failed")
        infos = []
        for row in _rows("squeue", answer.stdout, len(_COLUMNS)):
            job_id, name, reason, nodes, *moments, uid, user, job_name, folder, script = row
            state, origin = parse_state(name), Origin(_uid(uid), user, job_name, folder, script)
            submitted, started, ends = map(_moment, moments)
            # Before the start, %S is the expected start; before the end, %e is the end by the time limit
            # (squeue(1)).
            times = JobTimes(submitted, started, ends_by=ends)
            if state.name == "PENDING":
                times = JobTimes(submitted, expected_at=started)
            elif state.final:
                times = JobTimes(submitted, started, ends)
            pending = reason if state.name == "PENDING" else ""
            infos.append(JobInfo(job_id, state, pending, nodes, times=times, origin=origin))
        return by_id(infos)

    def _state_after_prolog(self, info: JobInfo, times: JobTimes) -> JobState:
        """Return PROLOG_FAILED if Slurm cancelled the job and drained a node for it, else the job's state."""
        if info.state.name != "CANCELLED" or not info.nodes:
            return info.state
        command = ["sinfo", "--noheader", "--list-reasons", f"--nodes={info.nodes}", "--format=%N|%H|%E"]
        begin_s, end_s = (times.started_at or 0.0) - _DRAINED_S, (times.ended_at or math.inf) + _DRAINED_S
        with suppress(SubmissionError):
            for line in self._run(command, _SECONDS).stdout.splitlines():
                node, at, why = [*line.split("|", 2), "", ""][:3]
                if why.startswith("Prolog error") and begin_s <= (_moment(at) or 0.0) <= end_s:
                    return replace(PROLOG_FAILED, sentence=PROLOG_FAILED.sentence.format(node=node))
        return info.state

    def _sacct(self, jobs: Sequence[RunJob]) -> dict[str, list[JobInfo]]:
        """Return sacct's rows for these IDs, including earlier jobs and each attempt of a requeued job."""
        if self._no_accounting:
            return {}
        command = ["sacct", "--noheader", "--parsable2", f"--delimiter={_SEPARATOR}", "--allocations"]
        command += ["--duplicates", f"--format={_ACCOUNTED}", f"--jobs={_ids(jobs)}"]
        answer = self._run(command, _SECONDS)
        if answer.returncode:
            # Some sites have no accounting or hide it from users; scontrol and the run's own events must do.
            self._no_accounting = True
            return {}
        infos = []
        for row in _rows("sacct", answer.stdout, 1 + _ACCOUNTED.count(",")):
            job_id, state, code, nodes, *moments, tres, energy, uid, user, name, folder, line = row
            times, gpus = JobTimes(*map(_moment, moments)), re.search(r"\bgres/gpu=(\d+)", tres)
            origin = Origin(_uid(uid), user, name, folder, submit_line=line)
            # Energy that is not measured is 0 or empty.
            used = (int(gpus[1]) if gpus else None, _moment(energy))
            infos.append(
                JobInfo(job_id, parse_state(state), "", _nodes(nodes), *_exit(code), times, *used, origin)
            )
        return by_id(infos)

    def _scontrol(self, job_id: str) -> list[JobInfo]:
        """Return scontrol's information for an ID, one row for each component."""
        answer = self._run(["scontrol", "show", "job", job_id])
        if answer.returncode:
            return []  # the controller forgets a job after MinJobAge
        infos = []
        for component in answer.stdout.split("\n\n"):
            # Only the first field of each line, and the last of the first line, because a path may contain
            # text that looks like a field.
            lines = re.findall(r"^(?:JobId=.* )?\s*(\w+)=(.*)$", component, re.MULTILINE)
            fields = dict(reversed(lines))
            if "JobState" in fields:
                user, code = (re.search(pattern, component) for pattern in (_USER, r" ExitCode=(\S+)"))
                texts = [fields.get(key, "") for key in ("JobName", "WorkDir", "Command", "StdOut")]
                origin = Origin(int(user[2]), user[1], *texts) if user else Origin()
                state, nodes = parse_state(fields["JobState"]), _nodes(fields.get("NodeList", ""))
                codes = _exit(code[1] if code else "")
                infos.append(JobInfo(job_id, state, "", nodes, *codes, origin=origin))
        return infos

    def _run(
        self, command: list[str], extra: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return run_command(command, self.conf, self.clusters, timeout_s=self.timeout_s, extra=extra)


class JobWatcher:
    """Keeps the states of one cluster's jobs.

    A job that has ended with a known exit code is not queried again. An unknown job is, because accounting
    may be late. submitit's :class:`~submitit.core.core.Job` calls the methods below ``refresh``.
    """

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.queries = 0
        """Number of queries to Slurm."""
        self._known: dict[RunJob, JobInfo] = {}
        self._jobs: set[RunJob] = set()
        self._ended: set[RunJob] = set()
        self._answered: set[RunJob] = set()
        self._by_id: dict[str, RunJob] = {}
        self._news_at = self._queried_at = float("-inf")

    def job_infos(self, jobs: Collection[RunJob], mode: str = "standard") -> dict[RunJob, JobInfo]:
        """Return Slurm's information about these jobs; jobs unknown to Slurm are left out.

        ``mode`` is ``force`` (query now), ``standard`` (query new jobs now, and others when the pause is
        over) or ``cache`` (do not query). Raises SubmissionError if Slurm does not answer.
        """
        self.add(jobs)
        if jobs:
            self.refresh(mode)
        return {job: self._known[job] for job in jobs if job in self._known}

    def add(self, jobs: Collection[RunJob]) -> None:
        """Query these jobs from now on."""
        if not self._jobs.issuperset(jobs):
            self._jobs.update(jobs)
            self.restart_pauses()
        self._by_id |= {job.job_id: job for job in jobs}

    def restart_pauses(self) -> None:
        """Query at once, then after short pauses again, because something has happened."""
        self._news_at, self._queried_at = time.time(), float("-inf")

    def refresh(self, mode: str = "standard") -> None:
        """Query all jobs that have not ended, if a query is due; ``mode`` as for :meth:`job_infos`.

        If Slurm does not answer (SubmissionError), the previous information stays.
        """
        now = time.time()
        pause_s = min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, (now - self._news_at) / 2))
        if mode == "cache" or (mode == "standard" and now - self._queried_at <= pause_s):
            return
        self.queries += 1
        self._queried_at = now
        queried = self._jobs - self._ended
        answers = self.slurm.query(queried)
        self._answered |= queried
        self._known = {job: info for job, info in self._known.items() if job not in queried} | answers
        self._ended |= {
            job for job, info in answers.items() if info.state.final and info.exit_code is not None
        }

    def register_job(self, job_id: str) -> None:
        """Do nothing: jobs are added with everything that identifies them (:meth:`add`)."""

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """Return a job's state in submitit's format; empty before the first answer."""
        job = self._by_id[job_id]
        try:
            self.job_infos([job], mode)
        except SubmissionError as error:
            if not error.transient:  # after a transient error the previous information is used
                raise
        if job not in self._answered:
            return {}
        info = self._known.get(job) or JobInfo(job_id, LOST)
        return {
            "State": info.state.name,
            "Final": "yes" if info.state.final else "",
            "ExitCode": "" if info.exit_code is None else str(info.exit_code),
            "NodeList": info.nodes,
        }

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return Slurm's name of the state, or UNKNOWN before the first answer."""
        return self.get_info(job_id, mode).get("State") or "UNKNOWN"

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Return whether the job has ended, by this package's table of states, not submitit's list."""
        return bool(self.get_info(job_id, mode).get("Final"))


# How a command is run ---------------------------------------------------------------


def run_command(
    command: Sequence[str],
    conf: str | None = None,
    clusters: str | None = None,
    *,
    timeout_s: float | None = None,
    extra: dict[str, str] | None = None,
    new_session: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands; raise SubmissionError if it cannot run or does not answer.

    Args:
        conf: value for ``SLURM_CONF``; ``None`` leaves the variable as it is.
        clusters: name of the cluster, if this machine serves several.
        timeout_s: timeout in seconds; by default ``TIMEOUT_S``.
        extra: further environment variables; variables that Slurm reads as options are removed.
        new_session: whether Ctrl-C does not reach the command.
    """
    if conf is not None and not Path(conf).is_file():
        # Slurm's commands would spend a long time looking for a configuration in the network.
        raise SubmissionError(
            f"There is no {conf} on this machine, so Slurm cannot be reached.",
            hint="trtllm-hpc sandbox up, if this is the sandbox; else set slurm_conf in the profile",
        )
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_OPTION_VARIABLES)
    }
    environment |= ({"SLURM_CONF": conf} if conf else {}) | (extra or {})
    if clusters is not None and command[0] != "srun":  # srun is only asked about its own plugins and options
        command = [command[0], f"--clusters={clusters}", *command[1:]]
    COMMANDS.debug("%s", shlex.join(command))
    try:
        answer = captured(command, timeout_s, environment, session=new_session)
        # With --clusters, squeue and sinfo print a line with the cluster's name even with --noheader.
        answer.stdout = re.sub(r"^CLUSTER: \S+\n", "", answer.stdout, flags=re.MULTILINE)
        return answer
    except FileNotFoundError:
        raise SubmissionError(
            f"There is no {command[0]} on this machine.",
            hint="run this on a login node, or try --cluster local (no Slurm needed)",
        ) from None
    except OSError as error:
        raise SubmissionError(f"{command[0]} cannot be run: {error.strerror}.") from None
    except subprocess.TimeoutExpired:
        raise SubmissionError(
            f"{command[0]} did not answer within {timeout_s:.0f} s.", hint=_CONTROLLER_HINT, transient=True
        ) from None


def is_installed() -> bool:
    """Return whether this machine has Slurm's sbatch."""
    return shutil.which("sbatch") is not None


def _ids(jobs: Iterable[RunJob]) -> str:
    return ",".join(dict.fromkeys(job.job_id for job in jobs))


def _rows(command: str, text: str, count: int) -> list[list[str]]:
    """Return the columns of each complete line; raise SubmissionError if the text has no columns.

    A line break within a column makes its row incomplete, so the row is dropped.
    """
    rows = [row for line in text.split("\n") if len(row := line.split(_SEPARATOR)) == count]
    if text.strip() and _SEPARATOR not in text:
        message = f"{command} answered {text.strip()[:80]!r}, which does not list jobs."
        raise SubmissionError(message, hint=_CONTROLLER_HINT, transient=True)
    return rows


def _uid(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _nodes(text: str) -> str:
    """Return the node list, empty for a job that ended in the queue."""
    return "" if text in ("None assigned", "(null)") else text


def _moment(text: str) -> float | None:
    """Parse a time in seconds since the epoch; ``None`` for ``N/A`` and similar words."""
    return float(text) if text.isdigit() and int(text) else None


def _exit(text: str) -> tuple[int | None, int | None]:
    """Parse ``code:signal`` as sacct and scontrol print it."""
    match = re.match(r"(\d+):(\d+)$", text)
    return (int(match[1]), int(match[2])) if match else (None, None)


def _refused(answer: subprocess.CompletedProcess[str], what: str) -> SubmissionError:
    message = (answer.stderr or answer.stdout).strip() or f"exit code {answer.returncode}"
    if any(sign in message for sign in _NO_CONFIGURATION):
        last = re.sub(r"^\w+: (error|fatal): ", "", message.splitlines()[-1])
        return SubmissionError(f"Slurm cannot be reached from this machine: {last}.", hint=_LOGIN_NODE_HINT)
    transient = any(sign in message for sign in _TRANSIENT)
    hint = _CONTROLLER_HINT if transient else None
    limit = limit_in(message) or ("AccountingPolicy" if "accounting/QOS policy" in message else None)
    if limit is not None:
        hint = f"squeue --me, and sacctmgr show assoc user=$USER or sacctmgr show qos, for the limit {limit}"
    # Account before partition: "Invalid account or account/partition combination specified" means the
    # account.
    elif re.search(r"\baccount\b", message, re.IGNORECASE):
        hint = "sacctmgr show assoc user=$USER, then set account in the cluster profile"
    elif re.search(r"\bpartition\b", message, re.IGNORECASE):
        hint = "sinfo, then set partition in the cluster profile"
    return SubmissionError(f"{what}: {message}", hint=hint, transient=transient)
