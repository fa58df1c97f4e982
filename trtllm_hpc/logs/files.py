"""The logs of a run, one for each batch script and each rank of each step, and their writers' states."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.logs.reading import stat_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import PROGRAMS, STAGES, STEPS
from trtllm_hpc.runtime.blame import failed_by_itself
from trtllm_hpc.runtime.records import Event, RankRecord

RUNNING, NO_RECORD, NEVER_STARTED = "running", "no record", "never started"
SILENT, CANCELLED = "ended without a record", "cancelled"
_RECORDED = ("preflight", "serve")
"""Steps whose ranks write a record; other steps have one rank, whose state is the stage's."""
_STAGE_OF = dict.fromkeys(("staging", "repository", "preflight", "front", *PROGRAMS), "serve")
"""Stage of the steps that are no stage themselves."""


@dataclass(frozen=True)
class LogFile:
    """One log, written or not yet, and the state of its writer."""

    step: str
    rank: int | None
    """``None``: the output of the batch script."""
    path: Path
    host: str | None
    state: str
    over: bool
    """Whether nothing more will be written."""

    @property
    def name(self) -> str:
        """``serve[1]``, or ``serve`` for a batch script."""
        return self.step if self.rank is None else f"{self.step}[{self.rank}]"

    @property
    def instance(self) -> int | None:
        """Number of the instance; ``None`` where there is only one."""
        number = self.step.partition(".")[2]
        return int(number) if number else None

    @property
    def size_bytes(self) -> int | None:
        """Size now; ``None`` if the log is not there."""
        stat = stat_of(self.path)
        return None if stat is None else stat.st_size


def stage_of(step: str) -> str:
    """Return the stage whose job a step runs in; ``serve.1`` is the step of instance 1."""
    kind = step.partition(".")[0]
    return _STAGE_OF.get(kind, kind)


def last_mark(run: RunSnapshot, stage: str) -> Event | None:
    """Return the last event that shows whether a stage has begun, has ended or never begins."""
    events = reversed(run.events(stage))
    return next((event for event in events if event.name.startswith(("stage_", "submission_"))), None)


def stage_end(run: RunSnapshot, stage: str) -> Event | None:
    """Return the event that ended a stage, unless a later job has begun the stage again."""
    mark = last_mark(run, stage)
    return mark if mark is not None and mark.name != "stage_begin" else None


def _stage_state(run: RunSnapshot, stage: str) -> str:
    """Return the state of a stage's batch script."""
    end, events, request = stage_end(run, stage), run.events(stage), run.stop_request
    if end is None:
        earlier = (stage_end(run, name) for name in STAGES[: STAGES.index(stage)])
        failed = any(before is not None and before.data.get("exit_code") != 0 for before in earlier)
        return RUNNING if events else NEVER_STARTED if failed else NO_RECORD
    if end.name == "submission_interrupted":
        return "refused (half submitted)"
    begun = [event.time for event in events if event.name == "stage_begin"]
    if end.name == "stage_cancelled" and not begun:
        return NEVER_STARTED
    # The script may have recorded an end of its own after `cancel`.
    code = end.data.get("exit_code")
    cancelled_at = [event.time for event in events if event.name == "stage_cancelled"]
    if request is not None and request.by == "cancel" and code != 0 and request.requested_at <= end.time:
        cancelled_at.append(request.requested_at)
    is_cancelled = max(cancelled_at, default=-1.0) >= max(begun, default=0.0)
    return CANCELLED if is_cancelled else _exit_text(code)


def _rank_state(record: RankRecord | None, stage_over: bool) -> str:
    if record is None:
        return NO_RECORD
    if record.ended_at is None:
        return SILENT if stage_over else RUNNING
    if record.stopped_by is not None:
        return f"stopped by {record.stopped_by}"
    if record.exit_code == 0 and failed_by_itself(record):
        return "failed (ended without a request)"
    return _exit_text(record.exit_code)


def _exit_text(code: int | None) -> str:
    if not code:
        return "ended" if code is None else "ended 0"
    return f"failed ({signal_or_code(code)})"


def signal_or_code(code: int) -> str:
    """Return ``signal 9 (SIGKILL)`` for -9 and for 137 (the shell's code), else ``exit code N``."""
    number = -code if code < 0 else code - 128
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"exit code {code}"


def list_logs(
    run: RunSnapshot, step: str | None = None, rank: int | None = None, instance: int | None = None
) -> list[LogFile]:
    """Return the run's logs in the order of steps and ranks, or only those of one step, instance or rank.

    A log that is not yet written is included if its batch script has been
    rendered, a rank's record implies it, or ``rank`` names it.
    """
    logs = []
    for name in STEPS if step is None else (step,):
        if rank is None and instance is None:
            files = (run.paths.sbatch(name), run.paths.batch_log(name), run.paths.stage_events(name))
            scripts = [name] if name in STAGES and any(map(stat_of, files)) else []
            # The programs of the server's job run beside it, without a rank.
            programs = PROGRAMS if name == "serve" else {name}.intersection(PROGRAMS)
            scripts += [program for program in programs if stat_of(run.paths.batch_log(program))]
            for script in scripts:
                state, path = _stage_state(run, stage_of(script)), run.paths.batch_log(script)
                logs.append(LogFile(script, None, path, None, state, _is_over(state)))
        steps = run.steps(name)
        for step_of_instance in steps if instance is None else steps[instance : instance + 1]:
            logs += _rank_logs(run, step_of_instance, rank)
    return logs


def _is_over(state: str) -> bool:
    """Return whether a stage in that state has ended or can no longer start."""
    return state not in (RUNNING, NO_RECORD)


def _rank_logs(run: RunSnapshot, step: str, rank: int | None) -> list[LogFile]:
    """Return the logs of a step's ranks, or of one of them."""
    if rank is None:
        records = {record.rank: record for record in run.ranks(step)}
        implied = max((record.world_size for record in records.values()), default=0)
        ranks = run.ranks_with_logs.get(step, set()) | set(records) | set(range(implied))
    else:  # not the records of all: there may be a thousand
        record = RankRecord.read(run.paths.rank_record(step, rank))
        records, ranks = {} if record is None else {rank: record}, {rank}
    if not ranks:
        return []
    of_stage = _stage_state(run, stage_of(step))
    over, is_recorded, logs = _is_over(of_stage), step.partition(".")[0] in _RECORDED, []
    for number in sorted(ranks):
        record, path = records.get(number), run.paths.rank_log(step, number)
        state = _rank_state(record, over) if is_recorded else of_stage
        logs.append(LogFile(step, number, path, None if record is None else record.host, state, over))
    return logs
