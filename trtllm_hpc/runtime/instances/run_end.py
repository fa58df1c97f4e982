"""What follows from the end of an instance, and whether it ends the whole run.

Pure functions, as in :mod:`trtllm_hpc.runtime.ending`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.blame import how_it_ended, rank_name, verdict
from trtllm_hpc.runtime.instances.instance import Instance, SupervisorOptions
from trtllm_hpc.runtime.records import RankRecord

STEP_GRACE_S = 30.0
"""For a step to end after one of its ranks has: more than a worker may outlive the leader. Slurm gives a lost
node minutes."""
ENDED_GRACE_S = 15.0
"""The same once every rank has ended: Slurm does not see that of tasks on a node that it cannot reach."""


@dataclass(frozen=True)
class RunEnd:
    """The run is to end with a failure."""

    sentence: str
    code: int = ExitCode.START
    event: str = "failed"
    is_cause: bool = True
    """Whether the sentence is the cause; otherwise records and logs of the ranks explain more."""


def after_end(
    instance: Instance,
    records: Sequence[RankRecord],
    returncode: int,
    options: SupervisorOptions,
    others: int,
) -> tuple[str, str | None, RunEnd | None]:
    """Return what follows when an instance has ended although the run goes on.

    ``others`` still live.

    Returns:
        The instance's new state, ``restarting``, ``failed``, or ``ended`` if Slurm ends the whole job; the
        reason; and the end of the run, if too few instances are left.
    """
    if records and len(records) == records[0].world_size and all(map(_was_signalled, records)):
        # Slurm ends the ranks of a cancelled job before the supervisor hears of it.
        return "ended", instance.reason, None
    reason = instance.lost or how_it_ended(records, returncode)
    restarts = _restarts(instance, options)
    living, state = others + restarts, "restarting" if restarts else "failed"
    if living >= options.minimum:
        return state, reason, None
    code = returncode if 0 < returncode < 128 else ExitCode.START
    if (role := options.role(instance.number)) is not None:
        sentence = f"the {role} server {instance.number} has ended: {reason}"
    elif options.count == 1:
        sentence = reason
    else:
        sentence = (
            f"{living} of {options.count} instances live, and serve.minimum_instances is "
            f"{options.minimum}; instance {instance.number}: {reason}"
        )
    # Records and logs of the ranks explain more, unless the node of a single server is lost.
    is_cause = instance.lost is not None or not (options.roles or options.count == 1)
    return state, reason, RunEnd(sentence, code, is_cause=is_cause)


def early_end(
    instance: Instance,
    records: Sequence[RankRecord],
    options: SupervisorOptions,
    others: int,
    *,
    is_stopping: bool,
) -> RunEnd | None:
    """Return whether the run ends as soon as a rank has recorded a fault: too few instances are left.

    Also while the run stops: a companion that got no answers has asked for it, and does not know why.
    """
    is_needed = not _restarts(instance, options) and others < options.minimum
    judge = verdict(records)
    if judge is None or not (is_stopping or is_needed):
        return None
    code = judge.task_exit_code if 0 < (judge.task_exit_code or 0) < 128 else None
    return RunEnd(how_it_ended(records, ExitCode.START), code or ExitCode.START)


def _restarts(instance: Instance, options: SupervisorOptions) -> bool:
    return instance.lost is None and instance.has_served and instance.restarts < options.restarts


def lost(
    instance: Instance, records: Sequence[RankRecord], silent: Mapping[int, str], over_s: float | None
) -> str | None:
    """Return why the step of an instance must be killed: Slurm waits minutes for a node that is lost.

    The leader is ``silent``, with the end of a sentence, or a rank has failed ``over_s`` seconds ago.
    """
    if silent and not any(record.rank == 0 and record.ended_at is not None for record in records):
        return f"{rank_name(records, instance.step, 0)}: {silent[0]}"
    ended = [record for record in records if record.ended_at is not None]
    grace_s = ENDED_GRACE_S if ended and len(ended) == ended[0].world_size else STEP_GRACE_S
    is_overdue = over_s is not None and over_s > grace_s
    return how_it_ended(records, ExitCode.START) if is_overdue else None


def _was_signalled(record: RankRecord) -> bool:
    return (record.stopped_by or "").startswith("SIG")
