"""Measure a served model, and find and read its measurements."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trtllm_hpc.api.run import Run
from trtllm_hpc.errors import ConfigError, Diagnostic, InvalidMeasurement, RunNotFound
from trtllm_hpc.paths import (
    COMPANION_MEASUREMENT,
    RESERVED_ENDINGS,
    MeasurementPaths,
    RunPaths,
    call_name,
    locked,
    write_text,
)
from trtllm_hpc.runs.find import is_run

if TYPE_CHECKING:
    from pandas import DataFrame

    from trtllm_hpc.bench.measure import MeasuredServer
    from trtllm_hpc.bench.progress import Snapshot
    from trtllm_hpc.bench.records import RequestRecord
    from trtllm_hpc.bench.results import MeasurementSummary
    from trtllm_hpc.config.benchmark import Benchmark

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Pattern of the names of measurements and evaluations."""
_TAKEN = ("progress", "request")
"""Names that other files of the results folder use."""


class NameRefused(ConfigError):
    """The name of a new measurement is invalid or in use."""

    def __init__(self, message: str) -> None:
        super().__init__([Diagnostic("bad-name", message, field="name")])


class Measurement:
    """A measurement in a run folder, or copied out of one. ``print`` shows it as ``bench show`` does.

    The measurement's files are read when they are first needed.

    Args:
        paths: the run's folder; for a copied measurement, paths whose results folder is the copy's folder.
        name: of the measurement.
    """

    def __init__(self, paths: RunPaths, name: str) -> None:
        self.paths = paths
        self.name = name

    def __repr__(self) -> str:
        return f"Measurement({self.call_name!r})"

    def __str__(self) -> str:
        from trtllm_hpc.report.measurement_table import measurement_text

        return measurement_text(self.summary)

    @classmethod
    def find(cls, name: str | Path = "latest", runs: Path | str | None = None) -> Measurement:
        """Return a measurement by ``RUN``, ``RUN:NAME`` or the path of its file ``results/NAME.json``.

        Args:
            name: ``RUN`` alone means the run's newest finished measurement.
            runs: folder of the runs, as for :meth:`Run.find`.

        Raises:
            RunNotFound: the run does not exist, or has no such measurement.
        """
        path = Path(name)
        if path.suffix == ".json" and path.is_file():
            path = path.absolute()
            paths = RunPaths(path.parent.parent)
            paths.results = path.parent
            return cls(paths, path.stem)
        run, colon, wanted = str(name).rpartition(":")
        paths = measured_folder(run if colon else wanted, runs)
        names = paths.measurements()
        if colon and wanted not in names:
            present = f"Its measurements: {', '.join(names)}." if names else "It has no measurements."
            raise RunNotFound(f"Run {paths.run_id} has no measurement called {wanted!r}. {present}")
        if not names:
            hint = f"trtllm-hpc bench {call_name(paths)}"
            raise RunNotFound(f"Run {paths.run_id} has no measurement yet.", hint=hint)
        if not colon:
            # A measurement without a summary is still running, or was killed.
            wanted = next((each for each in names if paths.measurement(each).summary.is_file()), names[0])
        return cls(paths, wanted)

    @classmethod
    def list(cls, run: Run) -> Sequence[Measurement]:
        """Return the measurements of a run, the newest first."""
        return [cls(run.paths, name) for name in run.paths.measurements()]

    @property
    def files(self) -> MeasurementPaths:
        """The measurement's files. A copied measurement keeps them all in one folder."""
        return self.paths.measurement(self.name)

    @property
    def _is_copy(self) -> bool:
        return self.paths.results != RunPaths(self.paths.folder).results

    @property
    def call_name(self) -> str:
        """The measurement's name for commands: ``RUN:NAME``, or the file of a copied measurement."""
        if self._is_copy:
            return shlex.quote(str(self.files.summary))
        return f"{call_name(self.paths)}:{self.name}"

    # What was measured --------------------------------------------------------------------------

    @cached_property
    def summary(self) -> MeasurementSummary:
        """The content of ``results/NAME.json``: settings, provenance, levels, tokens, errors, verdict.

        Raises:
            RunNotFound: the file is missing, or another version of this package wrote it.
        """
        from trtllm_hpc.bench.results import read_measurement

        return read_measurement(self.files.summary)

    @cached_property
    def records(self) -> Sequence[RequestRecord]:
        """The record of every request, warm-up included; empty if the file of the records is missing."""
        from trtllm_hpc.bench.records import read_records

        try:
            return read_records(self.files.requests)
        except FileNotFoundError:
            return []

    @property
    def valid(self) -> bool:
        """Whether the figures may be used. If not, ``summary.verdict`` contains the reasons."""
        return self.summary.valid

    @property
    def figures(self) -> Mapping[str, float]:
        """The figures of the headline level by key, e.g. ``output_tokens_per_s`` and ``ttft_ms.p99``.

        The headline level is the rate that a search found, else the highest load that the server kept up
        with; the table shows its figures in full. Each figure is a mean over all passes; the formulas are in
        docs/reference/metrics.md. Empty if no level was measured.
        """
        from trtllm_hpc.report.headline import headline_level, level_figures

        level = headline_level(self.summary)
        return {} if level is None else level_figures(self.summary.levels[level])

    def to_pandas(self, rows: Literal["requests", "levels"] = "requests") -> DataFrame:
        """Return a table with a row for each request, or for each level of load.

        Args:
            rows: ``requests``: times in seconds since the measurement began, latencies in milliseconds,
                ``NaN`` for a missing figure. Requests of the warm-up are included; the column ``phase``
                marks them. ``levels``: the columns ``level``, ``valid``, ``measured`` and ``failed``, and
                one column for each key of :attr:`figures`.

        Raises:
            TrtllmHpcError: pandas is not installed.
        """
        from trtllm_hpc.report.headline import levels_frame, requests_frame

        if rows == "levels":
            return levels_frame(self.summary)
        return requests_frame(self.summary, self.records)

    # Check and report ---------------------------------------------------------------------------

    def check(self) -> None:
        """Raise an exception if the figures must not be used.

        Raises:
            InvalidMeasurement: contains every finding, the most frequent error, and the next command.
        """
        summary = self.summary
        if summary.valid:
            return
        from trtllm_hpc.report.formatting import cut

        message = " ".join(map(str, summary.verdict.findings))
        if summary.errors:
            error, count = max(summary.errors.items(), key=lambda item: item[1])
            message += f" Most frequent error ({count} times): {cut(error)}"
        raise InvalidMeasurement(message, hint=self._next_step())

    def _next_step(self) -> str:
        """Return the next command for the most frequent failure."""
        from trtllm_hpc.bench.analysis.validity import TIMED_OUT, unanswered_at_the_end
        from trtllm_hpc.client.single_calls import key_hint

        run, summary = call_name(self.paths), self.summary
        failed = [record for record in self.records if record.measured and not record.ok]
        codes = {finding.code for finding in summary.verdict.findings}
        # A server outside any run has no logs and no status here.
        if not is_run(self.paths.folder):
            hints = filter(None, (key_hint(record.status) for record in failed))
            return next(hints, f"trtllm-hpc bench show {self.call_name}, and read the server's own log")
        if codes & {"server-gone", "ended-server-gone"}:
            return f"trtllm-hpc status {run}"
        if "requests-broke" in codes:
            again = "resume" if self.name == COMPANION_MEASUREMENT else "bench"
            return f"trtllm-hpc {again} {run} measures again"
        if not failed:
            return f"trtllm-hpc bench show {self.call_name}"
        if unanswered_at_the_end(self.records) and any(record.ok for record in self.records):
            return (
                f"trtllm-hpc logs {run} --rank 0 shows the server's last lines; "
                "serve.hang_timeout_seconds ends a server that hangs"
            )
        if 2 * sum(record.status == TIMED_OUT for record in failed) > len(failed):
            limit = summary.settings.get("request_timeout_seconds")
            raised = f"raise request_timeout_seconds (now {limit}) with --set"
            return f"{raised}, or request a lower rate or shorter answers"
        return f"trtllm-hpc logs {run} --rank 0"

    def report(self, to: Path | str | None = None) -> Path:
        """Write the measurement as one HTML file that opens without a network, and return its path.

        Args:
            to: path of the file; by default ``report.html`` of the run for the companion's measurement,
                ``results/NAME.html`` for any other.

        Raises:
            RunNotFound: the measurement is a copy outside a run folder, and a report needs the run's files.
            TrtllmHpcError: the package that draws the charts is not installed.
        """
        from trtllm_hpc.report.html.page import write_report

        if self._is_copy:
            raise RunNotFound(
                f"{self.files.summary} is not in a run folder, and a report needs the run's files.",
                hint=f"trtllm-hpc bench show {self.call_name}",
            )
        file = self.files.report if to is None else Path(to)
        write_report(self.paths, self.name, file)
        return file


