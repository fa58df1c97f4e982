"""How a run is: what Slurm says, what the job wrote, and one sentence for both."""

from __future__ import annotations

import enum
import signal
import time
from dataclasses import asdict, dataclass
from typing import Any

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.logs.diagnose import first_failure, stage_error
from trtllm_hpc.logs.files import list_logs
from trtllm_hpc.paths import RunPaths, read_json
from trtllm_hpc.runtime.records import Endpoint, Event, read_events
from trtllm_hpc.runtime.stage import GATE_TIMEOUT_S
from trtllm_hpc.scheduler.journal import Journal, read_journal
from trtllm_hpc.scheduler.processes import is_same_process
from trtllm_hpc.scheduler.slurm import JobInfo, Slurm
from trtllm_hpc.scheduler.states import INTERRUPTED, LOST, STATES, JobState, explain_reason

_SIGNALS = {number.value: number.name for number in signal.Signals}

_BLAMES_A_RANK = ("FAILED", "OUT_OF_MEMORY")
"""States in which the rank that died first is the cause; in others (a time limit...) it is not."""


class RunState(str, enum.Enum):
    """A run as a whole."""

    RENDERED = "rendered"
    """Written, not submitted."""
    PENDING = "pending"
    RUNNING = "running"
    SERVING = "serving"
    """The endpoint is published."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Whether nothing more will happen."""
        return self in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.LOST)


@dataclass(frozen=True)
class StageStatus:
    """One stage."""

    stage: str
    state: str
    """Slurm's name of the state; the same names with the local profile."""
    final: bool
    ok: bool
    sentence: str
    job_id: str | None = None
    nodes: str = ""
    exit_code: int | None = None


@dataclass(frozen=True)
class RankStatus:
    """One rank of the server, in its own words."""

    rank: int
    host: str | None
    state: str


@dataclass(frozen=True)
class RunStatus:
    """The whole run."""

    run_id: str
    folder: str
    state: RunState
    sentence: str
    stages: tuple[StageStatus, ...]
    ranks: tuple[RankStatus, ...]
    endpoint: Endpoint | None
    exit_code: ExitCode
    """What ``submit --wait`` leaves with when this is final."""

    @property
    def settled(self) -> bool:
        """Whether every stage has ended; after a failure the others need a moment more.

        A lost job never settles a run: accounting may only be late.
        """
        return self.state.final and self.state is not RunState.LOST and all(it.final for it in self.stages)

    def as_json(self) -> dict[str, Any]:
        """The status as plain JSON types."""
        return {**asdict(self), "state": self.state.value, "exit_code": int(self.exit_code)}


def run_status(paths: RunPaths, slurm: Slurm | None = None) -> RunStatus:
    """The state of a run now; one question to Slurm at most.

    Args:
        slurm: keep one over several calls, so that what was learned of the
            site (no accounting) is not asked again.
    """
    journal = read_journal(paths)
    events = read_events(paths)
    jobs = _job_ids(paths, journal, events)
    interrupted = _was_interrupted(paths, journal, events)
    if journal is not None and journal.scheduler == "local":
        stages = [_local_stage(name, journal, events) for name in jobs]
    elif journal is None and planned(paths, "scheduler") == "local":
        stages = [_by_hand(name, events) for name in jobs]
    else:
        conf = journal.slurm_conf if journal else planned(paths, "slurm_conf")
        slurm = slurm or Slurm(conf)
        if journal is None:
            jobs |= _waiting_by_hand(paths, slurm, jobs)
        answers = slurm.query(job for job in jobs.values() if job)
        stages = [_slurm_stage(name, job, answers, events, interrupted) for name, job in jobs.items()]
    return _whole(paths, stages, journal)


def _was_interrupted(paths: RunPaths, journal: Journal | None, events: list[Event]) -> bool:
    """Whether the submission stopped half-way: by its word, or by a silence longer than its jobs bear."""
    if journal is None or journal.complete:
        return False
    if any(event.name == "submission_interrupted" for event in events):
        return True
    try:
        return time.time() - paths.jobs.stat().st_mtime > GATE_TIMEOUT_S
    except FileNotFoundError:
        return False


def _waiting_by_hand(paths: RunPaths, slurm: Slurm, jobs: dict[str, str | None]) -> dict[str, str]:
    """Jobs that a person has submitted and that have not begun: they run our scripts, so Slurm knows them."""
    scripts = {paths.sbatch(stage): stage for stage, job in jobs.items() if job is None}
    return {scripts[script]: job for script, job in slurm.find_scripts(scripts).items()}


def planned(paths: RunPaths, key: str) -> str | None:
    """What the plan says, for a run whose scripts were submitted by hand."""
    value: str | None = (read_json(paths.plan) or {}).get(key)
    return value


