"""Slurm's job states and pending reasons in words, with advice where waiting does not help.

Sources: squeue(1) and sacct(1), "JOB STATE CODES"; squeue(1), "JOB REASON CODES", and
``src/common/job_state_reason.c`` (Slurm 22.05 to 25.05). A state that is not listed is reported as unknown,
never guessed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class JobState:
    """A job state and its meaning for the run."""

    name: str
    final: bool
    """Whether the job stays in this state."""
    ok: bool
    """Whether the job succeeded."""
    sentence: str
    """The state in words, to follow the job's name."""


_STATES = (
    JobState("PENDING", False, False, "waits in the queue"),
    JobState("CONFIGURING", False, False, "has its nodes, which are being made ready"),
    JobState("RUNNING", False, False, "runs"),
    JobState("COMPLETING", False, False, "has ended; its processes are being cleaned up"),
    JobState("SUSPENDED", False, False, "is suspended by Slurm"),
    JobState("STOPPED", False, False, "is stopped by a signal and keeps its nodes"),
    JobState("REQUEUED", False, False, "is back in the queue"),
    JobState("REQUEUE_HOLD", False, False, "is back in the queue and held"),
    JobState("REQUEUE_FED", False, False, "is back in the queue of a federation"),
    JobState("RESIZING", False, False, "changes its size"),
    JobState("SIGNALING", False, False, "is being sent a signal"),
    JobState("STAGE_OUT", False, False, "copies its files out"),
    JobState("SPECIAL_EXIT", False, False, "was requeued in a special state by the site"),
    JobState("RESV_DEL_HOLD", False, False, "is held because its reservation is gone"),
    JobState("COMPLETED", True, True, "has completed"),
    JobState("FAILED", True, False, "has failed"),
    JobState("TIMEOUT", True, False, "ran into its time limit"),
    JobState("OUT_OF_MEMORY", True, False, "used more memory than it requested"),
    JobState("NODE_FAIL", True, False, "lost a node"),
    JobState("BOOT_FAIL", True, False, "was given a node that did not boot"),
    JobState("DEADLINE", True, False, "could not end before its deadline"),
    JobState("CANCELLED", True, False, "was cancelled"),
    JobState("PREEMPTED", True, False, "was preempted by another job"),
    JobState("REVOKED", True, False, "was moved to another cluster of the federation"),
)
STATES = {state.name: state for state in _STATES}

LOST = JobState("LOST", True, False, "is known to neither squeue, sacct nor scontrol")
"""A submitted job that Slurm does not know; never treated as completed."""

PROLOG_FAILED = JobState("PROLOG_FAILED", True, False, "was ended: the site's prolog failed on {node}")
"""A job that Slurm cancelled because of its prolog; squeue and sacct show it as CANCELLED."""

INTERRUPTED = JobState("INTERRUPTED", True, False, "was not submitted: the submission was not completed")

UNANSWERED = JobState("UNKNOWN", False, False, "is submitted; Slurm does not answer now")

NOT_SUBMITTED = JobState("NOT SUBMITTED", False, False, "is not submitted")


def parse_state(text: str) -> JobState:
    """Return the state that squeue or sacct printed.

    Only the first word counts, as in ``CANCELLED by 1000`` and ``RUNNING+``; ``CANCELLED by 0``, by root,
    gets a sentence of its own.
    """
    name = text.split(" ")[0].rstrip("+").upper()
    if text == "CANCELLED by 0" and os.getuid() != 0:
        sentence = "was cancelled by root: by Slurm (sinfo -R may show why) or an administrator"
        return replace(STATES[name], sentence=sentence)
    return STATES.get(name) or JobState(
        name or "UNKNOWN", False, False, f"is in a state unknown here: {text!r}"
    )


NO_OUTPUT_FILE = 53
"""Signal number that Slurm shows if it could not open a job's output file or working folder on the node."""


# Why a job is pending -----------------------------------------------------------------

REASONS = {
    "None": "Slurm has not given a reason yet",
    "Priority": "other jobs have a higher priority",
    "Resources": "the nodes it needs are busy",
    "Dependency": "an earlier stage must come first",
    "DependencyNeverSatisfied": "an earlier stage failed, so it can never start; type: scancel {job}",
    "BeginTime": "its earliest start has not come yet",
    "JobHeldUser": "you hold it; type: scontrol release {job}",
    "JobHeldAdmin": "an administrator holds it, and only they can release it; ask your site about job {job}",
    "JobHoldMaxRequeue": "it was requeued too often and is held; type: scontrol release {job}",
    "launch_failed_requeued_held": "its last launch failed; type: scontrol release {job}",
    "ReqNodeNotAvail": "a node it needs is down, drained or reserved (wait, or ask your site; "
    "`sinfo -R` says why)",
    "NodesNotAvail": "nodes it needs are not available (wait, or ask your site; `sinfo -R` says why)",
    "PartitionDown": "the partition is down; wait, or choose another partition in the profile",
    "PartitionInactive": "the partition is inactive; choose another partition in the profile",
    "PartitionNodeLimit": "it requests more nodes than the partition allows; lower serve.nodes",
    "PartitionTimeLimit": "it requests more time than the partition allows; lower time_limit_minutes",
    "PartitionConfig": "it requests something that the partition does not have",
    "AccountNotAllowed": "the partition does not allow this account; set account in the profile",
    "BadConstraints": "no node fulfils its constraint or GPU request; look at constraint and gpus_per_node",
    "Constraints": "no free node fulfils its constraint",
    "NodeDown": "a node it needs is down (wait, or ask your site; `sinfo -R` says why)",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation is gone; change reservation in the profile",
    "InvalidAccount": "the account is not valid; set account in the profile",
    "InvalidQOS": "the QOS is not valid; set qos in the profile",
    "QOSNotAllowed": "the partition does not allow this QOS; set qos in the profile",
    "Licenses": "a licence it needs is in use",
    "JobLaunchFailure": "its launch failed: a node, a file system or the prolog; submit again",
    "MaxMemPerLimit": "it requests more memory than the partition allows; lower memory_gib_per_node",
}
"""Sentence for each reason; ``{job}`` is the job's ID."""

_LIMIT = re.compile(
    r"(QOS|Assoc|)(Grp|Max|Min)[A-Z]\w+|AccountingPolicy|(Association|QOS)\w+Limit|QOSUsageThreshold"
)
_UNAVAILABLE = "Nodes required for job are DOWN"
"""Beginning of a sentence that squeue shows in place of a word: Nodes required for job are DOWN, DRAINED or
reserved for jobs in higher priority partitions (``job_scheduler.c``)."""


def limit_in(text: str) -> str | None:
    """Return the first name of a limit in a text, such as ``QOSMaxJobsPerUserLimit``."""
    return next((word for word in re.findall(r"\w+", text) if _LIMIT.fullmatch(word)), None)


def explain_reason(reason: str, job_id: str) -> str:
    """Return a sentence for a pending reason, or Slurm's own word if the reason is unknown.

    The first word counts, as in ``(ReqNodeNotAvail, UnavailableNodes:n1)``.
    """
    word = reason.strip("()").split(",")[0].strip() or "None"
    word = "NodesNotAvail" if word == _UNAVAILABLE else word
    if word in REASONS:
        return REASONS[word].replace("{job}", job_id)
    if limit_in(word) == word:
        command = "show qos" if word.startswith("QOS") else "show assoc user=$USER"
        return f"a limit of your account or QOS holds it ({word}): sacctmgr {command}"
    return f"Slurm's reason is {reason}"