def bench(
    run: Run | str | Path = "latest",
    *,
    name: str | None = None,
    base: Benchmark | None = None,
    wait_s: float = 0.0,
    on_progress: Callable[[Snapshot], object] | None = None,
    **settings: Any,
) -> Measurement:
    """Measure the served model of a run, and write all results to ``results/`` in the run folder.

    Invalid figures raise no exception: see :attr:`Measurement.valid` and :meth:`Measurement.check`.

    Args:
        run: a run, or a name for :meth:`Run.find`.
        name: of the measurement; must be new, except ``benchmark``, which replaces the companion's
            measurement. By default ``bench-DATE-TIME``.
        base: settings to start from; by default ``companion.benchmark`` of the run's job file.
        wait_s: seconds to wait for the server to become ready.
        on_progress: called twice a second from its own thread; ``print`` is enough.
        settings: keys of ``companion.benchmark``, e.g. ``requests=100``, ``slo="ttft.p99<500ms"`` and
            ``workload={"kind": "normal", "input_tokens": 128}``. ``rate_per_second`` and ``concurrency``
            also take several values, which are measured one after the other. If a setting excludes a key of
            ``base``, that key goes back to its default.

    Raises:
        TypeError: unknown setting.
        ConfigError: settings exclude each other, or a file or the name cannot be used.
        NotReady: the server was not ready in time.
        StartFailed, BuildFailed, RunCancelled, JobLost: the run has no server and will not have one.
        RequestFailed, InvalidMeasurement: the model does not support such requests.
        KeyboardInterrupt: Ctrl-C; the results so far are saved.
    """
    from trtllm_hpc.bench.measure import MeasuredServer
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.runs.endpoint import endpoint_of, follower_of
    from trtllm_hpc.validation.benchmark_settings import refuse_over_limits, settings_of

    served = run if isinstance(run, Run) else Run.find(run)
    job = served.job
    chosen = settings_of(base or job.companion.benchmark or Benchmark(), _fields(settings))
    refuse_over_limits(job, chosen)
    with _reserved(served.paths, name) as measurement:
        endpoint, follow = endpoint_of(served.paths, wait_s), follower_of(served.paths, restarts=True)
        server = MeasuredServer(served.paths, endpoint, job, follow)
        return _measure(server, chosen, measurement, on_progress)


