"""Why a job is pending: Slurm's reasons in words, and where waiting does not help, what to do.

Sources: squeue(1), "JOB REASON CODES", and ``src/common/job_state_reason.c`` of Slurm 22.05 to 25.05. The
hundred and more names of limits are made of parts, so their sentences are too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    "ReqNodeNotAvail": "a node it needs is down, drained or reserved",
    "PartitionDown": "the partition is down; wait, or choose another partition in the profile",
    "PartitionInactive": "the partition is inactive; choose another partition in the profile",
    "PartitionNodeLimit": "it requests more nodes than the partition allows; lower serve.nodes",
    "PartitionTimeLimit": "it requests more time than the partition allows; lower time_limit_minutes",
    "PartitionConfig": "it requests something that the partition does not have",
    "AccountNotAllowed": "the partition does not allow this account; set account in the profile",
    "AccountingPolicy": "it is beyond a limit of your account; sacctmgr show assoc user=$USER lists them",
    "BadConstraints": "no node fulfils its constraint or GPU request; look at constraint and gpus_per_node",
    "Constraints": "no free node fulfils its constraint",
    "NodeDown": "a node it needs is down",
    "Reservation": "its reservation has not begun",
    "ReservationDeleted": "its reservation is gone; change reservation in the profile",
    "ReservationInvalid": "its reservation cannot be used; change reservation in the profile",
    "InvalidAccount": "the account is not valid; set account in the profile",
    "InvalidQOS": "the QOS is not valid; set qos in the profile",
    "InvalidReason": "the reason that Slurm gives is not valid",
    "AssociationJobLimit": "your account runs as many jobs as it may",
    "AssociationResourceLimit": "your account uses as much as it may",
    "AssociationTimeLimit": "your account has used up its time",
    "Licenses": "a licence it needs is in use",
    "QOSNotAllowed": "the partition does not allow this QOS; set qos in the profile",
    "QOSJobLimit": "your QOS runs as many jobs as it may",
    "QOSResourceLimit": "your QOS uses as much as it may",
    "QOSTimeLimit": "your QOS has used up its time",
    "QOSUsageThreshold": "your account's use is above what the QOS asks for",
    "Cleaning": "its last attempt is still being cleaned up",
    "JobArrayTaskLimit": "its array already runs as many jobs as allowed",
    "BurstBufferResources": "the burst buffer is full",
    "BurstBufferStageIn": "its files are being copied into the burst buffer",
    "BurstBufferOperation": "the burst buffer failed; ask the site's support",
    "NodesNotAvail": "nodes it needs are not available",
    "launch_failed_requeued_held": "its last launch failed; type: scontrol release {job}",
    "JobLaunchFailure": "its launch failed: a node, a file system or the prolog; submit again",
    "Prolog": "the site's prolog still prepares its nodes",
    "NonZeroExitCode": "it ended with an exit code other than 0",
    "RaisedSignal": "it ended by a signal",
    "TimeLimit": "it ran into its time limit; raise time_limit_minutes",
    "InactiveLimit": "it was idle for too long",
    "OutOfMemory": "it used more memory than it requested",
    "SystemFailure": "Slurm, a file system or the network failed; submit again",
    "DeadLine": "it can no longer end before its deadline; submit with a later one",
    "FedJobLock": "the clusters of the federation have not agreed yet which one starts it",
    "FrontEndDown": "no front-end node is available",
    "MaxMemPerLimit": "it requests more memory than the partition allows; lower memory_gib_per_node",
    "MaxPoweredUpNodes": "as many nodes are powered up as the site allows",
    "MpiPortsBusy": "the ports that its MPI needs are in use",
    "NvidiaImexChannels": "no IMEX channel for its GPUs is free",
    "SchedDefer": "Slurm schedules it later, on purpose",
}
"""Reasons by name; ``{job}`` is the job's id."""

