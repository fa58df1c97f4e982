"""Records as they lie in the run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trtllm_hpc.bench.records import append_records, read_records

from .make import request

RECORDS = [request(place, place, place + 50, chunks_ms=[place + 20, place + 50]) for place in range(3)]


def test_records_are_read_as_they_were_written_without_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    odd = replace(RECORDS[2], error="two\nlines\u2028")
    append_records(file, RECORDS[:2])
    append_records(file, [odd])
    assert read_records(file) == [*RECORDS[:2], odd]
    assert file.stat().st_mode & 0o777 == 0o600
    whole = file.read_bytes()
    for cut in (1, 10, 200):
        file.write_bytes(whole[:-cut])
        assert read_records(file) == RECORDS[:2]
