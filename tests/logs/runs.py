"""Hand-made run folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.plans import write_plan
from trtllm_hpc.cli.logs import command
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import RankRecord


def make_run(folder: Path) -> RunPaths:
    paths = RunPaths(folder)
    paths.make_folders()
    write_plan(paths)
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


def followed(
    monkeypatch: pytest.MonkeyPatch,
    paths: RunPaths,
    *arguments: str,
    meanwhile: Sequence[Callable[[], object]],
) -> str:
    """What `logs --follow` prints. In each of its pauses the next thing happens."""
    happens = iter(meanwhile)
    with monkeypatch.context() as patch:
        patch.setattr("trtllm_hpc.logs.printing.time.sleep", lambda _: next(happens)())
        patch.setattr("trtllm_hpc.logs.printing._MOMENT_S", 60.0)
        result = logs(paths, "--follow", *arguments)
    assert result.exception is None, result.exception
    assert next(happens, None) is None, "it has not waited for the end"
    return result.output
