"""A whole measurement: every level and repeat, and the files in the results folder.

Records and summary are written after each pass. If the measurement ends early, finished passes are kept, and
the summary is marked incomplete.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trtllm_hpc.backends import backend_of
from trtllm_hpc.bench.analysis.aggregate import (
    by_turn,
    error_counts,
    over_repeats,
    overall_verdict,
    token_totals,
)
from trtllm_hpc.bench.analysis.slo import parse_slo
from trtllm_hpc.bench.analysis.validity import sentence_of
from trtllm_hpc.bench.interruptions import (
    MOST_CUTS,
    Follow,
    ServerIdentity,
    ended_parts,
    read_earlier,
    was_cut,
)
from trtllm_hpc.bench.load.messages import CHAT, COMPLETIONS
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.passes import Passes, PassOutcome, RequestFeed
from trtllm_hpc.bench.power import PowerReadings
from trtllm_hpc.bench.progress import Progress, Show, Step, reported
from trtllm_hpc.bench.provenance import provenance, workload_provenance
from trtllm_hpc.bench.records import RequestRecord, append_records
from trtllm_hpc.bench.results import (
    Caveat,
    Level,
    LevelResult,
    MeasurementSummary,
    OpenLoop,
    Pass,
    SearchResult,
    levels_of,
    write_measurement,
)
from trtllm_hpc.bench.search import RateOutcome, find_max, outcome_of
from trtllm_hpc.bench.server_metrics import Samples, ServerSample, read_samples, sampled
from trtllm_hpc.bench.targets import fitted, target_of
from trtllm_hpc.bench.workload.prompt_source import find_tokenizer
from trtllm_hpc.bench.workload.request import WorkloadSpec, write_workload
from trtllm_hpc.config.benchmark import SEARCH_WINDOW_S, Benchmark
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import InvalidMeasurement, NotReady, TrtllmHpcError
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.runtime.records import Endpoint

_SEARCH_WARMUP_S = 1.0
_FIRST_REQUESTS = 64
"""Requests generated before the first pass, to find errors of the workload; passes generate more."""
_INTERRUPTED = Caveat("ended-interrupted")
_SERVER_GONE = Caveat("ended-server-gone")


class MeasurementInterrupted(KeyboardInterrupt):
    """The measurement was interrupted, for example by Ctrl-C; the finished passes are on disk."""

    def __init__(self, measurement: MeasurementSummary) -> None:
        super().__init__()
        self.measurement = measurement


@dataclass(frozen=True)
class MeasuredServer:
    """The measured server and its run."""

    paths: RunPaths
    """The run's folder; for a server outside any run, the folder of the results."""
    endpoint: Endpoint
    job: JobFile | None
    """The run's job file; ``None`` for a server outside any run."""
    follow: Follow | None = None
    """Finds the server again after it has moved. ``None``: a lost server ends the measurement."""


def run_measurement(
    server: MeasuredServer, settings: Benchmark, name: str, show: Show | None = None
) -> MeasurementSummary:
    """Measure, write all files into the server's folder, and return the summary.

    A separate thread calls ``show`` with the progress twice a second. Progress is also written to a file if
    ``name`` is the companion's, for ``status``.

    Raises:
        MeasurementInterrupted: with the summary of the finished passes.
        NotReady: the endpoint was never reached.
        RequestFailed, InvalidRequest, ConfigError, BadSlo: the server or model cannot be measured like this.
        InvalidMeasurement: the run folder is not writable.
    """
    run = _Run(server, settings, name)
    progress_file = server.paths.benchmark_progress if run.is_companion else None
    run.begin()
    with (
        sampled(
            run.passes.target.endpoint,
            run.passes.clock,
            to=server.paths.measurement(name).samples,
            before=run.earlier_samples,
        ) as run.samples,
        reported(run.passes.progress, progress_file, show),
    ):
        ended_early = run.measure()
    measurement = run.write(
        [ended_early] if ended_early else [],
        [Caveat("server-metrics", sentence=warning)] if (warning := run.samples.warning) else [],
    )
    if ended_early == _INTERRUPTED:
        raise MeasurementInterrupted(measurement)
    return measurement


@contextmanager
def _writing(paths: RunPaths) -> Iterator[None]:
    """Turn an error of writing into InvalidMeasurement; passes written earlier are kept."""
    try:
        yield
    except OSError as error:
        message = f"The results could not be written to {paths.results}: {error.strerror or error}."
        hint = "free space there, or allow writing (chmod u+w), and measure again"
        raise InvalidMeasurement(message, hint=hint) from error


