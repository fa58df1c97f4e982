"""One pass over one level of load: its requests, its window, its records and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trtllm_hpc.bench.arrivals import open_schedule, requests_of
from trtllm_hpc.bench.judgement.gate import judge
from trtllm_hpc.bench.judgement.slo import Slo
from trtllm_hpc.bench.levels import ClosedLoop, Level, OpenLoop
from trtllm_hpc.bench.load import (
    Clock,
    LoadResult,
    Reply,
    Target,
    parse_reply,
    real_time_priority,
    run_closed,
    run_open,
)
from trtllm_hpc.bench.metrics import Sample, figures
from trtllm_hpc.bench.progress import Progress, Step
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.request_feed import PassRequests, RequestFeed
from trtllm_hpc.bench.summary import Pass, Verdict, Window
from trtllm_hpc.bench.token_counts import to_records
from trtllm_hpc.bench.workload.request import Tokenizer
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import InvalidMeasurement

WHOLE_TRACE = 1_000_000
"""More requests than a trace has."""
_FEWEST_OF_A_SLOT = 20
"""Different requests for each slot of a closed loop that ends by time."""
_MOST_A_SECOND = 20
"""The same for each second, as far as somebody gave them: a model that answers in 50 ms takes so many. All
of them are encoded, and their tokens counted, beforehand."""


@dataclass(frozen=True)
class Ran:
    """What a pass has left."""

    result: Pass
    records: list[RequestRecord]
    interrupted: bool
    gone: bool = False
    """Whether it ended early because the server was gone."""


@dataclass(frozen=True)
class Passes:
    """Everything that the passes of one measurement share."""

    settings: Benchmark
    target: Target
    feed: RequestFeed
    clock: Clock
    progress: Progress
    tokenizer: Tokenizer | None = None
    slo: Slo | None = None

    def run(self, level: Level, step: Step) -> Ran:
        """Run one pass, as ``step`` says which, and judge it.

        Raises:
            NotReady: no connection to the endpoint.
            ConfigError: the workload's file or its settings make no requests.
        """
        drive = self._open if isinstance(level, OpenLoop) else self._closed
        load, batch, window = drive(level, step)  # type: ignore[arg-type]
        window = _cut(window, load)
        records = self._records(load.replies, window, step)
        sample = Sample(records, window, level, self.slo)
        result = Pass(
            repeat=step.repeat,
            started_s=load.start_s,
            ended_s=max([record.ended_s for record in records], default=load.start_s),
            window=window,
            sent=len(records),
            measured=len(sample.measured),
            failed=len(sample.measured) - len(sample.answered),
            metrics=figures(sample),
            client=load.client,
            verdict=_with_again(
                judge(sample, load.client, self.settings, interrupted=load.interrupted), records, batch
            ),
        )
        return Ran(result, records, load.interrupted, load.disconnected)

    def _open(self, level: OpenLoop, step: Step) -> tuple[LoadResult, PassRequests, Window]:
        batch = self.feed.take(open_length(level, self.settings))
        schedule = open_schedule(level, self.settings, repeat=step.repeat, requests=batch.requests)
        count = len(schedule.due_s)
        self._refuse_too_many(count, batch)
        self.feed.put_back(batch.first_index + count)
        self.progress.begin(replace(step, requests=count, length_s=schedule.window.end_s))
        load = _first_of_all(
            partial(
                run_open,
                self.target,
                batch.payloads[:count],
                schedule.due_s,
                self.clock,
                first_index=batch.first_index,
                progress=self.progress,
                processes=self.settings.processes,
            )
        )
        return load, batch, _shifted(schedule.window, load.start_s)

    def _closed(self, level: ClosedLoop, step: Step) -> tuple[LoadResult, PassRequests, Window]:
        count, until_s = closed_length(level, self.settings)
        if count is None:
            batch = self.feed.take(timed_length(level, until_s or 0.0, self.feed.distinct))
        else:
            batch = self.feed.take(count)
            count = self._closed_count(count, batch)
        self.progress.begin(replace(step, requests=count, length_s=until_s))
        load = _first_of_all(
            partial(
                run_closed,
                self.target,
                batch.payloads,
                level.concurrency,
                self.clock,
                count=count,
                until_s=until_s,
                first_index=batch.first_index,
                progress=self.progress,
                processes=self.settings.processes,
            )
        )
        # Not the number of replies: of several processes one may be ahead of the others.
        self.feed.put_back(max([reply.index + 1 for reply in load.replies], default=batch.first_index))
        return load, batch, closed_window(load, self.settings)

    def _closed_count(self, count: int, batch: PassRequests) -> int:
        """Return how many requests a closed loop sends: all of a trace if no number is set."""
        if count >= WHOLE_TRACE:
            return len(batch.requests)
        self._refuse_too_many(count, batch)
        return count

    def _refuse_too_many(self, count: int, batch: PassRequests) -> None:
        """A trace never begins again."""
        if count > len(batch.requests):
            raise InvalidMeasurement(
                f"The workload has {len(batch.requests)} requests, and {count} are to be sent.",
                hint="send fewer (requests, warmup_requests), or all of the trace (arrival: trace)",
            )

    def _records(self, replies: list[Reply], window: Window, step: Step) -> list[RequestRecord]:
        return to_records(
            replies,
            [parse_reply(reply, self.target) for reply in replies],
            self.feed.sent,
            level=step.level,
            repeat=step.repeat,
            window=window,
            tokenizer=self.tokenizer,
            models=self.settings.models,
        )


def _first_of_all(run: Callable[[], LoadResult]) -> LoadResult:
    """Run a load before ordinary processes, where that is allowed; what leads up to it takes its turn."""
    with real_time_priority() as real_time:
        load = run()
    return replace(load, client=replace(load.client, real_time=real_time))


def open_length(level: OpenLoop, settings: Benchmark) -> int:
    """Requests of an open loop, warm-up included; of a trace of which times decide, all."""
    if level.arrival != "trace":
        return sum(requests_of(level, settings))
    if settings.requests is None or settings.warmup_seconds is not None:
        return WHOLE_TRACE
    return settings.requests + (settings.warmup_requests or 0)


def closed_length(level: ClosedLoop, settings: Benchmark) -> tuple[int | None, float | None]:
    """Requests of a closed loop, or seconds until it sends no more; warm-up included.

    Only of a trace the number may be open: then it is all of them.

    A warm-up of ``n`` requests ends with the ``n``-th answer: by then
    ``n - 1`` requests more than fit at once have been sent.
    """
    warmup = settings.warmup_requests or 0
    if settings.duration_seconds is not None:
        return None, (settings.warmup_seconds or 0.0) + settings.duration_seconds
    if settings.requests is None:
        return WHOLE_TRACE, None
    ahead = level.concurrency + warmup - 1 if warmup else 0
    return ahead + settings.requests, None


def timed_length(level: ClosedLoop, until_s: float, given: int | None) -> int:
    """Different requests for a closed loop that ends by time; if they do not last so long, they come again.

    Args:
        given: how many questions somebody gave; of made ones there are fewer, since making them takes long.
    """
    fewest = level.concurrency * _FEWEST_OF_A_SLOT
    if given is None:
        return fewest
    return max(fewest, min(given, level.concurrency * math.ceil(until_s * _MOST_A_SECOND)))


def _with_again(verdict: Verdict, records: Sequence[RequestRecord], batch: PassRequests) -> Verdict:
    """The verdict, with a warning if there were more requests than prompts for them."""
    if len(records) <= len(batch.requests):
        return verdict
    prompts = len({(request.prompt, request.token_ids) for request in batch.requests})
    note = (
        f"{len(records)} requests asked {prompts} prompts again and again: a server's cache of prompts may "
        "have made answers faster. Measure a number of requests instead of a time, or take a larger workload."
    )
    return replace(verdict, warnings=[*verdict.warnings, note])


def closed_window(load: LoadResult, settings: Benchmark) -> Window:
    """From the end of the warm-up to the last send: after that the slots run empty.

    Of several processes the first whose slots run empty ends it.
    """
    start_s = load.start_s + (settings.warmup_seconds or 0.0)
    warmup = settings.warmup_requests or 0
    if warmup and load.replies:
        ends = sorted(reply.ended_s for reply in load.replies)
        start_s = ends[min(warmup, len(ends)) - 1]
    end_s = load.saturated_until_s
    if end_s is None:
        end_s = max([reply.due_s for reply in load.replies], default=start_s)
    if settings.duration_seconds is not None:
        end_s = load.start_s + (settings.warmup_seconds or 0.0) + settings.duration_seconds
    return Window(start_s, max(start_s, end_s))


def _shifted(window: Window, by_s: float) -> Window:
    return Window(window.start_s + by_s, window.end_s + by_s)


def _cut(window: Window, load: LoadResult) -> Window:
    """What is left of the window where the load ended early."""
    if not (load.interrupted or load.disconnected):
        return window
    end_s = max([reply.ended_s for reply in load.replies], default=window.start_s)
    return Window(window.start_s, max(window.start_s, min(window.end_s, end_s)))
