"""The workload of a measurement as it is asked: made when it is needed, never twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtllm_hpc.bench.load import Target, encode_request
from trtllm_hpc.bench.workload.build import Built
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.config.benchmark import Benchmark


@dataclass(frozen=True)
class Portion:
    """The requests of one pass."""

    first: int
    """Place of the first one in the workload."""
    requests: list[Request]
    payloads: list[bytes]
    """The same in the words of the protocol."""


class Questions:
    """Requests that no pass before has asked, so that a server's cache of prompts knows none of them.

    Prompts that somebody gave come again when all were asked, and a trace is
    asked anew in each pass.

    Args:
        targets: the models that take turns, mostly a single one.
        expected: requests of all passes together, where that is known beforehand.
        make: the workload's first so many requests, see :func:`make_workload`.
    """

    def __init__(
        self, settings: Benchmark, targets: Sequence[Target], expected: int, make: Callable[[int], Built]
    ) -> None:
        self._again = settings.workload.kind == "trace"
        self._targets = targets
        self._make = make
        self._built = make(expected)
        self._asked = self._asked_before = 0

    @property
    def asked(self) -> list[Request]:
        """All that were taken, in order."""
        return self._built.requests[: self._asked]

    @property
    def notes(self) -> list[str]:
        """What whoever reads the figures must know of the workload, in sentences."""
        return self._built.notes

    @property
    def given(self) -> int | None:
        """How many questions somebody gave; ``None`` where they are made, without end."""
        return self._built.given

    def take(self, count: int) -> Portion:
        """The next ``count`` requests; of a trace the first ones, fewer if it is shorter.

        Raises:
            ConfigError: the workload's file or its settings make no requests.
        """
        first = 0 if self._again else self._asked
        last = first + count
        if last > len(self._built.requests) and not self._again:
            # A search does not know how far it will go: twice as many, lest each pass begins anew.
            self._built = self._make(max(last, 2 * len(self._built.requests)))
        requests = self._built.requests[first:last]
        self._asked_before, self._asked = self._asked, max(self._asked, first + len(requests))
        payloads = [
            encode_request(request, self._targets[place % len(self._targets)], str(place))
            for place, request in enumerate(requests, first)
        ]
        return Portion(first, requests, payloads)

    def put_back(self, end: int) -> None:
        """Of the portion that was taken last only the requests before index ``end`` were asked after all."""
        self._asked = max(self._asked_before, end)
