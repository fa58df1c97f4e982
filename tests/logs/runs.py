"""Hand-made run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    **facts: Any,
) -> None:
    """A rank on host ``n<rank>`` that started at 1.0; ``facts`` are further fields of its record."""
    if log is not None:
        paths.rank_log(step, rank).write_bytes(log.encode() if isinstance(log, str) else log)
    record = RankRecord(step, rank, world_size, "7", f"n{rank}", 100 + rank, 1.0, **facts)
    record.write(paths.rank_record(step, rank))


def logs(paths: RunPaths, *arguments: str) -> Result:
    # --runs: the argument's own default folder is the working directory's.
    return CliRunner().invoke(command, [str(paths.folder), "--runs", str(paths.folder.parent), *arguments])
