"""A decoupled model that streams a token every 20 ms with the time of its send. Runs in Triton's Python stub.

Times are from the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

_GAP_S = 0.02


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._due: list[tuple[float, int, Any, int]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().item()
            with self._changed:
                self._add(time.monotonic(), request.get_response_sender(), count)
                self._changed.notify()

    def _add(self, due: float, sender: Any, left: int) -> None:
        heapq.heappush(self._due, (due, next(self._order), sender, left))

    def _send(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                due, _, sender, left = heapq.heappop(self._due)
                if left > 1:
                    self._add(due + _GAP_S, sender, left - 1)
            stamp = np.array([[time.monotonic_ns()]], dtype=np.int64)
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if left == 1 else 0
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("STAMP", stamp)]), flags=flags)
