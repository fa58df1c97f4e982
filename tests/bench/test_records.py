"""Records as they lie in the run folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.load.grpc_server import grpc_server
from tests.waiting import eventually
from trtllm_hpc.bench import pass_file
from trtllm_hpc.bench.load.messages import Reply
from trtllm_hpc.bench.pass_file import PassFile
from trtllm_hpc.bench.records import UNFINISHED, append_records, read_records

from .make import request

RECORDS = [request(place, place, place + 50, chunks_ms=[place + 20, place + 50]) for place in range(3)]


def test_records_are_read_as_they_were_written_pass_by_pass(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    append_records(file, RECORDS[:2])
    append_records(file, [replace(RECORDS[2], error="two\nlines\u2028")])
    assert read_records(file) == [*RECORDS[:2], replace(RECORDS[2], error="two\nlines\u2028")]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_line_that_was_cut_off_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    append_records(file, RECORDS)
    whole = file.read_bytes()
    for cut in (1, 10, 200):
        file.write_bytes(whole[:-cut])
        assert read_records(file) == RECORDS[:2]


def ended(index: int) -> Reply:
    return Reply(index, 0.1 * index, 0.1 * index, 0.1 * index + 0.05, "ok", None)


def test_requests_are_written_while_their_pass_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_file, "_INTERVAL_S", 0.01)
    file = tmp_path / "mine.jsonl"
    append_records(file, RECORDS[:1])
    with PassFile(file, level=0, repeat=1) as writer:
        for index in range(200):
            writer.add(ended(index))
        assert eventually(lambda: len(read_records(file)) == 201)
        assert file.stat().st_mode & 0o777 == 0o600
        running = read_records(file)[1:]
        assert [record.index for record in running] == list(range(200))
        assert {(record.phase, record.repeat, record.measured) for record in running} == {
            (UNFINISHED, 1, False)
        }
        assert running[3].ended_s == pytest.approx(0.35)
        writer.finish(RECORDS[1:])
    assert read_records(file) == RECORDS
    assert [name.name for name in tmp_path.iterdir()] == ["mine.jsonl"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_pass_that_breaks_off_keeps_what_has_ended(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    with pytest.raises(ZeroDivisionError), PassFile(file, level=0, repeat=0) as writer:
        writer.add(ended(7))
        raise ZeroDivisionError
    assert [record.index for record in read_records(file)] == [7]


_KILLED = """
import sys
from pathlib import Path
from tests.bench.load.grpc_server import endpoint
from trtllm_hpc.bench import pass_file
from trtllm_hpc.bench.load.messages import Target
from trtllm_hpc.bench.load.loops import OpenPlan
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
pass_file._INTERVAL_S = 0.1
due_s = [number / 100 for number in range(15)] + [600]
with pass_file.PassFile(Path(sys.argv[2]), 0, 0) as file:
    plan = OpenPlan(Target(endpoint(int(sys.argv[1])), "m"), [b"x"] * 16, Clock(), due_s)
    run_load(plan, progress=file.add)
"""


def test_kill_9_after_fifteen_requests_keeps_fifteen(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    with grpc_server() as ready:
        process = subprocess.Popen([sys.executable, "-c", _KILLED, str(ready.grpc_port), str(file)])
        try:
            assert eventually(lambda: file.exists() and len(read_records(file)) == 15)
        finally:
            process.kill()
        assert process.wait() == -signal.SIGKILL
    assert sorted(record.index for record in read_records(file)) == list(range(15))  # as they ended
    assert all(record.ok and record.ended_s > record.sent_s for record in read_records(file))
