"""A whole measurement: every level and repeat, and the files that it leaves.

After each pass the records and the summary so far are on the disk: whatever
ends the measurement early, what was measured is kept and says that it is not
all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trtllm_hpc.bench.judgement.gone import ENDED_EARLY
from trtllm_hpc.bench.judgement.slo import parse_slo
from trtllm_hpc.bench.judgement.verdicts import verdict_of
from trtllm_hpc.bench.levels import Level, OpenLoop, levels_of
from trtllm_hpc.bench.load import Clock, Target
from trtllm_hpc.bench.passes import WHOLE_TRACE, Passes, closed_length, open_length, timed_length
from trtllm_hpc.bench.progress import Progress
from trtllm_hpc.bench.progress_shown import reported, terminal_bar
from trtllm_hpc.bench.provenance import provenance
from trtllm_hpc.bench.records import RequestRecord, append_records
from trtllm_hpc.bench.request_feed import RequestFeed
from trtllm_hpc.bench.search import Outcome, find_max, outcome_of
from trtllm_hpc.bench.server.metrics import Samples, sampled, write_samples
from trtllm_hpc.bench.statistics import over_repeats
from trtllm_hpc.bench.steps import step_of
from trtllm_hpc.bench.summary import LevelResult, Measurement, Pass, SearchResult, write_measurement
from trtllm_hpc.bench.targets import targets_of
from trtllm_hpc.bench.totals import kinds_of_errors, token_totals
from trtllm_hpc.bench.workload.build import make_workload
from trtllm_hpc.bench.workload.request import BuiltWorkload, write_workload
from trtllm_hpc.bench.workload.tokenizers import Tokenization, find_tokenizer
from trtllm_hpc.config.benchmark import SEARCH_WINDOW_S, Benchmark
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import NotReady
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.runtime.records import Endpoint

_CLOSED_LOOP_REQUESTS = 1000
"""Requests made beforehand for a closed loop that ends by time; more are made when they run out."""
_SEARCH_WARMUP_S = 1.0
_INTERRUPTED = "The measurement was interrupted before its end."


class Interrupted(Exception):
    """Somebody ended the measurement, as with Ctrl-C; what was measured is written down."""

    def __init__(self, measurement: Measurement) -> None:
        super().__init__()
        self.measurement = measurement


@dataclass(frozen=True)
class Subject:
    """What is measured: a served model, and the run that it belongs to."""

    paths: RunPaths
    endpoint: Endpoint
    job: JobFile
    """The run's own job file."""


def run_measurement(subject: Subject, settings: Benchmark, name: str) -> Measurement:
    """Measure, write everything into the run folder, and return the summary.

    Args:
        name: of the measurement. Only the companion's reports its progress to
            those who watch the run.

    Raises:
        Interrupted: with the summary of what was measured.
        NotReady: no connection to the endpoint from the first.
        RequestFailed: the model cannot be asked in this way.
        ConfigError, BadSlo: the workload's file, or the limits, cannot be read.
    """
    slo = parse_slo(settings.slo) if settings.slo else None
    targets = targets_of(settings, subject.endpoint, subject.job.text_model)
    tokens = _tokens(subject, settings)
    clock, progress = Clock(), Progress()
    feed = RequestFeed(
        settings,
        targets,
        expected_requests(settings),
        partial(_workload, subject, settings, targets[0], tokens),
    )
    passes = Passes(settings, targets[0], feed, clock, progress, tokens.tokenizer, slo)
    progress_file = subject.paths.benchmark_progress if name == COMPANION_MEASUREMENT else None
    subject.paths.results.mkdir(exist_ok=True)
    measuring = _Measuring(subject, settings, name, passes, [tokens.note] if tokens.note else [])
    with (
        terminal_bar() as show,
        _kept_samples(subject, clock, name) as samples,
        reported(progress, progress_file, show),
    ):
        ended_early = measuring.run()
    measurement = measuring.finish(samples, ended_early)
    if ended_early == _INTERRUPTED:
        raise Interrupted(measurement)
    return measurement


@contextmanager
def _kept_samples(subject: Subject, clock: Clock, name: str) -> Iterator[Samples]:
    """The server's metrics meanwhile. They are written however it ends: a server's last ones tell most."""
    samples: Samples | None = None
    try:
        with sampled(subject.endpoint, clock) as samples:
            yield samples
    finally:
        if samples is not None:
            write_samples(subject.paths.measurement(name).samples, samples.samples)


def expected_requests(settings: Benchmark) -> int:
    """How many requests the passes take together, as far as that is known."""
    counts = [_requests_of(level, settings) for level in levels_of(settings)]
    if settings.workload.kind == "trace":  # asked anew in each pass
        return WHOLE_TRACE if settings.find_max else max(counts)
    return sum(counts) * settings.repeats