class _Run:
    """A running measurement: state shared by all passes, finished passes, and files."""

    samples: Samples

    def __init__(self, server: MeasuredServer, settings: Benchmark, name: str) -> None:
        self.server, self.settings, self.name = server, settings, name
        self._paths, self._follow, job = server.paths, server.follow, server.job
        self._files = self._paths.measurement(name)
        slo = parse_slo(settings.slo) if settings.slo else None
        self.is_companion = name == COMPANION_MEASUREMENT
        target = target_of(settings, server.endpoint, None if job is None else backend_of(job).text_model)
        self._records, self._results = list[RequestRecord](), list[LevelResult]()
        target, refused = fitted(target, settings)
        self._notes, self.earlier_samples = [*refused], list[ServerSample]()
        clock, sent = Clock(), 0
        earlier = read_earlier(self._files, settings) if self.is_companion else None
        if earlier is not None:
            measured, self._records = earlier
            self._results, count = measured.levels, len(measured.levels)
            clock = Clock(time.monotonic() - (time.time() - measured.started_at), measured.started_at)
            end_s = max(record.ended_s for record in self._records)
            self.earlier_samples = [
                sample for sample in read_samples(self._files.samples) if sample.time_s <= end_s
            ]
            sessions = {record.session for record in self._records} - {None}
            sent = len(sessions) or 1 + max(record.index for record in self._records)
            levels = "The first level was" if count == 1 else f"The first {count} levels were"
            self._notes += [f"{levels} measured by an earlier attempt, which did not finish."]
        folders, special = list[Path](), True  # without a run, only the settings can name a tokenizer
        if job is not None:
            engine = Path(job.engine.directory or self._paths.engine)
            folders = [engine, *([Path(job.model.path)] if job.model.path else [])]
            special = job.repository.add_special_tokens is not False
        tokenizer, vocabulary = find_tokenizer(settings.workload, folders, special=special)
        workload = WorkloadSpec(
            settings,
            _FIRST_REQUESTS,
            target.takes_token_ids,
            tokenizer,
            vocabulary,
            None if job is None else job.engine.max_input_len,
            ids_allowed=target.protocol == COMPLETIONS,
            takes_messages=target.protocol == CHAT,
        )
        feed = RequestFeed(workload, target)
        feed.take(sent)  # skip the requests, or conversations, that the earlier attempt sent
        self._power = PowerReadings(self._paths, clock)
        self.passes = Passes(settings, target, feed, clock, Progress(), tokenizer, slo, self._power)
        self._provenance = provenance(self._paths, server.endpoint, job)
        self._search: SearchResult | None = None
        self._broken: list[Caveat] = []
        """Causes of more failed requests in a pass than valid figures allow."""
        self._survived: list[Caveat] = []
        """Causes of failed requests within the allowed share."""

    def begin(self) -> None:
        """Remove the files of an earlier attempt of the companion, and write the records to keep."""
        with _writing(self._paths):
            self._paths.results.mkdir(exist_ok=True)
            for file in self._files.present:
                if not file.is_dir():
                    file.unlink()
            if self._records:
                append_records(self._files.requests, self._records)

    def measure(self) -> Caveat | None:
        """Run every pass; return the reason if the measurement ends early."""
        try:
            if self.settings.find_max:
                return self._run_search()
            for level in levels_of(self.settings)[len(self._results) :]:
                if (ended_early := self._run_level(level, self.settings)) is not None:
                    return ended_early
            return None
        except KeyboardInterrupt:
            return _INTERRUPTED

    def _run_search(self) -> Caveat | None:
        settings, slo = self.settings, self.passes.slo
        assert settings.slo is not None and slo is not None
        ended_early: Caveat | None = None
        window_s = max(SEARCH_WINDOW_S, settings.min_window_seconds)

        def measure(rate: float) -> RateOutcome:
            nonlocal ended_early
            at_rate = settings
            if settings.duration_seconds is None:  # enough requests to fill the window at this rate
                counts = {"requests": max(settings.requests or 1, math.ceil(rate * window_s))}
                if settings.warmup_requests:
                    warmup = math.ceil(rate * _SEARCH_WARMUP_S)
                    counts["warmup_requests"] = max(settings.warmup_requests, warmup)
                at_rate = settings.model_copy(update=counts)
            level = OpenLoop(rate, settings.arrival, settings.burstiness)
            ended_early = self._run_level(level, at_rate)
            if ended_early is not None:
                return RateOutcome(0, 0, [], unusable=sentence_of(ended_early))
            return outcome_of(self._results[-1].passes, slo, settings.max_error_share)

        self._search = find_max(measure, settings.rate_per_second, settings.slo)
        return ended_early

    def _run_level(self, level: Level, settings: Benchmark) -> Caveat | None:
        level_index, passes, repeats = len(self._results), list[Pass](), self.settings.repeats
        # The number of a search's levels is not known beforehand.
        levels = None if self.settings.find_max else len(levels_of(self.settings))
        for repeat in range(repeats):
            step = Step(level_index, levels, level.label, repeat, repeats)
            try:
                outcome = self._run_pass(level, step, settings)
            except NotReady:
                if not self._results:
                    raise
                return _SERVER_GONE
            passes.append(outcome.result)
            self._records += outcome.records
            intervals = over_repeats([finished.metrics for finished in passes])
            turns = by_turn(record for record in self._records if record.level == level_index)
            self._results[level_index:] = [LevelResult(level, passes, intervals, turns)]
            if outcome.interrupted or outcome.gone:
                return _INTERRUPTED if outcome.interrupted else _SERVER_GONE
            if outcome.failures is not None:
                return Caveat("only-failures", outcome.failures)
            self.write([Caveat("unfinished")])
        return None

    def _run_pass(self, level: Level, step: Step, settings: Benchmark) -> PassOutcome:
        """Run one pass; repeat it if the server was away during the pass and has come back.

        Raises NotReady if the server cannot be reached and does not come back.
        """
        for _ in range(MOST_CUTS):
            try:
                outcome = self._run_once(level, step, settings, ServerIdentity.of(self._paths))
                if not outcome.cut:
                    return outcome
            except NotReady:
                if not self._returned(step):
                    raise
            # Send the same requests again: the restarted server's KV cache has none of them.
            self.passes.feed.put_back(0)
        return self._run_once(level, step, settings, None)

    def _run_once(
        self, level: Level, step: Step, settings: Benchmark, begun_at: ServerIdentity | None
    ) -> PassOutcome:
        """Run one pass and append its records to the file, unless the server was away during the pass.

        ``begun_at`` identifies the server at the start; with ``None`` the pass counts in any case.
        """
        ended_before = len(ended_parts(self._paths))
        outcome = replace(self.passes, settings=settings).run(level, step)
        may_return = begun_at if self._follow is not None else None
        if may_return and was_cut(self._paths, may_return, outcome) and self._returned(step):
            return replace(outcome, cut=True)
        with _writing(self._paths):
            append_records(self._files.requests, outcome.records)
        ended, result = ended_parts(self._paths)[ended_before:], outcome.result
        if ended and result.failed:
            finding = Caveat("requests-broke", facts={"step": str(step), "ended": "; ".join(ended)})
            is_invalid = result.failed > self.settings.max_error_share * result.measured
            # A search overloads the server on purpose, so failures do not make it invalid.
            (self._broken if is_invalid and not self.settings.find_max else self._survived).append(finding)
        return outcome

    def _returned(self, step: Step) -> bool:
        """Wait for a server that is away, and follow it to its new endpoint; False if it stays away."""
        begun = time.monotonic()
        try:
            endpoint = self._follow() if self._follow is not None else None
        except TrtllmHpcError as error:
            self._notes.append(f"The server did not come back: {error}")
            return False
        if endpoint is None:
            return False
        moved = replace(self.passes.target.endpoint, **vars(endpoint))  # keeps the headers of the settings
        self.passes = replace(self.passes, target=replace(self.passes.target, endpoint=moved))
        self.samples.follow(moved)
        away_s = time.monotonic() - begun
        self._notes.append(
            f"The server or its proxy was away for at least {away_s:.0f} s during {step}: this pass is "
            "measured again."
        )
        return True

    def write(self, findings: Sequence[Caveat] = (), warnings: Sequence[Caveat] = ()) -> MeasurementSummary:
        """Write the summary and the workload so far, and return the summary."""
        feed, target = self.passes.feed, self.passes.target
        with _writing(self._paths):
            write_workload(self._files.workload, feed.sent)
        measurement = MeasurementSummary(
            name=self.name,
            started_at=self.passes.clock.started_at,
            settings=self.settings.model_dump(mode="json"),
            model=target.model,
            protocol=target.protocol,
            streaming=target.streaming,
            provenance={**self._provenance, "workload": workload_provenance(self._files.workload)},
            levels=self._results,
            tokens=token_totals(self._records),
            errors=error_counts(self._records),
            verdict=overall_verdict(
                self._results,
                self._search,
                findings=[*findings, *self._broken],
                warnings=[
                    *(Caveat("measurement", sentence=note) for note in self._notes),
                    *(Caveat("workload", sentence=note) for note in feed.built.notes),
                    *self._survived,
                    *warnings,
                ],
            ),
            search=self._search,
            energy=self._power.source,
        )
        with _writing(self._paths):
            write_measurement(self._files.summary, measurement)
        return measurement
