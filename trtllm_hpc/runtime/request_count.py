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
    """Counts the spans between two looks in which others than the leader's probe have asked.

    An ensemble counts a request once for each of its models, too: how often, the probe's own requests show.
    """

    def __init__(self, paths: RunPaths, server: ServerHttp) -> None:
        self._paths, self._server = paths, server
        self._done, self._own, self._left_out = 0.0, 0, 0
        self._spans, self._each = 0, math.inf

    def look(self, own: int, left_out: int) -> None:
        """Read the metrics while no question of the probe is open.

        Args:
            own: how many questions the probe has asked so far.
            left_out: how many it has left out, because others were answered.
        """
        with suppress(OSError, http.client.HTTPException, Refused):
            page = self._server.metrics()
            done, asked = sum(map(float, _DONE.findall(page))), own - self._own
            more, others = max(0.0, done - self._done), left_out - self._left_out
            self._done, self._own, self._left_out = done, own, left_out
            if asked and more and not others:
                self._each = min(self._each, more / asked)
            expected = asked * self._each if asked else 0.0
            if others or more > expected + 0.5 or any(map(float, _OPEN.findall(page))):
                self._spans += 1
                Visits(asked={ANYBODY: [self._spans, time.time()]}).write(self._paths.visits)
