"""How many requests wait in a server, for who watches its run."""

from __future__ import annotations

import time

from trtllm_hpc.bench.server_metrics.sampling import fetch_page
from trtllm_hpc.bench.server_metrics.series import since_start
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.runtime.records import Endpoint

_PAUSE_S = 2.0


class ServerQueue:
    """The queue of a server, read from its metrics at most every two seconds.

    A page that cannot be read is not asked for again: the node may be out of this machine's reach, and the
    view must not wait for that time and again.
    """

    def __init__(self) -> None:
        self._waiting: int | None = None
        self._asked_at = 0.0
        self._unreachable: Endpoint | None = None

    def waiting(self, endpoint: Endpoint) -> int | None:
        """Return the requests that wait (behind a door: in instance 0); ``None`` if that is not known."""
        if endpoint == self._unreachable:
            return None
        if time.monotonic() - self._asked_at >= _PAUSE_S:
            try:
                self._waiting = _waiting(since_start(fetch_page(endpoint)))
            except RequestFailed:
                self._waiting, self._unreachable = None, endpoint
            self._asked_at = time.monotonic()
        return self._waiting


def _waiting(values: dict[str, float]) -> int | None:
    """Return the requests that wait for the engine; without that figure, those that Triton holds back."""
    engine = [value for key, value in values.items() if key.startswith("requests_waiting")]
    # An ensemble's request may also wait for one of its models: they are not added up.
    triton = [value for key, value in values.items() if key.startswith("pending[")]
    return int(sum(engine)) if engine else int(max(triton)) if triton else None
