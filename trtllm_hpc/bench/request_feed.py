"""Gives each pass of a measurement its requests from the workload, serialised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trtllm_hpc.bench.load.messages import Target, encode_request
from trtllm_hpc.bench.workload.build import make_workload
from trtllm_hpc.bench.workload.request import Request, WorkloadSpec


@dataclass(frozen=True)
class PassRequests:
    """The requests of one pass."""

    first_index: int
    """Index of the first one in the workload."""
    requests: list[Request]
    payloads: list[bytes]
    """The same, serialised."""
    weights: list[bytes | None] = field(default_factory=list)
    """What to append to each, if the server does not know its LoRA adapter; empty if it cannot be sent."""


class RequestFeed:
    """Requests that no earlier pass has sent, so that a server's cache of prompts does not have them.

    Given prompts are repeated once all were sent, and each pass sends a trace from its beginning. ``targets``
    are the models that take turns; ``weights`` those of LoRA adapters, serialised, by task id.
    """

    def __init__(
        self, spec: WorkloadSpec, targets: Sequence[Target], weights: Mapping[int, bytes] | None = None
    ) -> None:
        self._restarts = spec.workload.kind == "trace"
        self._spec = spec
        self._targets = targets
        # Over HTTP they cannot be sent: Triton takes no FP16 in JSON.
        self._weights = weights if targets[0].protocol == "grpc" else None
        self.built = make_workload(spec)
        """The workload so far."""
        self._sent = self._sent_before = 0

    @property
    def sent(self) -> list[Request]:
        """All requests of the passes so far, by their index."""
        return self.built.requests[: self._sent]

    def take(self, count: int) -> PassRequests:
        """Return the next ``count`` requests; of a trace the first ones, fewer if it is shorter.

        Raises ConfigError if the workload's file or its settings make no requests.
        """
        first = 0 if self._restarts else self._sent
        last = first + count
        if last > len(self.built.requests) and not self._restarts:
            # A search has no known number of passes: double the workload, so that it is rebuilt rarely.
            count = max(last, 2 * len(self.built.requests))
            self.built = make_workload(replace(self._spec, count=count))
        requests = self.built.requests[first:last]
        self._sent_before, self._sent = self._sent, max(self._sent, first + len(requests))
        payloads = [
            encode_request(request, self._targets[index % len(self._targets)], str(index))
            for index, request in enumerate(requests, first)
        ]
        weights = self._weights or {}
        tasks = [request.lora_task_id for request in requests] if weights else []
        return PassRequests(first, requests, payloads, [None if it is None else weights[it] for it in tasks])

    def put_back(self, end: int) -> None:
        """Put back the requests of the last pass from index ``end`` on: not sent, or to be sent again."""
        self._sent = max(self._sent_before, end)