_OWNERS = {"QOS": "your QOS", "Assoc": "your account", "": "the QOS for your account"}
_THINGS = {
    "BB": "burst buffer",
    "Billing": "billing units",
    "Cpu": "CPUs",
    "CPU": "CPUs",
    "Energy": "energy",
    "GRES": "GPUs",
    "Jobs": "running jobs",
    "Job": "running jobs",
    "License": "licences",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "SubmitJobs": "submitted jobs",
    "SubmitJob": "submitted jobs",
    "Unknown": "resources",
    "Wall": "run time",
    "WallDuration": "run time",
}
_LIMIT = re.compile(
    r"(?P<owner>QOS|Assoc|)(?P<kind>Grp|Max|Min)"
    rf"(?P<thing>{'|'.join(sorted(_THINGS, key=len, reverse=True))})"
    r"(?P<time>RunMinutes|RunMins|Minutes)?(?:Per(?P<per>Job|Node|User|Account))?(?:Limit|NotSatisfied)?$"
)
_WHERE = {"Job": "a job", "Node": "a node", "User": "a user", "Account": "an account"}
_NODES = re.compile(r"UnavailableNodes:\s*([^)\s]+)")
_NODES_MISSING = ("ReqNodeNotAvail", "NodeDown", "NodesNotAvail")
_UNAVAILABLE = "Nodes required for job are DOWN"
"""How the sentence begins that squeue shows instead of a word: Nodes required for job are DOWN, DRAINED or
reserved for jobs in higher priority partitions (``job_scheduler.c``)."""


def names_no_nodes(reason: str) -> bool:
    """Return whether a reason says that nodes are not available, and not which."""
    return _word_of(reason) in _NODES_MISSING and _NODES.search(reason) is None


@dataclass(frozen=True)
class Limit:
    """Which limit a reason is about."""

    of_qos: bool
    """Of the job's QOS; else of the account or of the user's part in it."""
    kind: str
    """``Grp`` (of all jobs together), ``Max`` or ``Min``, as the names of limits begin; empty: any."""


_UNNAMED_LIMIT = re.compile(r"AccountingPolicy|(Association|QOS)(Job|Resource|Time)Limit")


def limit_of(reason: str) -> Limit | None:
    """Return which limit a pending reason is about; ``None`` if it is about none."""
    word = _word_of(reason)
    if _UNNAMED_LIMIT.fullmatch(word):
        return Limit(word.startswith("QOS"), "")
    match = _LIMIT.match(word)
    return None if match is None else Limit(match["owner"] != "Assoc", match["kind"])


def explain_reason(reason: str, job_id: str | None = None, nodes: str = "") -> str:
    """Return a sentence for a pending reason; Slurm's own word if it is not known.

    Of ``(ReqNodeNotAvail, UnavailableNodes:n1)`` the first word counts, and the nodes are named, with those
    of ``nodes`` that are down or drained, and why.
    """
    word = _word_of(reason)
    sentence = REASONS.get(word) or _limit(word)
    if sentence is None:
        return f"Slurm's reason is {reason}" if reason else REASONS["None"]
    sentence = sentence.replace("{job}", job_id or "the job's id")
    if word not in _NODES_MISSING:
        return sentence
    named = _NODES.search(reason)
    sentence += f": {nodes or (named and named[1])}" if nodes or named else ""
    return f"{sentence} (wait, or ask your site; `sinfo -R` says why)"


def _word_of(reason: str) -> str:
    word = reason.strip("()").split(",")[0].strip()
    return "NodesNotAvail" if word == _UNAVAILABLE else word


def _limit(word: str) -> str | None:
    match = _LIMIT.match(word)
    if match is None:
        return None
    owner, thing = _OWNERS[match["owner"]], _THINGS[match["thing"]]
    if match["time"]:
        thing = f"{thing} times minutes"
    where = "" if match["per"] is None else f" {_WHERE[match['per']]}"
    if match["kind"] == "Min":
        return f"it requests less than {owner} asks for ({thing}); ask for more, or set another qos"
    if thing == "run time" and match["kind"] == "Max":
        return f"it requests more time than {owner} allows; lower time_limit_minutes"
    if match["per"] in ("Job", "Node"):
        return f"it requests more {thing} than {owner} allows{where}; ask for less"
    who = f"the jobs of {owner} together" if match["kind"] == "Grp" else "you"
    return f"{who} already use all the {thing} that {owner} allows{where}; wait, or ask for less"
