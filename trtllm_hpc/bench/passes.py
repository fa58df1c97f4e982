"""One pass over one level of load: requests, send times, window, records and figures."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_hpc.bench.analysis.slo import Slo
from trtllm_hpc.bench.analysis.validity import check_pass
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
from trtllm_hpc.bench.workload.prompt_source import random_source
from trtllm_hpc.bench.workload.request import TextEncoder, WorkloadRequest, WorkloadSpec
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import ConfigError, Diagnostic, InvalidMeasurement

WHOLE_TRACE = 1_000_000
"""A number of requests above that of any trace."""
_MIN_REQUESTS_PER_SLOT = 20
"""Fewest different requests per slot of a closed loop that ends by time."""
_REQUESTS_PER_SECOND = 20
"""Different prompts per slot and second, if the user gives enough: enough for answers within 50 ms."""

_DIGITS = 9
"""Times are rounded to nanoseconds because the last bits of a logarithm depend on the machine."""


@dataclass(frozen=True)
class Schedule:
    """Due times of the requests of one pass, in seconds after its start, and the measured window."""

    due_s: list[float]
    """Due times in ascending order; the first is 0."""
    window: Window
    """Measured part, in seconds after the start. Earlier requests are warm-up; later ones do not exist."""


@dataclass(frozen=True)
class PassRequests:
    """The requests of one pass."""

    first_index: int
    """Index of the first request in the workload."""
    requests: list[WorkloadRequest]
    """The requests; for conversations, their first turns."""
    payloads: list[bytes]
    """The same requests, serialised."""
    conversations: list[Conversation] = field(default_factory=list)
    """The conversations that the requests begin."""


class RequestFeed:
    """Supplies each pass with requests that no earlier pass has sent, so that no KV cache contains them.

    When all prompts of the user are sent, they are repeated, and each pass sends a trace from its beginning.
    The load counts conversations, while the workload's requests are their single turns.
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
        """Return the next ``count`` requests or conversations; of a trace the first, or all if it is shorter.

        Raises ConfigError if the workload's file or settings give no requests.
        """
        begins = self._begins()
        first = 0 if self._spec.settings.replays else bisect_left(begins, self._sent)
        if first + count > self._spec.count:
            # At least double it, so that a search, with its unknown number of passes, rarely builds it again.
            self._spec = replace(self._spec, count=max(first + count, 2 * self._spec.count))
            self.built = make_workload(self._spec)
            begins = self._begins()
        bounds = [*begins, len(self.built.requests)][first : first + count + 1]
        conversations = [
            Conversation(begin, self.built.requests[begin:end]) for begin, end in pairwise(bounds)
        ]
        requests = [conversation.turns[0] for conversation in conversations]
        self._sent_before, self._sent = self._sent, max(self._sent, bounds[-1])
        payloads = [
            encode_request(request, self._target, str(index))
            for index, request in zip(bounds, requests, strict=False)
        ]
        has_turns = self._spec.settings.workload.kind == "conversations"
        return PassRequests(bounds[0], requests, payloads, conversations if has_turns else [])

    def _begins(self) -> list[int]:
        return [index for index, request in enumerate(self.built.requests) if request.turn in (None, 1)]

    def put_back(self, end: int) -> None:
        """Return the last pass's requests from index ``end`` on to the feed, to be sent later."""
        self._sent = max(self._sent_before, end)


@dataclass(frozen=True)
class PassOutcome:
    """The result and records of one pass, and why it ended early, if it did."""

    result: Pass
    records: list[RequestRecord]
    interrupted: bool
    """Whether the user ended it, for example by Ctrl-C."""
    gone: bool = False
    """Whether it ended early because the server was gone."""
    failures: int | None = None
    """Number of consecutive failures that ended it; ``None`` if it ended otherwise."""
    cut: bool = False
    """Whether the server was away during the pass and is back, so that the pass must be repeated."""


