"""The table of a run's logs."""

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
    """The stage or its job step. With several instances, ``serve.0`` is the first instance."""
    rank: int | None
    """Number of the rank; ``None`` for the output of the batch script."""
    host: str | None
    state: str
    """State of the process that writes the log: ``running``, ``ended 0``, ``stopped by companion``..."""
    size_bytes: int | None
    """Size of the log in bytes; ``None`` until the log exists."""
    first_error: str | None
    """The first line that looks like an error."""
    path: str

    @property
    def instance(self) -> int | None:
        """Number of the instance; ``None`` if the run has a single instance."""
        number = self.step.partition(".")[2]
        return int(number) if number else None


def list_with_causes(run: RunPaths) -> tuple[list[LogRow], Sequence[Finding]]:
    """Return one row for each log of a run, and the causes of its failure, the likeliest first.

    If a stage has not recorded its own end, its state comes from Slurm, provided that Slurm answers. Slurm is
    not asked about a run whose logs all ended well.
    """
    snapshot = RunSnapshot(run)
    logs = list_logs(snapshot)
    # Logs of failed ranks are read first.
    paths = [log.path for log in sorted(logs, key=lambda log: not log.state.startswith("failed"))]
    errors = {path: facts.first_error for path, facts in zip(paths, logs_facts(paths), strict=True)}
    rows = []
    for log in logs:
        error = errors[log.path]
        file = (log.size_bytes, error and snapshot.quoted(error), str(log.path))
        rows.append(LogRow(log.step, log.rank, log.host, log.state, *file))
    if all(log.state == _WELL or log.state.startswith(_STOPPED) for log in logs):
        return rows, ()
    try:
        status = run_status(snapshot)
    except SubmissionError:
        return rows, ()
    stages = {stage.stage: stage for stage in status.stages}
    for place, row in enumerate(rows):
        stage, state, is_script = stages.get(stage_of(row.step)), row.state, row.rank is None
        if stage is not None and stage.final and state == RUNNING:
            state = CANCELLED if is_script and stage.state == "CANCELLED" else SILENT
        elif stage is not None and state == NO_RECORD and is_script:
            state = NEVER_STARTED if stage.final else stage.state.lower()
        rows[place] = replace(row, state=state)
    return rows, status.causes


def print_logs(rows: Sequence[LogRow]) -> None:
    """Print the rows, then the first errors. Many ranks in the same state share a row.

    A terminal shows the beginning of each error, a pipe the whole line.
    """
    table = Table("stage", "rank", "host", "state", "size", right=("rank", "size"), one_line=("size",))
    errors, groups = list[str](), list[RankGroup[LogRow]]()
    # Each batch script has its own row; the ranks of a step are grouped.
    for (_, is_rank), of_step in groupby(
        rows, lambda row: (row.step.partition(".")[0], row.rank is not None)
    ):
        members = list(of_step)
        groups += grouped(members) if is_rank else [RankGroup((row,)) for row in members]
    for group in groups:
        sizes = [row.size_bytes for row in group.members if row.size_bytes is not None]
        size = format_bytes(sum(sizes)) if sizes else NONE
        kind = group.members[0].step.partition(".")[0]
        step = f"{kind}.{group.instances}" if group.instances else kind
        table.add_row(step, group.ranks or NONE, group.host or NONE, group.state, size)
        if with_error := [row for row in group.members if row.first_error]:
            more = f" and {len(with_error) - 1} more" if len(with_error) > 1 else ""
            which = f"{RankGroup((with_error[0],)).name}{more}: " if len(group.members) > 1 else ""
            ranks = f"[{group.ranks}]" if group.ranks else ""
            errors.append(f"{step}{ranks}: {which}{with_error[0].first_error}")
    print_table(table)
    width = terminal_width()
    for error in ("\nfirst errors:", *errors) if errors else ():
        print(error if width is None or len(error) <= width else f"{error[: width - 1]}…")
