"""Gives each pass of a measurement its requests from the workload, serialised."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import pairwise

from trtllm_hpc.bench.load.messages import Target, encode_request
from trtllm_hpc.bench.load.turns import Conversation
from trtllm_hpc.bench.workload.build import make_workload
from trtllm_hpc.bench.workload.request import WorkloadRequest, WorkloadSpec


@dataclass(frozen=True)
class PassRequests:
    """The requests of one pass."""

    first_index: int
    """Index of the first one in the workload."""
    requests: list[WorkloadRequest]
    """Of conversations the first turns."""
    payloads: list[bytes]
    """The same, serialised."""
    conversations: list[Conversation] = field(default_factory=list)
    """Those that the requests begin."""


class RequestFeed:
    """Requests that no earlier pass has sent, so that a server's cache of prompts does not have them.

    Given prompts are repeated once all were sent, and each pass sends a trace from its beginning. Of
    conversations, which only the load counts, their turns are the requests of the workload.
    """

    def __init__(self, spec: WorkloadSpec, target: Target) -> None:
        self._spec, self._target = spec, target
        self.built = make_workload(spec)
        """The workload so far."""
        self._sent = self._sent_before = 0

    @property
    def sent(self) -> list[WorkloadRequest]:
        """All requests of the passes so far, by their index."""
        return self.built.requests[: self._sent]

    def take(self, count: int) -> PassRequests:
        """Return the next ``count`` requests, or conversations; of a trace the first, fewer if it is shorter.

        Raises ConfigError if the workload's file or its settings make no requests.
        """
        begins = self._begins()
        first = 0 if self._spec.settings.replays else bisect_left(begins, self._sent)
        if first + count > self._spec.count:
            # Doubled, so that it is rarely made again: the number of passes of a search is not known.
            self._spec = replace(self._spec, count=max(first + count, 2 * self._spec.count))
            self.built = make_workload(self._spec)
            begins = self._begins()
        bounds = [*begins, len(self.built.requests)][first : first + count + 1]
        talks = [Conversation(a, self.built.requests[a:b]) for a, b in pairwise(bounds)]
        requests = [talk.turns[0] for talk in talks]
        self._sent_before, self._sent = self._sent, max(self._sent, bounds[-1])
        payloads = [
            encode_request(request, self._target, str(index))
            for index, request in zip(bounds, requests, strict=False)
        ]
        is_talk = self._spec.workload.kind == "conversations"
        return PassRequests(bounds[0], requests, payloads, talks if is_talk else [])

    def _begins(self) -> list[int]:
        return [index for index, request in enumerate(self.built.requests) if request.turn in (None, 1)]

    def put_back(self, end: int) -> None:
        """Put back the requests of the last pass from index ``end`` on: not sent, or to be sent again."""
        self._sent = max(self._sent_before, end)