def at_rate(settings: Benchmark, rate_per_s: float) -> Benchmark:
    """The settings of one rate of a search: where requests are counted, enough of them for a window."""
    if settings.duration_seconds is not None:
        return settings
    window_s = max(SEARCH_WINDOW_S, settings.min_window_seconds)
    longer = {"requests": max(settings.requests or 1, math.ceil(rate_per_s * window_s))}
    if settings.warmup_requests:
        longer["warmup_requests"] = max(settings.warmup_requests, math.ceil(rate_per_s * _SEARCH_WARMUP_S))
    return settings.model_copy(update=longer)


def _requests_of(level: Level, settings: Benchmark) -> int:
    if isinstance(level, OpenLoop):
        return open_length(level, settings)
    count, until_s = closed_length(level, settings)
    if count is None and settings.workload.kind == "trace":  # which grows no longer once it is read
        return timed_length(level, until_s or 0.0, WHOLE_TRACE)
    return count or _CLOSED_LOOP_REQUESTS


def _tokens(subject: Subject, settings: Benchmark) -> Tokenization:
    model = subject.job.model.path
    folders = [subject.paths.engine, *([Path(model)] if model else [])]
    return find_tokenizer(
        settings.workload, folders, subject.endpoint, float(settings.request_timeout_seconds)
    )


def _workload(
    subject: Subject, settings: Benchmark, target: Target, tokens: Tokenization, count: int
) -> BuiltWorkload:
    return make_workload(
        settings,
        count,
        token_ids=target.token_ids,
        tokenizer=tokens.tokenizer,
        vocabulary=tokens.vocabulary,
        max_input_len=subject.job.engine.max_input_len,
    )


class _Measuring:
    """The passes that were run so far, and the files that tell of them."""

    def __init__(
        self, subject: Subject, settings: Benchmark, name: str, passes: Passes, notes: list[str]
    ) -> None:
        self._subject = subject
        self._settings = settings
        self._name = name
        self._passes = passes
        self._notes = notes
        self._files = subject.paths.measurement(name)
        for file in self._files.present:  # of an earlier attempt of the companion
            if not file.is_dir():
                file.unlink()
        self._records: list[RequestRecord] = []
        self._results: list[LevelResult] = []
        self._search: SearchResult | None = None

    def run(self) -> str | None:
        """Run every pass; returns why it ended early, if it did, in a sentence."""
        try:
            if self._settings.find_max:
                return self._run_search()
            ends = (self._run_level(level, self._passes) for level in levels_of(self._settings))
            return next(filter(None, ends), None)
        except KeyboardInterrupt:
            return _INTERRUPTED

    def _run_search(self) -> str | None:
        settings, slo = self._settings, self._passes.slo
        assert settings.slo is not None and slo is not None
        ended_early: str | None = None

        def measure(rate: float) -> Outcome:
            nonlocal ended_early
            place, level = len(self._results), OpenLoop(rate, settings.arrival, settings.burstiness)
            ended_early = self._run_level(level, replace(self._passes, settings=at_rate(settings, rate)))
            if ended_early is not None:
                return Outcome(0, 0, [], place, unusable=ended_early)
            return outcome_of(self._results[place].passes, slo, place, settings.max_error_share)

        self._search = find_max(measure, settings.rate_per_second, settings.slo)
        return ended_early

    def _run_level(self, level: Level, passes_of: Passes) -> str | None:
        """Every pass over one level; returns why it ended early, if it did."""
        place, passes = len(self._results), list[Pass]()
        for repeat in range(self._settings.repeats):
            try:
                ran = passes_of.run(level, step_of(self._settings, place, level, repeat))
            except NotReady:
                if not self._results:
                    raise
                return ENDED_EARLY
            passes.append(ran.result)
            self._records += ran.records
            append_records(self._files.requests, ran.records)
            self._results[place:] = [LevelResult(level, passes, over_repeats([it.metrics for it in passes]))]
            if ran.interrupted or ran.gone:
                return _INTERRUPTED if ran.interrupted else ENDED_EARLY
            self.write(["The measurement is not finished."])
        return None

    def write(self, findings: Sequence[str] = (), warnings: Sequence[str] = ()) -> Measurement:
        """Write the summary and the workload of what was measured so far, and return the summary."""
        feed = self._passes.feed
        write_workload(self._files.workload, feed.sent)
        target = self._passes.target
        measurement = Measurement(
            name=self._name,
            started_at=self._passes.clock.started_at,
            settings=self._settings.model_dump(mode="json"),
            model=", ".join(self._settings.models) or target.model,
            protocol=target.protocol,
            streaming=target.streaming,
            provenance=provenance(self._subject.paths, self._subject.endpoint, self._files.workload),
            levels=self._results,
            tokens=token_totals(self._records),
            errors=kinds_of_errors(self._records),
            verdict=verdict_of(
                self._results,
                self._search,
                findings=findings,
                warnings=[*self._notes, *feed.notes, *warnings],
            ),
            search=self._search,
        )
        write_measurement(self._files.summary, measurement)
        return measurement

    def finish(self, samples: Samples, ended_early: str | None) -> Measurement:
        """Write what is known at the end."""
        return self.write([ended_early] if ended_early else [], [samples.warning] if samples.warning else [])
