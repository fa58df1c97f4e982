"""Who asks a server: counts, guests, and the end of a server that nobody asks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from trtllm_hpc.paths import RunPaths, write_json, write_text
from trtllm_hpc.runtime.instances import clients
from trtllm_hpc.runtime.instances.clients import ClientWatch
from trtllm_hpc.runtime.instances.proxies import Proxies
from trtllm_hpc.runtime.records import Visits, guest_keys, read_events


class FakeProxy:
    """What HAProxy counts, and the guests that it was given."""

    def __init__(self) -> None:
        self.counts: dict[str, tuple[int, int]] = {}
        self.guests: dict[str, str] = {}

    def asked(self) -> dict[str, tuple[int, int]]:
        return self.counts

    def admit(self, guests: dict[str, str]) -> None:
        self.guests = guests


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(clients, "time", made)
    return made


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.events.mkdir()
    return paths


def looks(of: ClientWatch, clock: Clock, until: float, *, serves: bool = True) -> str | None:
    """Look once a second up to a moment, or to the end of the server."""
    why = None
    while clock.now < until and why is None:
        clock.now += 1
        why = of.tick(serves=serves)
    return why


def watched(run: RunPaths, idle_s: float | None, proxy: FakeProxy) -> ClientWatch:
    proxies = SimpleNamespace(own=proxy)
    return ClientWatch(run, cast(Proxies, proxies), idle_s)


def test_a_server_that_nobody_asks_is_announced_and_ends(run: RunPaths, clock: Clock) -> None:
    proxy = FakeProxy()
    idle = watched(run, 120, proxy)
    assert looks(idle, clock, 1500, serves=False) is None, (
        "the time before the server is ready does not count"
    )
    assert looks(idle, clock, 1559) is None and read_events(run) == []
    assert looks(idle, clock, 1570) is None
    [announced] = read_events(run)
    assert (announced.name, announced.data) == ("idle", {"ends_at": 1620.0})
    proxy.counts = {"owner": (1, 0)}
    assert looks(idle, clock, 1571) is None
    assert read_events(run)[-1].data == {"ends_at": None}
    assert looks(idle, clock, 2000) == "nobody has asked for 2 minutes (serve.idle_minutes)"
    assert clock.now == 1691


def test_an_open_request_keeps_a_server(run: RunPaths, clock: Clock) -> None:
    proxy = FakeProxy()
    proxy.counts = {"alice": (1, 1)}
    idle = watched(run, 60, proxy)
    assert looks(idle, clock, 2000) is None
    proxy.counts = {"alice": (1, 0)}
    assert looks(idle, clock, 3000) is not None and clock.now == 2060


def test_counts_outlive_haproxy_and_the_job(run: RunPaths, clock: Clock) -> None:
    proxy = FakeProxy()
    watch = watched(run, None, proxy)
    for counted in (3, 5, 2):  # it was started again
        proxy.counts = {"owner": (counted, 0)}
        looks(watch, clock, clock.now + 6)
    assert Visits.read(run.visits) == Visits([], {"owner": [7, 1013.0]})
    looks(watched(run, None, proxy), clock, clock.now + 1)
    assert (Visits.read(run.visits) or Visits()).asked["owner"][0] == 9


def test_a_guest_is_let_in_until_the_key_expires(run: RunPaths, clock: Clock) -> None:
    proxy = FakeProxy()
    watch = watched(run, None, proxy)
    run.guest_key("alice").parent.mkdir()
    write_text(run.guest_key("alice"), "secret\n")
    write_json(run.guests, [{"name": "alice", "invited_at": 1.0, "expires_at": 1010.0}])
    looks(watch, clock, 1005)
    assert proxy.guests == {"secret": "alice"}
    assert (Visits.read(run.visits) or Visits()).admitted == ["alice"]
    run.guests.write_text("[")  # a file that cannot be read changes nothing
    looks(watch, clock, 1006)
    assert proxy.guests == {"secret": "alice"}
    write_json(run.guests, [{"name": "alice", "invited_at": 1.0, "expires_at": 1010.0}])
    looks(watch, clock, 1010)
    assert proxy.guests == {} and guest_keys(run, 1009.0) == {"secret": "alice"}
    assert (Visits.read(run.visits) or Visits()).admitted == []
