"""Slurm's job states and pending reasons as tables.

Sources: squeue(1) and sacct(1), "JOB STATE CODES"; squeue(1), "JOB REASON
CODES" (Slurm 22.05 to 24.05). A state that is not listed is reported as
unknown, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JobState:
    """What a state means for the run."""

    name: str
    final: bool
    """Whether the job stays in this state."""
    ok: bool
    """Whether the job succeeded."""
    sentence: str


def _table(*states: JobState) -> dict[str, JobState]:
    return {state.name: state for state in states}


STATES = _table(
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

LOST = JobState("LOST", True, False, "is known to neither squeue, sacct nor scontrol")
"""A submitted job that Slurm does not know; never treated as completed."""

INTERRUPTED = JobState(
    "INTERRUPTED", True, False, "was not submitted: the submission did not come to its end"
)

UNANSWERED = JobState("UNKNOWN", False, False, "is submitted; Slurm does not answer now")

NOT_SUBMITTED = JobState("NOT SUBMITTED", False, False, "is not submitted")


def parse_state(text: str) -> JobState:
    """Return the state that squeue or sacct printed.

    Of ``CANCELLED by 1000`` and ``RUNNING+`` only the first word counts.
    """
    name = text.split(" ")[0].rstrip("+").upper()
    return STATES.get(name) or JobState(
        name or "UNKNOWN", False, False, f"is in a state unknown here: {text!r}"
    )


REASONS = {
    "None": "Slurm has not given a reason yet",
    "Priority": "other jobs have a higher priority",
    "Resources": "the nodes it needs are busy",
    "Dependency": "an earlier stage must come first",
    "DependencyNeverSatisfied": "an earlier stage failed, so it can never start",
    "BeginTime": "its earliest start has not come yet",
    "JobHeldUser": "you hold it; type: scontrol release {job}",
    "JobHeldAdmin": "an administrator holds it, and only they can release it; ask your site about job {job}",
    "ReqNodeNotAvail": "a node it needs is down, drained or reserved; wait, or ask your site (sinfo -R)",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": "it requests more nodes than the partition allows; lower serve.nodes",
    "PartitionTimeLimit": "it requests more time than the partition allows; lower time_limit_minutes",
    "PartitionConfig": "it requests something that the partition does not have",
    "BadConstraints": "no node fulfils its constraint or GPU request; look at constraint and gpus_per_node",
    "NodeDown": "a node it needs is down; wait, or ask your site (sinfo -R)",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation is gone; change reservation in the profile",
    "InvalidAccount": "the account is not valid; set account in the profile",
    "InvalidQOS": "the QOS is not valid; set qos in the profile",
    "Licenses": "a licence it needs is in use",
    "QOSNotAllowed": "the partition does not allow this QOS",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as your QOS allows",
    "QOSMaxNodePerUserLimit": "you use as many nodes as your QOS allows",
    "QOSMaxGRESPerUser": "you use as many GPUs as your QOS allows",
    "QOSMaxWallDurationPerJobLimit": "it requests more time than your QOS allows",
    "QOSMaxCpuPerUserLimit": "you use as many CPUs as your QOS allows",
    "QOSGrpGRES": "your QOS group uses all its GPUs",
    "AssocMaxJobsLimit": "your account runs as many jobs as it is allowed to",
    "AssocGrpGRES": "your account uses all its GPUs",
    "AssocGrpCpuLimit": "your account uses all its CPUs",
    "AssocGrpNodeLimit": "your account uses all its nodes",
    "AssocMaxWallDurationPerJobLimit": "it requests more time than your account allows",
    "MaxMemPerLimit": "it requests more memory than the partition allows a node or CPU",
    "Cleaning": "its last attempt is still being cleaned up",
    "JobArrayTaskLimit": "its array already runs as many jobs as allowed",
    "BurstBufferResources": "the burst buffer is full",
    "NodesNotAvail": "nodes it needs are not available; wait, or ask your site (sinfo -R)",
    "launch_failed_requeued_held": "its last launch failed; type: scontrol release {job}",
}
"""Why a job is pending; where waiting does not help, what to change. ``{job}`` is its id."""

_UNAVAILABLE = "Nodes required for job are DOWN"
"""How the sentence begins that squeue shows instead of a word: Nodes required for job are DOWN, DRAINED or
reserved for jobs in higher priority partitions (``job_scheduler.c``)."""


def names_no_nodes(reason: str) -> bool:
    """Return whether a reason says that nodes are not available, and not which."""
    word = _word_of(reason)
    return word in ("ReqNodeNotAvail", "NodeDown", "NodesNotAvail") and "UnavailableNodes:" not in reason


def explain_reason(reason: str, job_id: str, nodes: str = "") -> str:
    """Return a sentence for a pending reason; Slurm's own word if it is not listed.

    Of ``(ReqNodeNotAvail, UnavailableNodes:n1)`` the first word counts, and the nodes are named.

    Args:
        nodes: which are down or drained, and why, if Slurm said so.
    """
    sentence = REASONS.get(_word_of(reason), f"Slurm's reason is {reason}" if reason else REASONS["None"])
    named = reason.strip("()").partition("UnavailableNodes:")[2] or nodes
    return sentence.replace("{job}", job_id) + (f": {named}" if named else "")


def _word_of(reason: str) -> str:
    word = reason.strip("()").split(",")[0].strip()
    return "NodesNotAvail" if word == _UNAVAILABLE else word
