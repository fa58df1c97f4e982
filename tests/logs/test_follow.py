"""`logs --follow` while the files are rotated, removed, truncated, or many."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trtllm_hpc.logs.printing import GrowingLog
from trtllm_hpc.logs.reading import LONGEST_LINE_BYTES
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import add_event

from .runs import add_rank, followed, make_run

LinesOf = Callable[[RunPaths, Callable[[], None]], list[str]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "serve_0.out"
    path.write_bytes(b"first\nsecond\n")
    return path


@pytest.fixture
def growing(log: Path) -> GrowingLog:
    """A log of which two lines have been read."""
    growing = GrowingLog(log)
    assert list(growing.new_lines()) == [b"first\n", b"second\n"]
    return growing


def append(log: Path, text: bytes) -> None:
    with log.open("ab") as file:
        file.write(text)


def test_a_log_that_is_truncated_is_read_anew(log: Path, growing: GrowingLog) -> None:
    log.write_bytes(b"another\n")
    assert list(growing.new_lines()) == [b"another\n"]


def test_a_log_that_is_replaced_is_read_anew(log: Path, growing: GrowingLog) -> None:
    append(log, b"thi")
    assert list(growing.new_lines()) == []
    log.rename(log.with_suffix(".out.1"))
    log.write_bytes(b"another attempt, longer than the first\n")
    assert list(growing.new_lines()) == [b"thi", b"another attempt, longer than the first\n"]


def test_a_removed_log_is_waited_for(log: Path, growing: GrowingLog) -> None:
    log.unlink()
    assert list(growing.new_lines()) == []
    log.write_bytes(b"once more\n")
    assert list(growing.new_lines()) == [b"once more\n"]


def test_a_line_without_its_end_is_shown_after_a_moment(
    log: Path, growing: GrowingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"loading 10 %")
    assert list(growing.new_lines()) == []
    monkeypatch.setattr("trtllm_hpc.logs.printing._MOMENT_S", 0.0)
    assert list(growing.new_lines()) == [b"loading 10 %"]
    assert list(growing.new_lines()) == []
    monkeypatch.setattr("trtllm_hpc.logs.printing._MOMENT_S", 60.0)
    append(log, b" 20 %\nready\n")
    assert list(growing.new_lines()) == [b" 20 %\n", b"ready\n"]


def test_a_long_line_comes_in_pieces(log: Path, growing: GrowingLog) -> None:
    append(log, b"x" * (LONGEST_LINE_BYTES + 3) + b"\nshort\n")
    assert list(growing.new_lines()) == [b"x" * LONGEST_LINE_BYTES, b"xxx\n", b"short\n"]


@contextmanager
def open_files(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(params=[True, False], ids=["at its end", "before its end"])
def lines_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LinesOf:
    """The lines of `logs --follow` of a running server, where something happens at its end or before it."""

    def lines_of(run: RunPaths, meanwhile: Callable[[], None]) -> list[str]:
        def end() -> None:
            if request.param:
                meanwhile()
            add_event(run, "serve", "stage_end", exit_code=0)

        happens = [end] if request.param else [meanwhile, end]
        return followed(monkeypatch, run, "--stage", "serve", meanwhile=happens).splitlines()

    return lines_of


def test_more_ranks_than_open_files_are_followed(tmp_path: Path, lines_of: LinesOf) -> None:
    run = make_run(tmp_path / "run")
    add_event(run, "serve", "stage_begin")
    for rank in range(100):
        run.rank_log("serve", rank).write_text("up\n")
    add_rank(run, 0, world_size=100)
    with open_files(64):
        lines = lines_of(run, lambda: append(run.rank_log("serve", 99), b"more\n"))
    assert lines[:100] == [f"serve[{rank}] up" for rank in range(100)] and lines[-1] == "serve[99] more"
