"""One pass over one level of load: its requests, its length, its window, its records and figures."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from trtllm_hpc.bench.analysis.slo import Slo
from trtllm_hpc.bench.analysis.validity import check_pass
from trtllm_hpc.bench.arrivals import Schedule, open_schedule, request_counts
from trtllm_hpc.bench.load.loops import ClosedPlan, LoadPlan, LoadResult, OpenPlan
from trtllm_hpc.bench.load.messages import Target, encode_request, parse_reply
from trtllm_hpc.bench.load.process import real_time_priority
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.load.turns import Conversation
from trtllm_hpc.bench.metrics import figures
from trtllm_hpc.bench.power import PowerReadings
from trtllm_hpc.bench.progress import Progress, Step
from trtllm_hpc.bench.records import RequestRecord, Sample
from trtllm_hpc.bench.results import Caveat, ClosedLoop, Level, OpenLoop, Pass, Window
from trtllm_hpc.bench.token_counts import to_records
from trtllm_hpc.bench.workload.build import make_workload
from trtllm_hpc.bench.workload.request import TextEncoder, WorkloadRequest, WorkloadSpec
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import InvalidMeasurement

WHOLE_TRACE = 1_000_000
"""More requests than any trace has."""
_MIN_REQUESTS_PER_SLOT = 20
"""Different requests for each slot of a closed loop that ends by time."""
_REQUESTS_PER_SECOND = 20
"""The same for each slot and second of given prompts: enough for a model that answers in 50 ms."""


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
        is_talk = self._spec.settings.workload.kind == "conversations"
        return PassRequests(bounds[0], requests, payloads, talks if is_talk else [])

    def _begins(self) -> list[int]:
        return [index for index, request in enumerate(self.built.requests) if request.turn in (None, 1)]

    def put_back(self, end: int) -> None:
        """Put back the requests of the last pass from index ``end`` on: not sent, or to be sent again."""
        self._sent = max(self._sent_before, end)


@dataclass(frozen=True)
class PassOutcome:
    """What one pass left: its result, its records, and whether it ended early."""

    result: Pass
    records: list[RequestRecord]
    interrupted: bool
    gone: bool = False
    """Whether it ended early because the server was gone."""
    failures: int | None = None
    """How many requests had failed in a row, if it ended early because of that."""
    cut: bool = False
    """Whether the server was away meanwhile, and is back: it is to be measured again."""


@dataclass(frozen=True)
class Passes:
    """Runs passes; holds what all passes of a measurement share."""

    settings: Benchmark
    target: Target
    feed: RequestFeed
    clock: Clock
    progress: Progress
    tokenizer: TextEncoder | None = None
    slo: Slo | None = None
    power: PowerReadings | None = None

    def run(self, level: Level, step: Step) -> PassOutcome:
        """Run one pass and check its figures.

        Raises NotReady if there is no connection to the endpoint; ConfigError if the workload makes no
        requests.
        """
        if self.power is not None:
            self.power.begin()
        plan, batch, schedule = self._plan(level, step)
        with real_time_priority() as real_time:
            load = run_load(plan, progress=self.progress.count, processes=self.settings.processes)
        load = replace(load, client=replace(load.client, real_time=real_time))
        # Not the number of replies: with several processes, one may be ahead of the others.
        self.feed.put_back(max([reply.index + 1 for reply in load.replies], default=plan.first_index))
        if schedule is not None:
            window = Window(schedule.window.start_s + load.start_s, schedule.window.end_s + load.start_s)
        else:
            assert isinstance(level, ClosedLoop)
            window = closed_window(load, self.settings, level.concurrency)
        if load.interrupted or load.disconnected or load.failures:  # cut where the load ended
            end_s = max([reply.ended_s for reply in load.replies], default=window.start_s)
            window = Window(window.start_s, max(window.start_s, min(window.end_s, end_s)))
        records = to_records(
            load.replies,
            [parse_reply(reply, self.target) for reply in load.replies],
            self.feed.sent,
            level=step.level,
            repeat=step.repeat,
            window=window,
            tokenizer=self.tokenizer,
        )
        ended_s = max([record.ended_s for record in records], default=load.start_s)
        energy = None
        if self.power is not None:
            try:
                energy = self.power.energy(window)
            except KeyboardInterrupt:  # while it waited: the answers are there
                load = replace(load, interrupted=True)
        is_good = None if self.slo is None else self.slo.judge(records)
        sample = Sample(records, window, level, is_good, energy)
        verdict = check_pass(sample, load.client, self.settings, interrupted=load.interrupted)
        begun = sum(record.turn in (None, 1) for record in records)
        if begun > len(batch.requests):
            prompts = len({(request.prompt, request.token_ids) for request in batch.requests})
            verdict.warnings.append(Caveat("repeated-prompts", begun, prompts))
        result = Pass(
            repeat=step.repeat,
            started_s=load.start_s,
            ended_s=ended_s,
            window=window,
            sent=len(records),
            measured=len(sample.measured),
            failed=len(sample.measured) - len(sample.answered),
            metrics=figures(sample),
            client=load.client,
            verdict=verdict,
        )
        return PassOutcome(result, records, load.interrupted, load.disconnected, load.failures)

    def _plan(self, level: Level, step: Step) -> tuple[LoadPlan, PassRequests, Schedule | None]:
        """Take the requests of a pass, and say when they are sent; a closed loop has no schedule."""
        settings, schedule = self.settings, None
        until_s: float | None
        if isinstance(level, OpenLoop):
            batch = self.feed.take(open_length(level, settings))
            schedule = open_schedule(level, settings, repeat=step.repeat, requests=batch.requests)
            count, until_s = len(schedule.due_s), schedule.window.end_s
            self.progress.begin(replace(step, requests=count, length_s=until_s))
        else:
            limit, until_s = closed_length(level, settings)
            batch = self.feed.take(
                timed_length(level, until_s or 0.0, self.feed.built.distinct) if limit is None else limit
            )
            count = len(batch.requests) if limit in (None, WHOLE_TRACE) else limit
            self.progress.begin(replace(step, requests=None if limit is None else count, length_s=until_s))
        if count > len(batch.requests):  # Only a trace can be too short, because it is never started again.
            raise InvalidMeasurement(
                f"The workload has {len(batch.requests)} requests, but {count} are needed.",
                hint="send fewer (requests, warmup_requests), or the whole trace (arrival: trace)",
            )
        common: dict[str, Any] = {
            "first_index": batch.first_index,
            "conversations": batch.conversations[:count],
            "max_failures": settings.max_failures_in_a_row,
            "until_s": until_s if settings.duration_seconds is not None else None,
        }
        sent = self.target, batch.payloads[:count], self.clock
        if schedule is not None:
            return OpenPlan(*sent, schedule.due_s, **common), batch, schedule
        assert isinstance(level, ClosedLoop)
        ends = None if settings.duration_seconds is not None else count
        return ClosedPlan(*sent, level.concurrency, ends, **common), batch, None


def closed_window(load: LoadResult, settings: Benchmark, slots: int) -> Window:
    """Return the window of a closed loop: from the end of the warm-up to the last send.

    After the last send slots run empty. With several processes, the first whose slots
    run empty ends the window; of conversations, the first slot that runs empty. The warm-up
    counts conversations, too.
    """
    start_s = load.start_s + (settings.warmup_seconds or 0.0)
    warmup = settings.warmup_requests or 0
    ends = sorted({reply.session or id(reply): reply.ended_s for reply in load.replies}.values())
    if warmup and ends:
        start_s = ends[min(warmup, len(ends)) - 1]
    end_s = load.saturated_until_s
    if ends and load.replies[0].session is not None:
        end_s = ends[-min(slots, len(ends))]
    if end_s is None:
        end_s = max([reply.due_s for reply in load.replies], default=start_s)
    if settings.duration_seconds is not None:
        end_s = load.start_s + (settings.warmup_seconds or 0.0) + settings.duration_seconds
    return Window(start_s, max(start_s, end_s))


# The lengths of passes ------------------------------------------------------------------------------


def open_length(level: OpenLoop, settings: Benchmark) -> int:
    """Return the requests of an open loop, warm-up included; all of a trace that is limited by times."""
    if level.arrival != "trace":
        return sum(request_counts(level, settings))
    if settings.requests is None or settings.warmup_seconds is not None:
        return WHOLE_TRACE
    return settings.requests + (settings.warmup_requests or 0)


def closed_length(level: ClosedLoop, settings: Benchmark) -> tuple[int | None, float | None]:
    """Return the requests of a closed loop, or the seconds for which it sends; warm-up included.

    Only for a trace may ``requests`` be missing, which means all of them. A warm-up of ``n`` requests ends
    with the ``n``-th answer; until then ``n - 1`` more requests than the concurrency have been sent.
    """
    warmup = settings.warmup_requests or 0
    if settings.duration_seconds is not None:
        return None, (settings.warmup_seconds or 0.0) + settings.duration_seconds
    if settings.requests is None:
        return WHOLE_TRACE, None
    ahead = level.concurrency + warmup - 1 if warmup else 0
    return ahead + settings.requests, None


def timed_length(level: ClosedLoop, until_s: float, given: int | None) -> int:
    """Return the number of different requests for a closed loop that ends by time; then they are repeated.

    ``given`` is the number of prompts that the user gave; ``None``: they are generated, which takes long.
    """
    least = level.concurrency * _MIN_REQUESTS_PER_SLOT
    if given is None:
        return least
    return max(least, min(given, level.concurrency * math.ceil(until_s * _REQUESTS_PER_SECOND)))
