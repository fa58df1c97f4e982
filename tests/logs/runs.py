"""Hand-made run folders."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from trtllm_hpc.cli.logs import command
from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runtime.records import RankRecord


def make_run(folder: Path) -> RunPaths:
    paths = RunPaths(folder)
    paths.make_folders()
    write_json(paths.plan, {"name": "demo"})
    return paths


def add_rank(
    paths: RunPaths,
    rank: int,
    *,
    step: str = "serve",
    world_size: int = 2,
    log: str | bytes | None = None,
    ended_at: float | None = None,
    exit_code: int | None = None,
    stopped_by: str | None = None,
    reason: str | None = None,
) -> None:
    """A rank on host ``n<rank>`` that started at 1.0."""
    if log is not None:
        paths.rank_log(step, rank).write_bytes(log.encode() if isinstance(log, str) else log)
    RankRecord(
        step, rank, world_size, "7", f"n{rank}", 100 + rank, 1.0, ended_at, exit_code, stopped_by, reason
    ).write(paths.rank_record(step, rank))


def logs(paths: RunPaths, *arguments: str) -> Result:
    # --runs: the argument's own default folder is the working directory's.
    return CliRunner().invoke(command, [str(paths.folder), "--runs", str(paths.folder.parent), *arguments])