def bench_url(
    url: str,
    output: Path | str,
    *,
    key_file: Path | None = None,
    certificate: Path | None = None,
    name: str | None = None,
    base: Benchmark | None = None,
    on_progress: Callable[[Snapshot], object] | None = None,
    **settings: Any,
) -> Measurement:
    """Measure a server that another program started, and write all results to ``output/results/``.

    Args:
        url: ``http://`` or ``https://`` (OpenAI protocol or Triton), or ``grpc://`` (Triton's gRPC port).
        output: folder of the results, created if missing. ``Measurement.find(f"{output}:{name}")`` finds the
            measurement again.
        key_file: file with the server's API key.
        certificate: file of the certificate to trust; by default the system's certificates are trusted.

    The other arguments are those of :func:`bench`; ``base`` is by default an empty ``companion.benchmark``.

    Raises:
        InvalidRequest: the URL's protocol is unknown, or differs from the protocol in the settings.
        TypeError, ConfigError, NotReady, RequestFailed, InvalidMeasurement, KeyboardInterrupt: see `bench`.
    """
    from trtllm_hpc.bench.measure import MeasuredServer
    from trtllm_hpc.bench.targets import with_protocol
    from trtllm_hpc.client.connect import Address, look_at
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.validation.benchmark_settings import settings_of

    chosen = settings_of(base or Benchmark(), _fields(settings))
    paths = RunPaths(Path(output))
    protocol, endpoint = look_at(Address(url, key_file, certificate), chosen.request_timeout_seconds)
    chosen = with_protocol(chosen, protocol, url)
    with _reserved(paths, name) as measurement:
        return _measure(MeasuredServer(paths, endpoint, None), chosen, measurement, on_progress)