def _job_ids(paths: RunPaths, journal: Journal | None, events: list[Event]) -> dict[str, str | None]:
    """Stage to job id, by the journal or, for scripts run by hand, by what they wrote."""
    plan = read_json(paths.plan) or {}
    jobs: dict[str, str | None] = {stage["name"]: None for stage in plan.get("stages", [])}
    for event in events:
        if event.name == "stage_begin" and event.stage in jobs:
            jobs[event.stage] = str(event.data.get("job_id") or "") or None
    for name, job in (journal.stages if journal else {}).items():
        # A stage that was run again by hand is followed under its newest id.
        jobs[name] = jobs.get(name) or job.job_id
    return jobs


def _marks(events: list[Event], stage: str) -> list[Event]:
    return [
        event for event in events if event.stage == stage and event.name.startswith(("stage_", "submission_"))
    ]


def _slurm_stage(
    name: str, job_id: str | None, answers: dict[str, JobInfo], events: list[Event], interrupted: bool
) -> StageStatus:
    if job_id is None:
        if interrupted:
            return StageStatus(name, INTERRUPTED.name, True, False, INTERRUPTED.sentence)
        return StageStatus(name, "NOT SUBMITTED", False, False, "is not submitted")
    info = answers.get(job_id)
    if info is None:
        return _forgotten(name, job_id, events)
    code = _own_exit_code(_marks(events, name), job_id, info)
    sentence = info.state.sentence
    if info.reason:
        sentence += f": {explain_reason(info.reason)}"
    if info.exit_signal and not info.state.ok:
        sentence += f" (its batch script was killed by signal {info.exit_signal})"
    elif info.state.name == "FAILED":
        sentence += _in_words(code)
    return StageStatus(
        name, info.state.name, info.state.final, info.state.ok, sentence, job_id, info.nodes, code
    )


def _own_exit_code(marks: list[Event], job_id: str, info: JobInfo) -> int | None:
    """The script's own word where it left one: sacct shows 137 as 9."""
    if (
        info.state.final
        and marks
        and marks[-1].name == "stage_end"
        and marks[-1].data.get("job_id") == job_id
    ):
        return int(marks[-1].data["exit_code"])
    return info.exit_code


def _in_words(code: int | None) -> str:
    if not code:
        return ""
    if code > 128 and (name := _SIGNALS.get(code - 128)):
        return f" (exit code {code}, as after {name})"
    return f" (exit code {code})"


def _forgotten(name: str, job_id: str, events: list[Event]) -> StageStatus:
    """A job that Slurm does not know any more: its own last words decide, else it is lost."""
    marks = _marks(events, name)
    if marks and marks[-1].name == "stage_end":
        return _ended(name, job_id, int(marks[-1].data.get("exit_code", 1)))
    return StageStatus(name, LOST.name, True, False, LOST.sentence, job_id)


def _ended(name: str, job_id: str | None, code: int) -> StageStatus:
    state = STATES["COMPLETED" if code == 0 else "FAILED"]
    sentence = state.sentence + _in_words(code)
    return StageStatus(name, state.name, True, state.ok, sentence, job_id, exit_code=code)


def _by_hand(name: str, events: list[Event]) -> StageStatus:
    """A stage of the local profile that a person runs with bash."""
    marks = _marks(events, name)
    if not marks:
        return StageStatus(name, "NOT SUBMITTED", False, False, "is not submitted")
    job_id = str(marks[-1].data.get("job_id", ""))
    if marks[-1].name == "stage_end":
        return _ended(name, job_id, int(marks[-1].data.get("exit_code", 1)))
    return _in_state(name, "RUNNING", job_id)


def _local_stage(name: str, journal: Journal, events: list[Event]) -> StageStatus:
    job = journal.stages.get(name)
    if job is None:
        state = STATES["PENDING"] if journal.complete else INTERRUPTED
        return StageStatus(name, state.name, state.final, False, state.sentence)
    marks = _marks(events, name)
    last = marks[-1].name if marks else ""
    if any(mark.name == "stage_cancelled" for mark in marks):
        # Its script may still have written its end after that.
        return _in_state(name, "CANCELLED", job.job_id)
    if last == "stage_end":
        return _ended(name, job.job_id, int(marks[-1].data.get("exit_code", 1)))
    if last == "stage_begin" and _group_lives(marks[-1]):
        return _in_state(name, "RUNNING", job.job_id)
    if is_same_process(int(job.job_id), job.process_started):
        return _in_state(name, "RUNNING" if last == "stage_begin" else "PENDING", job.job_id)
    if last == "stage_begin":
        return StageStatus(name, "FAILED", True, False, "has failed (its script was killed)", job.job_id)
    # Its controller ended before the script began: what it waited for failed.
    return _in_state(name, "CANCELLED", job.job_id)


def _group_lives(begin: Event) -> bool:
    """Whether the script that wrote this event still runs, its controller or not."""
    return is_same_process(int(begin.data.get("group", 0)), begin.data.get("group_started"))


def _in_state(name: str, state_name: str, job_id: str) -> StageStatus:
    state: JobState = STATES[state_name]
    return StageStatus(name, state.name, state.final, state.ok, state.sentence, job_id)


