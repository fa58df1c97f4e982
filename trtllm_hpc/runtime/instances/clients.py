"""Who asks the server: guests are let in, requests counted, and a server that nobody asks ends."""

from __future__ import annotations

import time
from contextlib import suppress

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.guests import IDLE, Visits, guest_keys
from trtllm_hpc.runtime.instances.proxies import Proxies
from trtllm_hpc.runtime.proxy import Proxy
from trtllm_hpc.runtime.records import try_event

_LOOK_S = 1.0
_WRITE_S = 5.0
"""How often new counts are written."""
_WARNING_S = 600.0
"""How long before its end a server is announced to be idle, at most; at least half of the whole time."""


class ClientWatch:
    """Looks at the proxy: without a proxy nobody is counted, and no server ends idle."""

    def __init__(self, paths: RunPaths, proxies: Proxies, idle_s: float | None) -> None:
        self._paths, self._proxies, self._idle_s = paths, proxies, idle_s
        self._visits = self._written = Visits.read(paths.visits) or Visits()
        self._counts: dict[str, int] = {}
        self._look_at = self._write_at = 0.0
        self._asked_at = time.monotonic()
        self._is_warned = False

    def tick(self, *, serves: bool) -> str | None:
        """Look at most once a second; return a sentence once nobody has asked for too long."""
        now, proxy = time.monotonic(), self._proxies.own
        if now < self._look_at or proxy is None:
            return None
        self._look_at = now + _LOOK_S
        with suppress(OSError, ValueError):  # HAProxy is started again, or the file system fails: until then
            self._look_at_proxy(proxy, now)
        if not serves:
            self._asked_at = now
        return None if self._idle_s is None else self._idle(self._idle_s, self._asked_at + self._idle_s - now)

    def _look_at_proxy(self, proxy: Proxy, now: float) -> None:
        asked = dict(self._visits.asked)
        keys = guest_keys(self._paths, time.time())
        proxy.admit(keys)
        for name, (count, running) in proxy.asked().items():
            more = count - self._counts.get(name, 0)
            more = count if more < 0 else more  # HAProxy was started again, and counts from zero
            self._counts[name] = count
            if more or running:
                asked[name] = [asked.get(name, [0])[0] + more, time.time()]
                self._asked_at = now
        self._visits = Visits(sorted(keys.values()), asked)
        is_due = self._visits.admitted != self._written.admitted or now >= self._write_at
        if is_due and self._visits != self._written:
            self._visits.write(self._paths.visits)
            self._written, self._write_at = self._visits, now + _WRITE_S

    def _idle(self, idle_s: float, left_s: float) -> str | None:
        is_late = left_s <= min(_WARNING_S, idle_s / 2)
        minutes = f"{idle_s / 60:g} minute{'s' * (idle_s != 60)}"
        if is_late != self._is_warned:
            self._is_warned = is_late
            try_event(self._paths, "serve", IDLE, ends_at=time.time() + left_s if is_late else None)
        return f"nobody has asked for {minutes} (serve.idle_minutes)" if left_s <= 0 else None
