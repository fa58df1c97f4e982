"""Slurm's job states as a table.

Source: squeue(1) and sacct(1), "JOB STATE CODES" (Slurm 22.05 to 25.05). A
state that is not listed is reported as unknown, never guessed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class JobState:
    """What a state means for the run."""

    name: str
    final: bool
    """Whether the job stays in this state."""
    ok: bool
    """Whether the job succeeded."""
    sentence: str


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
"""A job that Slurm itself has cancelled; squeue and sacct show it as CANCELLED."""

INTERRUPTED = JobState(
    "INTERRUPTED", True, False, "was not submitted: the submission did not come to its end"
)

UNANSWERED = JobState("UNKNOWN", False, False, "is submitted; Slurm does not answer now")

NOT_SUBMITTED = JobState("NOT SUBMITTED", False, False, "is not submitted")


def parse_state(text: str) -> JobState:
    """Return the state that squeue or sacct printed.

    Of ``CANCELLED by 1000`` and ``RUNNING+`` only the first word counts, but not of ``CANCELLED by 0``.
    """
    name = text.split(" ")[0].rstrip("+").upper()
    if text == "CANCELLED by 0" and os.getuid() != 0:
        sentence = "was cancelled by root: by Slurm (sinfo -R may show why) or an administrator"
        return replace(STATES[name], sentence=sentence)
    return STATES.get(name) or JobState(
        name or "UNKNOWN", False, False, f"is in a state unknown here: {text!r}"
    )


NO_OUTPUT_FILE = 53
"""Slurm's signal for a job whose output file or working folder it could not open on the node."""