@dataclass(frozen=True)
class Passes:
    """Runs passes, and holds the state that all passes of a measurement share."""

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

        Raises NotReady if the endpoint cannot be reached, and ConfigError if the workload has no requests.
        """
        if self.power is not None:
            self.power.begin()
        plan, batch, schedule = self._plan(level, step)
        with real_time_priority() as real_time:
            load = run_load(plan, progress=self.progress.count, processes=self.settings.processes)
        load = replace(load, client=replace(load.client, real_time=real_time))
        # By the highest index instead of the number of replies: one process may be ahead of the others.
        self.feed.put_back(max([reply.index + 1 for reply in load.replies], default=plan.first_index))
        if schedule is not None:
            window = Window(schedule.window.start_s + load.start_s, schedule.window.end_s + load.start_s)
        else:
            assert isinstance(level, ClosedLoop)
            window = closed_window(load, self.settings, level.concurrency)
        if load.interrupted or load.disconnected or load.failures:  # the window ends with the load
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
            except KeyboardInterrupt:  # only the wait for readings is interrupted; all answers have arrived
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
        """Take the requests of a pass and plan the load; only an open loop has a schedule."""
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
        if count > len(batch.requests):  # only a trace can be too short, because it is not repeated
            raise InvalidMeasurement(
                f"The trace has {len(batch.requests)} requests, but {count} are needed.",
                hint="lower requests or warmup_requests, or send the whole trace (arrival: trace)",
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

    After the last send slots stay empty, and the load is no longer the requested one. With several processes,
    the first process with an empty slot ends the window; with conversations, the first empty slot does.
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
    """Return the number of requests of an open loop, warm-up included; ``WHOLE_TRACE`` if times limit it."""
    if level.arrival != "trace":
        return sum(request_counts(level, settings))
    if settings.requests is None or settings.warmup_seconds is not None:
        return WHOLE_TRACE
    return settings.requests + (settings.warmup_requests or 0)


def closed_length(level: ClosedLoop, settings: Benchmark) -> tuple[int | None, float | None]:
    """Return the number of requests of a closed loop, or its seconds; warm-up included.

    ``requests`` may be missing for a trace only, which then is sent as a whole. A warm-up of ``n`` requests
    ends with the ``n``-th answer, when ``n - 1`` requests more than the concurrency have been sent.
    """
    warmup = settings.warmup_requests or 0
    if settings.duration_seconds is not None:
        return None, (settings.warmup_seconds or 0.0) + settings.duration_seconds
    if settings.requests is None:
        return WHOLE_TRACE, None
    ahead = level.concurrency + warmup - 1 if warmup else 0
    return ahead + settings.requests, None


def timed_length(level: ClosedLoop, until_s: float, given: int | None) -> int:
    """Return the number of different requests for a closed loop that ends by time; it repeats them.

    ``given`` is the number of the user's prompts; ``None``: prompts are generated, which takes long.
    """
    least = level.concurrency * _MIN_REQUESTS_PER_SLOT
    if given is None:
        return least
    return max(least, min(given, level.concurrency * math.ceil(until_s * _REQUESTS_PER_SECOND)))


# The send times of an open loop, all fixed before the first request ---------------------------------


def open_schedule(
    level: OpenLoop, settings: Benchmark, *, repeat: int = 0, requests: Sequence[WorkloadRequest] = ()
) -> Schedule:
    """Return the due times of an open loop; ``requests`` have the times of a trace.

    Warm-up and window each have a whole number of requests and exactly the configured mean rate: random gaps
    are scaled, and a length in seconds is met within half a mean gap. Otherwise the rate would be right only
    on average over many seeds.

    Each repeat has its own arrivals. Rates share them, differently scaled, so that levels differ only in the
    rate. Raises ConfigError for a trace without times.
    """
    if level.arrival == "trace":
        return _as_recorded(settings, [request.due_s for request in requests])
    rate = level.rate_per_s
    warmup, measured = request_counts(level, settings)
    warmup_s, length_s = warmup / rate, measured / rate
    before = arrival_times(warmup, level, settings.seed, f"warm-up arrivals {repeat}") / rate
    # Rounding could move the last warm-up request into the window, because its time decides its phase.
    before = np.minimum(before, warmup_s - 10**-_DIGITS)
    within = arrival_times(measured, level, settings.seed, f"arrivals {repeat}") / rate
    due_s = np.concatenate([before, warmup_s + within]).round(_DIGITS)
    return Schedule(due_s.tolist(), Window(round(warmup_s, _DIGITS), round(warmup_s + length_s, _DIGITS)))


def request_counts(level: OpenLoop, settings: Benchmark) -> tuple[int, int]:
    """Return the number of requests of the warm-up and of the measured part, which has at least one."""
    warmup, measured = settings.warmup_requests or 0, settings.requests or 1
    if settings.warmup_seconds is not None:
        warmup = round(settings.warmup_seconds * level.rate_per_s)
    if settings.duration_seconds is not None:
        measured = max(1, round(settings.duration_seconds * level.rate_per_s))
    return warmup, measured


def arrival_times(count: int, level: OpenLoop, seed: int, name: str) -> NDArray[np.float64]:
    """Return the due times of ``count`` requests at a mean rate of one per second.

    The first is due at 0; the gap after the last one ends at exactly ``count``. Gaps are equal (``constant``)
    or gamma distributed; shape 1 is exponential, which makes the arrivals a Poisson process.
    """
    if level.arrival == "constant" or count == 0:
        return np.arange(count, dtype=np.float64)
    shape = level.burstiness if level.arrival == "gamma" else 1.0
    gaps = random_source(seed, name).standard_gamma(shape, count)
    ends = np.cumsum(gaps)
    if not ends[-1]:  # with a tiny shape, all gaps may round to zero
        return np.arange(count, dtype=np.float64)
    starts: NDArray[np.float64] = np.concatenate([[0.0], ends[:-1]]) * (count / ends[-1])
    return starts


def _as_recorded(settings: Benchmark, recorded: Sequence[float | None]) -> Schedule:
    """Return the recorded times from the first request on; the window ends when the next request is due."""
    times = [time for time in recorded if time is not None]
    if not times or len(times) < len(recorded):
        missing = len(recorded) - len(times)
        message = f"a trace needs a time for each request, but {missing} of {len(recorded)} have none"
        hint = "set workload.kind to trace, or arrival to poisson"
        raise ConfigError(
            [Diagnostic("no-times", message, "the workload", "arrival", value="trace", hint=hint)]
        )
    due_s = [round(time - times[0], _DIGITS) for time in times]
    first = settings.warmup_requests or 0
    if settings.warmup_seconds is not None:
        first = sum(time < settings.warmup_seconds for time in due_s)
    first = min(first, len(due_s) - 1)  # at least the last request is measured
    start_s = due_s[first]
    if settings.duration_seconds is not None:
        end_s = min(start_s + settings.duration_seconds, _after(due_s, first, len(due_s)))
        return Schedule([time for time in due_s if time < end_s], Window(start_s, end_s))
    last = min(first + (settings.requests or len(due_s)), len(due_s))
    return Schedule(due_s[:last], Window(start_s, _after(due_s, first, last)))


def _after(due_s: Sequence[float], first: int, last: int) -> float:
    """Return the end of the measured part: the next request's due time, or a mean gap after the last one."""
    if last < len(due_s):
        return due_s[last]
    gaps = max(1, last - first - 1)
    return due_s[last - 1] + (due_s[last - 1] - due_s[first]) / gaps