def _measure(
    server: MeasuredServer,
    settings: Benchmark,
    measurement: Measurement,
    on_progress: Callable[[Snapshot], object] | None,
) -> Measurement:
    from trtllm_hpc.bench.measure import MeasurementInterrupted, run_measurement

    try:
        run_measurement(server, settings, measurement.name, on_progress)
    except MeasurementInterrupted:
        write_text(measurement.files.table, str(measurement))
        raise
    write_text(measurement.files.table, str(measurement))
    return measurement


def _fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords as dotted fields. Keys that take several values become lists."""
    from trtllm_hpc.config.benchmark import Benchmark
    from trtllm_hpc.validation.benchmark_settings import SWEEPS

    known = sorted(Benchmark.model_fields.keys() - set(SWEEPS.values()))
    fields: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            from difflib import get_close_matches

            near = get_close_matches(key, known, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else f". The settings are {', '.join(known)}."
            raise TypeError(f"bench() has no setting {key!r}{guess}")
        if key == "workload":
            fields |= {f"workload.{inner}": inner_value for inner, inner_value in dict(value).items()}
        elif key in SWEEPS:
            fields[key] = list(value) if isinstance(value, (list, tuple)) else [value]
        else:
            fields[key] = value
    return fields


def measured_folder(name: str, runs: Path | str | None = None) -> RunPaths:
    """Return the folder of a run, or a folder with results of :func:`bench_url`.

    Raises:
        RunNotFound: neither exists.
    """
    paths = RunPaths(name) if name and "\0" not in name else None
    if paths is not None and not is_run(paths.folder) and paths.measurements():
        return paths
    return Run.find(name, runs).paths


@contextmanager
def _reserved(paths: RunPaths, name: str | None) -> Iterator[Measurement]:
    """Yield a new measurement and keep its name from other processes. Raises NameRefused."""
    chosen = _checked(paths, time.strftime("bench-%Y%m%d-%H%M%S") if name is None else name)
    paths.results.mkdir(parents=True, exist_ok=True)
    lock = paths.results / f".{chosen}.lock"
    message = f"another command measures {paths.run_id} as {chosen!r} right now. Choose another name."
    with ExitStack() as held:
        with suppress(OSError):  # the folder is read-only: the results will be kept elsewhere
            held.enter_context(locked(lock, NameRefused(message)))
            held.callback(_forget, lock)
        _checked(paths, chosen)  # the other command may just have ended
        yield Measurement(paths, chosen)


def _forget(lock: Path) -> None:
    with suppress(OSError):  # the folder may be removed or read-only by now
        lock.unlink()


def _checked(paths: RunPaths, chosen: str) -> str:
    """Return the name if it overwrites no measurement except the companion's. Raises NameRefused."""
    if not NAME.fullmatch(chosen):
        raise NameRefused(
            f"{chosen!r} is not a valid name: use at most 100 letters, digits, '.', '_' and '-', and begin "
            "with a letter or a digit."
        )
    if chosen in _TAKEN or chosen.endswith(RESERVED_ENDINGS):
        raise NameRefused(f"results/{chosen}.json is the name of another file. Choose another name.")
    present = paths.measurement(chosen).present
    if present and chosen != COMPANION_MEASUREMENT:
        raise NameRefused(
            f"run {paths.run_id} already has a measurement called {chosen!r} ({present[0]}). "
            "Choose another name, or leave the name out: the default name has the current time."
        )
    return chosen
