"""How often a Triton without a door is asked, by its own metrics."""

from __future__ import annotations

import http.client
import math
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.guests import ANYBODY, Visits
from trtllm_hpc.runtime.server_http import Refused

if TYPE_CHECKING:
    from trtllm_hpc.runtime.servers import ServerHttp

_DONE = re.compile(r"^nv_inference_request_(?:success|failure)\{[^}]*\} (\S+)$", re.MULTILINE)
_OPEN = re.compile(r"^nv_inference_pending_request_count\{[^}]*\} (\S+)$", re.MULTILINE)


class RequestCount:
    """Counts the requests of others than the leader's probe, and writes the count for the supervisor.

    An ensemble counts a request once for each of its models, too: how often, the probe's own requests show.
    """

    def __init__(self, paths: RunPaths, server: ServerHttp) -> None:
        self._paths, self._server = paths, server
        self._done, self._own, self._requests, self._each = 0.0, 0, 0.0, math.inf

    def look(self, own: int) -> None:
        """Read the metrics while no question of the probe is open; ``own``: how many it has asked so far."""
        with suppress(OSError, http.client.HTTPException, Refused):
            page = self._server.metrics()
            done, asked = sum(map(float, _DONE.findall(page))), own - self._own
            more = max(0.0, done - self._done)
            self._done, self._own = done, own
            if asked and more:
                self._each = min(self._each, more / asked)
                more -= asked * self._each
            if more > 0 or any(map(float, _OPEN.findall(page))):
                self._requests += more / (self._each if self._each < math.inf else 1)
                asked_by = {ANYBODY: [math.ceil(self._requests), time.time()]}
                Visits(asked=asked_by).write(self._paths.visits)
