"""Why a job is pending: Slurm's reasons in words, and where waiting does not help, what to do.

Sources: squeue(1), "JOB REASON CODES", and ``src/common/job_state_reason.c`` of Slurm 22.05 to 25.05.
"""

from __future__ import annotations

import re

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
"""Reasons by name; ``{job}`` is the job's id."""

_LIMIT = re.compile(
    r"(QOS|Assoc|)(Grp|Max|Min)[A-Z]\w+|AccountingPolicy|(Association|QOS)\w+Limit|QOSUsageThreshold"
)
_UNAVAILABLE = "Nodes required for job are DOWN"
"""How the sentence begins that squeue shows instead of a word: Nodes required for job are DOWN, DRAINED or
reserved for jobs in higher priority partitions (``job_scheduler.c``)."""


def limit_in(text: str) -> str | None:
    """Return the first name of a limit in a text, such as ``QOSMaxJobsPerUserLimit``."""
    return next((word for word in re.findall(r"\w+", text) if _LIMIT.fullmatch(word)), None)


def explain_reason(reason: str, job_id: str) -> str:
    """Return a sentence for a pending reason; Slurm's own word if it is not known.

    Of ``(ReqNodeNotAvail, UnavailableNodes:n1)`` the first word counts.
    """
    word = reason.strip("()").split(",")[0].strip() or "None"
    word = "NodesNotAvail" if word == _UNAVAILABLE else word
    if word in REASONS:
        return REASONS[word].replace("{job}", job_id)
    if limit_in(word) == word:
        command = "show qos" if word.startswith("QOS") else "show assoc user=$USER"
        return f"a limit of your account or QOS holds it ({word}): sacctmgr {command}"
    return f"Slurm's reason is {reason}"
