"""What the job writes can be read at any moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import Endpoint, add_event, read_events

ENDPOINT = Endpoint("7", "n1", "10.0.0.1", 1, 2, 3, ["ensemble"], 5.0, {"load": 1.5})


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path / "run")
    made.make_folders()
    return made


def test_a_record_is_read_as_it_was_written(paths: RunPaths) -> None:
    ENDPOINT.write(paths.endpoint)
    assert Endpoint.read(paths.endpoint) == ENDPOINT
    assert (ENDPOINT.http, ENDPOINT.grpc) == ("10.0.0.1:1", "10.0.0.1:2")
    assert ENDPOINT.metrics == "http://10.0.0.1:3/metrics"


@pytest.mark.parametrize("text", ["", '{"job_id": "7"', "[]", "null", "{}", '{"job_id": "7"}', "\udcff"])
def test_an_incomplete_record_is_none(paths: RunPaths, text: str) -> None:
    paths.endpoint.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert Endpoint.read(paths.endpoint) is None


def test_events_are_in_the_order_of_time_over_all_stages(paths: RunPaths) -> None:
    add_event(paths, "serve", "first")
    add_event(paths, "build", "second", step=2)
    add_event(paths, "serve", "third\nline")
    assert [event.name for event in read_events(paths)] == ["first", "second", "third\nline"]
    assert [event.data for event in read_events(paths, "build")] == [{"step": 2}]


def test_concurrent_writers_lose_no_line(paths: RunPaths) -> None:
    def write(writer: int) -> None:
        for number in range(50):
            add_event(paths, "serve", f"{writer}-{number}", filler="x" * 300)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert len({event.name for event in read_events(paths)}) == 200


def test_unicode_separators_do_not_split_a_line(paths: RunPaths) -> None:
    """``str.splitlines`` also splits at U+2028 and U+0085, which JSON writes as they are."""
    add_event(paths, "serve", "failed", reason="a\u2028b\x85c\x0bd")
    [event] = read_events(paths)
    assert event.data["reason"] == "a\u2028b\x85c\x0bd"
