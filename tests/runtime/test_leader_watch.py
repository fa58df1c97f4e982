"""The leader watches the supervisor of the run."""

from __future__ import annotations

import pytest

from tests.runtime.conftest import Runtime
from tests.runtime.test_heartbeat import Clock
from trtllm_hpc.runtime.heartbeat import BEAT_S, Heartbeat
from trtllm_hpc.runtime.leader import Leader
from trtllm_hpc.runtime.records import read_events
from trtllm_hpc.runtime.server_spec import RankOptions, ServerSpec
from trtllm_hpc.runtime.stop import SUPERVISOR


def test_only_a_silent_supervisor_is_in_trouble_not_one_with_a_stopped_child(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRTLLM_HPC_ADDRESS", "TRTLLM_HPC_HTTP_PORT"):
        monkeypatch.setenv(name, "1")
    clock, paths = Clock(monkeypatch), runtime.paths
    own, theirs = Heartbeat(paths.rank_heartbeat("serve", 0)), paths.rank_heartbeat(SUPERVISOR, 0)
    options = RankOptions(0, 2, 1, "trt", 1.0, ServerSpec("openai", ["serve"]), hang_seconds=45.0)
    leader = Leader(paths, options)

    def seconds(count: int, *, beats: bool) -> str | None:
        found = None
        for _ in range(count):
            clock.now += 1
            own.beat()
            if beats:
                theirs.write_text(f"{clock.now // BEAT_S} haproxy (12)".ljust(64))
            found = leader.supervisor_fault({})
        return found

    assert seconds(60, beats=True) is None and read_events(paths) == []
    assert seconds(14, beats=False) is None
    [trouble] = read_events(paths, "serve")
    why = trouble.data["why"]
    assert why.startswith("the supervisor of the run gives no sign of life")
    assert seconds(40, beats=False) == why
    assert seconds(6, beats=True) is None
    assert read_events(paths, "serve")[-1].data == {"part": "supervisor", "why": None}


def test_a_stopped_process_of_a_rank_is_in_trouble_until_it_goes_on(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRTLLM_HPC_ADDRESS", "TRTLLM_HPC_HTTP_PORT"):
        monkeypatch.setenv(name, "1")
    options = RankOptions(0, 2, 1, "trt", 1.0, ServerSpec("openai", ["serve"]), step="serve.1")
    leader = Leader(runtime.paths, options)
    for stopped in ({1: "its process python (7) is stopped (SIGSTOP)"}, {}):
        leader.supervisor_fault(stopped)
    assert [event.data for event in read_events(runtime.paths, "serve")] == [
        {"part": "serve.1/1", "why": "rank 1 of instance 1: its process python (7) is stopped (SIGSTOP)"},
        {"part": "serve.1/1", "why": None},
    ]
