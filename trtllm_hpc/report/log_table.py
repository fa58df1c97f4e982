"""The table of a run's logs, with first errors and causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.logs.causes.explain import Finding
from trtllm_hpc.logs.facts import logs_facts
from trtllm_hpc.logs.files import (
    CANCELLED,
    NEVER_STARTED,
    NO_RECORD,
    RUNNING,
    SILENT,
    list_logs,
    stage_of,
)
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.report.formatting import NONE, format_bytes
from trtllm_hpc.report.status import RankGroup, grouped
from trtllm_hpc.report.tables import Table, print_table, terminal_width
from trtllm_hpc.runs.status import run_status

_WELL = "ended 0"
_STOPPED = "stopped by "


@dataclass(frozen=True)
class LogRow:
    """One log of a run."""

    step: str
    """Stage or step; with several instances ``serve.0`` and so on."""
    rank: int | None
    """Rank; ``None``: the output of the batch script."""
    host: str | None
    state: str
    """State of the writing process, e.g. ``running``, ``ended 0``, ``stopped by companion``."""
    size_bytes: int | None
    """Size of the log; ``None`` if it does not exist yet."""
    first_error: str | None
    """The first line that looks like an error."""
    path: str

    @property
    def instance(self) -> int | None:
        """Number of the instance; ``None`` if there is only one."""
        number = self.step.partition(".")[2]
        return int(number) if number else None


def list_with_causes(run: RunPaths) -> tuple[list[LogRow], Sequence[Finding]]:
    """Return a row for each log of a run, and the causes of its failure, likeliest first.

    If a stage has not recorded its end, its state is from Slurm, if Slurm answers. Slurm is not asked if all
    logs ended well.
    """
    snapshot = RunSnapshot(run)
    logs = list_logs(snapshot)
    # Read the logs of failed ranks first.
    paths = [log.path for log in sorted(logs, key=lambda log: not log.state.startswith("failed"))]
    errors = {path: facts.first_error for path, facts in zip(paths, logs_facts(paths), strict=True)}
    rows = []
    for log in logs:
        error = errors[log.path]
        of_log = (log.size_bytes, error and snapshot.quoted(error), str(log.path))
        rows.append(LogRow(log.step, log.rank, log.host, log.state, *of_log))
    if all(log.state == _WELL or log.state.startswith(_STOPPED) for log in logs):
        return rows, ()
    try:
        status = run_status(snapshot)
    except SubmissionError:
        return rows, ()
    stages = {stage.stage: stage for stage in status.stages}
    for place, row in enumerate(rows):
        stage, state, of_script = stages.get(stage_of(row.step)), row.state, row.rank is None
        if stage is not None and stage.final and state == RUNNING:
            state = CANCELLED if of_script and stage.state == "CANCELLED" else SILENT
        elif stage is not None and state == NO_RECORD and of_script:
            state = NEVER_STARTED if stage.final else stage.state.lower()
        rows[place] = replace(row, state=state)
    return rows, status.causes


def print_logs(rows: Sequence[LogRow]) -> None:
    """Print the rows, grouped by state if there are many ranks, and first errors, cut to the terminal."""
    table = Table("step", "rank", "host", "state", "size", right=("rank", "size"), one_line=("size",))
    errors, groups = list[str](), list[RankGroup[LogRow]]()
    # Batch scripts have their own rows; the ranks of each step are grouped.
    for (_, of_rank), some in groupby(rows, lambda row: (row.step.partition(".")[0], row.rank is not None)):
        members = list(some)
        groups += grouped(members) if of_rank else [RankGroup((row,)) for row in members]
    for group in groups:
        sizes = [row.size_bytes for row in group.members if row.size_bytes is not None]
        size = format_bytes(sum(sizes)) if sizes else NONE
        kind = group.members[0].step.partition(".")[0]
        step = f"{kind}.{group.instances}" if group.instances else kind
        table.add_row(step, group.ranks or NONE, group.host or NONE, group.state, size)
        if having := [row for row in group.members if row.first_error]:
            more = f" and {len(having) - 1} more" if len(having) > 1 else ""
            which = f"{RankGroup((having[0],)).name}{more}: " if len(group.members) > 1 else ""
            ranks = f"[{group.ranks}]" if group.ranks else ""
            errors.append(f"{step}{ranks}: {which}{having[0].first_error}")
    print_table(table)
    width = terminal_width()
    for error in ("\nfirst errors:", *errors) if errors else ():
        print(error if width is None or len(error) <= width else f"{error[: width - 1]}…")
