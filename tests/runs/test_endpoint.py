"""How long a measurement waits for a server that it has lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runs import endpoint


@pytest.mark.parametrize(
    ("states", "waits"),
    [(["restarting"], True), (["failed", "ready"], True), (["ended"], False), (["failed", "ended"], False)],
)
def test_only_an_instance_that_can_come_back_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[str], waits: bool
) -> None:
    run, waited_s = RunPaths(tmp_path), list[float]()
    write_json(run.instances, [{"instance": number, "state": it} for number, it in enumerate(states)])
    monkeypatch.setattr(endpoint, "endpoint_of", lambda _run, wait_s: waited_s.append(wait_s))
    follow = endpoint.follower_of(run, restarts=True)
    assert follow is not None and endpoint.follower_of(run) is None
    follow()
    assert (waited_s[0] > 60) is waits
