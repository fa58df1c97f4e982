"""The logs of a run: one for each batch script, and one for each rank of each step."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.logs.state import rank_state, stage_over, stage_state
from trtllm_hpc.paths import (
    PROGRAMS,
    STAGES,
    STEPS,
    RunPaths,
    instance_count,
    preflight_steps,
    read_plan,
    serve_steps,
)
from trtllm_hpc.runtime.records import RankRecord, rank_records

_RECORDED = ("preflight", "serve")
"""Steps whose ranks write a record; other steps have one rank, whose state is the stage's."""

_STAGE_OF = dict.fromkeys(("repository", "preflight", "front", *PROGRAMS), "serve")
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
        try:
            return self.path.stat().st_size
        except OSError:
            return None


def stage_of(step: str) -> str:
    """Return the stage whose job a step runs in."""
    kind = _kind(step)
    return _STAGE_OF.get(kind, kind)


def _kind(step: str) -> str:
    """``serve`` for ``serve.1``, the step of instance 1."""
    return step.partition(".")[0]


def planned_ranks(paths: RunPaths, step: str) -> int | None:
    """Return the number of ranks of a step; ``None`` if neither the plan nor a rank record shows it.

    Of the step ``serve``: of the largest instance; of ``preflight``: of the largest component of the job.
    """
    if step not in _RECORDED:
        return 1
    plan = read_plan(paths)
    if "world_sizes" not in plan:
        return next((record.world_size for record in rank_records(paths, step)), None)
    sizes = plan["tasks" if step == "preflight" else "world_sizes"]
    return max(sizes) if isinstance(sizes, list) else int(sizes)  # a number: of all nodes, in older runs


def reason_without_build(paths: RunPaths) -> str | None:
    """Return why a run has no build stage; ``None`` if it has one, or the plan cannot be read."""
    plan = read_plan(paths)
    if "stages" not in plan or any(stage["name"] == "build" for stage in plan["stages"]):
        return None
    engine = plan.get("engine_found")
    if engine is None:
        return "its job file names a finished engine, or its backend needs none"
    return f"its engine came from the cache ({engine})"


def list_logs(
    paths: RunPaths, step: str | None = None, rank: int | None = None, instance: int | None = None
) -> list[LogFile]:
    """Return the run's logs in the order of steps and ranks, or only those of one step, instance or rank.

    A log that is not yet written is included if its batch script has been
    rendered, a rank's record implies it, or ``rank`` names it.
    """
    logs = []
    for name in STEPS if step is None else (step,):
        if rank is None and instance is None:
            logs += _batch_log(paths, name)
            for program in PROGRAMS if name == "serve" else {name}.intersection(PROGRAMS):
                if paths.batch_log(program).exists():
                    state, over = stage_state(paths, "serve"), stage_over(paths, "serve")
                    logs.append(LogFile(program, None, paths.batch_log(program), None, state, over))
        steps = [name]
        if name in _RECORDED:
            steps = serve_steps(instance_count(paths)) if name == "serve" else preflight_steps(paths)
        for one in steps if instance is None else steps[instance : instance + 1]:
            logs += _rank_logs(paths, one, rank)
    return logs


def _batch_log(paths: RunPaths, stage: str) -> list[LogFile]:
    files = (paths.sbatch(stage), paths.batch_log(stage), paths.stage_events(stage))
    if stage not in STAGES or not any(file.exists() for file in files):
        return []
    state = stage_state(paths, stage)
    over = stage_over(paths, stage)
    return [LogFile(stage, None, paths.batch_log(stage), None, state, over)]


def _rank_logs(paths: RunPaths, step: str, rank: int | None) -> list[LogFile]:
    """Return the logs of a step's ranks, or of one of them."""
    if rank is None:
        records = {record.rank: record for record in rank_records(paths, step)}
        ranks = _known_ranks(paths, step, records)
    else:
        record = RankRecord.read(paths.rank_record(step, rank))
        records = {} if record is None else {rank: record}
        ranks = {rank}
    if not ranks:
        return []
    over = stage_over(paths, stage_of(step))
    # Behind a door an instance that has ended may be started again.
    ends = not paths.instances.exists()
    of_stage = None if _kind(step) in _RECORDED else stage_state(paths, stage_of(step))
    logs = []
    for number in sorted(ranks):
        record = records.get(number)
        ended = over or (ends and record is not None and record.ended_at is not None)
        host = None if record is None else record.host
        state = rank_state(record, over) if of_stage is None else of_stage
        logs.append(LogFile(step, number, paths.rank_log(step, number), host, state, ended))
    return logs


def _known_ranks(paths: RunPaths, step: str, records: dict[int, RankRecord]) -> set[int]:
    """Return the ranks with a log or a record, and those that a record's world size implies."""
    ranks = _numbers(paths.logs, rf"{re.escape(step)}_(\d+)\.out")
    recorded = _numbers(paths.ranks, rf"{re.escape(step)}_(\d+)\.json")
    implied = max((record.world_size for record in records.values()), default=0)
    return ranks | recorded | set(range(implied))


def _numbers(folder: Path, pattern: str) -> set[int]:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - without a Path for each of thousands
    except OSError:
        return set()
    numbered = re.compile(pattern)
    return {int(match[1]) for name in names if (match := numbered.fullmatch(name))}
