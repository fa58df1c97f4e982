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


def test_a_log_that_is_truncated_and_written_beyond_its_old_length_is_read_anew(
    log: Path, growing: GrowingLog
) -> None:
    log.write_bytes(b"another attempt, longer than the first\nsecond\n")
    assert list(growing.new_lines()) == [b"another attempt, longer than the first\n", b"second\n"]


def test_of_a_rotated_log_the_rest_and_the_new_one_are_read(log: Path, growing: GrowingLog) -> None:
    append(log, b"third\nfour")
    log.rename(log.with_suffix(".out.1"))
    log.write_bytes(b"new\n")
    assert list(growing.new_lines()) == [b"third\n", b"four", b"new\n"]
    append(log, b"newer\n")
    assert list(growing.new_lines()) == [b"newer\n"]


def test_a_log_is_read_on_where_it_was_moved_until_there_is_a_new_one(log: Path, growing: GrowingLog) -> None:
    moved = log.with_suffix(".out.1")
    log.rename(moved)
    append(moved, b"third\n")
    assert list(growing.new_lines()) == [b"third\n"]
    log.write_bytes(b"new\n")
    assert list(growing.new_lines()) == [b"new\n"]


def test_a_removed_log_is_waited_for(log: Path, growing: GrowingLog) -> None:
    log.unlink()
    assert list(growing.new_lines()) == []
    log.write_bytes(b"first\nonce more\n")
    # The file system may give the new file the old one's number; it is another file all the same.
    assert list(growing.new_lines())[-1] == b"once more\n"


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
    assert list(growing.new_lines()) == ["… 20 %\n".encode(), b"ready\n"]


def test_the_end_of_a_line_that_was_shown_is_no_line(
    log: Path, growing: GrowingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtllm_hpc.logs.printing._MOMENT_S", 0.0)
    append(log, b"done?")
    assert list(growing.new_lines()) == [b"done?"]
    append(log, b"\nyes\n")
    assert list(growing.new_lines()) == [b"yes\n"]


def test_a_long_line_is_marked_where_it_is_cut(log: Path, growing: GrowingLog) -> None:
    append(log, b"x" * (LONGEST_LINE_BYTES + 3) + b"\nshort\n")
    mark = "…".encode()
    assert list(growing.new_lines()) == [b"x" * LONGEST_LINE_BYTES + mark, mark + b"xxx\n", b"short\n"]


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


def test_a_rotated_log_is_followed(tmp_path: Path, lines_of: LinesOf) -> None:
    run = make_run(tmp_path / "run")
    add_event(run, "serve", "stage_begin")
    add_rank(run, 0, world_size=1, log="one\n")
    log = run.rank_log("serve", 0)

    def rotate() -> None:
        append(log, b"two\n")
        log.rename(log.with_suffix(".out.1"))
        log.write_bytes(b"three\n")

    assert lines_of(run, rotate) == ["serve[0] one", "serve[0] two", "serve[0] three"]
