"""The leader watches the supervisor of the run."""

from __future__ import annotations

import pytest

from tests.runtime.conftest import Runtime
from tests.runtime.test_heartbeat import Clock
from trtllm_hpc.runtime.heartbeat import BEAT_S, Heartbeat
from trtllm_hpc.runtime.leader import SupervisorWatch
from trtllm_hpc.runtime.records import read_events
from trtllm_hpc.runtime.stop import SUPERVISOR


def test_only_a_silent_supervisor_is_in_trouble_not_one_with_a_stopped_child(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, paths = Clock(monkeypatch), runtime.paths
    own, theirs = Heartbeat(paths.rank_heartbeat("serve", 0)), paths.rank_heartbeat(SUPERVISOR, 0)
    watch = SupervisorWatch(paths, 45.0, paths.rank_heartbeat("serve", 0))

    def seconds(count: int, *, beats: bool) -> str | None:
        found = None
        for _ in range(count):
            clock.now += 1
            own.beat()
            if beats:
                theirs.write_text(f"{clock.now // BEAT_S} haproxy (12)".ljust(64))
            found = watch.look()
        return found

    assert seconds(60, beats=True) is None and read_events(paths) == []
    assert seconds(14, beats=False) is None
    [trouble] = read_events(paths, "serve")
    why = trouble.data["why"]
    assert why.startswith("the supervisor of the run gives no sign of life")
    assert seconds(40, beats=False) == why
    assert seconds(6, beats=True) is None
    assert read_events(paths, "serve")[-1].data == {"part": "supervisor", "why": None}
