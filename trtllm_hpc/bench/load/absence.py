"""When a server that is gone is waited for no longer."""

from __future__ import annotations

from trtllm_hpc.bench.load.replies import Reply
from trtllm_hpc.bench.records import NO_CONNECTION, OK

GIVE_UP_S = 30.0
"""So long nobody may be there. A server that starts anew within that time, as behind a proxy, costs the
requests meanwhile; one that takes longer has spoilt the measurement, and the rest of it is for nothing."""
LEAST_REQUESTS = 10
"""So many requests in a row must have found nobody."""


class Absence:
    """Takes note of each answer."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._requests = 0

    def lasts(self, reply: Reply) -> bool:
        """One more request has ended; whether nobody has been there for so long that the load should end."""
        if reply.status == OK or not (reply.error or "").startswith(NO_CONNECTION):
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s, self._requests = reply.ended_s, 0
        self._requests += 1
        return self._requests >= LEAST_REQUESTS and reply.ended_s - self._since_s >= GIVE_UP_S