def _whole(paths: RunPaths, stages: list[StageStatus], journal: Journal | None) -> RunStatus:
    endpoint = Endpoint.read(paths.endpoint)
    state = _run_state(stages, journal, endpoint)
    broken = _culprit(stages) if state in (RunState.FAILED, RunState.CANCELLED, RunState.LOST) else None
    if state.final:
        endpoint = None  # a file that a killed leader left says nothing any more
    sentence = _sentence(paths, state, stages, broken)
    code = _exit_code(state, broken, paths)
    folder = str(paths.folder)
    return RunStatus(paths.run_id, folder, state, sentence, tuple(stages), _ranks(paths), endpoint, code)


def _ranks(paths: RunPaths) -> tuple[RankStatus, ...]:
    logs = list_logs(paths, "serve")
    return tuple(RankStatus(log.rank, log.host, log.state) for log in logs if log.rank is not None)


def _run_state(stages: list[StageStatus], journal: Journal | None, endpoint: Endpoint | None) -> RunState:
    names = {stage.state for stage in stages}
    if journal is None and names == {"NOT SUBMITTED"}:
        return RunState.RENDERED
    if any(stage.state == LOST.name for stage in stages):
        return RunState.LOST
    if any(stage.final and not stage.ok and stage.state != "CANCELLED" for stage in stages):
        return RunState.FAILED
    if "CANCELLED" in names:
        return RunState.CANCELLED
    if all(stage.ok for stage in stages):
        return RunState.COMPLETED
    if endpoint is not None and any(stage.state == "RUNNING" for stage in stages):
        return RunState.SERVING
    return RunState.RUNNING if names & {"RUNNING", "COMPLETING", "COMPLETED"} else RunState.PENDING


def _culprit(stages: list[StageStatus]) -> StageStatus | None:
    """The stage to blame: the first that failed by itself, else the first that is not well."""
    bad = [stage for stage in stages if stage.final and not stage.ok]
    return next((stage for stage in bad if stage.state != "CANCELLED"), bad[0] if bad else None)


def _sentence(paths: RunPaths, state: RunState, stages: list[StageStatus], broken: StageStatus | None) -> str:
    if broken is None:
        return _progress_sentence(state, stages) + _building(paths, stages)
    parts = [f"stage {broken.stage} {broken.sentence}"]
    refused = [event for event in read_events(paths, broken.stage) if "reason" in event.data]
    if broken.stage == "serve" and _failed_inside(paths, broken):
        return "; ".join(filter(None, [*parts, stage_error(paths, "companion")]))
    blame = broken.stage == "serve" and broken.state in _BLAMES_A_RANK
    failure = first_failure(paths, over=True) if blame else None
    if refused:
        parts.append(str(refused[-1].data["reason"]))
    elif failure is not None:
        parts.append(failure.sentence)
    elif broken.state == "FAILED" and (line := stage_error(paths, broken.stage)):
        parts.append(line)
    return "; ".join(parts)


def _failed_inside(paths: RunPaths, broken: StageStatus) -> bool:
    """Whether the companion ran inside this job's allocation, and the job ended with its code."""
    inside = read_events(paths, "companion")
    return bool(inside) and inside[-1].data.get("exit_code") == broken.exit_code


def _progress_sentence(state: RunState, stages: list[StageStatus]) -> str:
    if state is RunState.RENDERED:
        return "not submitted"
    if state is RunState.COMPLETED:
        return "every stage has ended well"
    busy = next((stage for stage in stages if not stage.final), None)
    return f"stage {busy.stage} {busy.sentence}" if busy else state.value


def _building(paths: RunPaths, stages: list[StageStatus]) -> str:
    """How far a build that runs is, in its own words."""
    if not any(stage.stage == "build" and stage.state == "RUNNING" for stage in stages):
        return ""
    told = [event.data for event in read_events(paths, "build") if event.name == "progress"]
    return f", step {told[-1]['step']} of {told[-1]['of']}: {told[-1]['message']}" if told else ""


def _exit_code(state: RunState, broken: StageStatus | None, paths: RunPaths) -> ExitCode:
    """What failed, as an exit code."""
    if state is RunState.LOST:
        return ExitCode.LOST
    if state is RunState.CANCELLED:
        return ExitCode.CANCELLED
    if broken is None:
        return ExitCode.OK
    if broken.state == INTERRUPTED.name or broken.exit_code == ExitCode.SUBMISSION:
        return ExitCode.SUBMISSION
    if broken.stage == "build":
        return ExitCode.BUILD
    if broken.stage == "serve":
        # With the companion inside its allocation, the serve job ends with the companion's code.
        inside = {ExitCode.READINESS, ExitCode.REQUEST, ExitCode.MEASUREMENT}
        if _failed_inside(paths, broken):
            inside.add(ExitCode.CONFIG)
        return next((code for code in inside if code == broken.exit_code), ExitCode.START)
    known = {ExitCode.CONFIG, ExitCode.START, ExitCode.READINESS, ExitCode.REQUEST, ExitCode.MEASUREMENT}
    return next((code for code in known if code == broken.exit_code), ExitCode.REQUEST)
