"""Sample the server's metrics page during a measurement, on the client's clock."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trtllm_hpc.bench.server_metrics.series import Page, Source, hit_share, output_tokens, values
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import write_text
from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from trtllm_hpc.bench.load.timing import Clock

INTERVAL_S = 0.5
"""TensorRT-LLM's backend updates its gauges every 0.1 s (``stats_check_period_ms``)."""
_TIMEOUT_S = 5.0
_MAX_PAGES = 2000


@dataclass(frozen=True)
class ServerSample:
    """The figures of one metrics page."""

    time_s: float
    """Middle of the GET, on the measurement's clock."""
    within_s: float
    """Half of the GET's duration: the page was written at ``time_s`` plus or minus this."""
    values: dict[str, float]
    """By the keys of :mod:`trtllm_hpc.bench.server_metrics.series`. What the server does not report is
    absent, never zero. So are rates and means in the first sample, and a mean over requests if none
    finished since the previous sample."""


@dataclass(frozen=True)
class ServerTokens:
    """The output tokens of all answers that ended while the page was sampled, of other clients, too."""

    tokens: int
    since_s: float
    """When the first page was written, on the measurement's clock."""
    until_s: float
    """When the last page was written."""
    hit_share: float | None = None
    """Share of the prompts' KV blocks that the server found; ``None`` if it does not say."""


@dataclass(frozen=True)
class _RawPage:
    """A page as it came; parsed only when the load is over."""

    time_s: float
    within_s: float
    text: bytes

    def parse(self) -> Page:
        """Return the page; ValueError if it is not a page of metrics."""
        return Page(self.text.decode("utf-8", errors="replace"))


class Samples:
    """The pages of a measurement, fetched by a thread; to be read when the sampling is over.

    With more than ``max_pages``, every second page is dropped and the interval doubles.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, interval_s: float, max_pages: int) -> None:
        self._endpoint, self._clock = endpoint, clock
        self._interval_s, self._max_pages = interval_s, max_pages
        self._pages: list[_RawPage] = []
        self._attempts = self._failures = 0
        self._last_failure = ""
        self._has_moved = False

    def follow(self, endpoint: Endpoint) -> None:
        """Fetch the pages from there, from now on: the server was away, and has counted from zero since."""
        self._endpoint, self._has_moved = endpoint, True

    def __len__(self) -> int:
        """Return the number of pages kept so far."""
        return len(self._pages)

    @cached_property
    def samples(self) -> list[ServerSample]:
        """The samples in the order of time."""
        found, before, before_s = [], None, 0.0
        for raw in self._pages:
            with suppress(ValueError):
                page = raw.parse()
                figures = values(page, before, raw.time_s - before_s)
                found.append(ServerSample(raw.time_s, raw.within_s, figures))
                before, before_s = page, raw.time_s
        return found

    @property
    def output_tokens(self) -> ServerTokens | None:
        """The server's own count; ``None`` if its metrics have none, or began again."""
        if len(self._pages) < 2 or self._has_moved:
            return None
        first, last = self._pages[0], self._pages[-1]
        with suppress(ValueError):
            pages = first.parse(), last.parse()
            if (tokens := output_tokens(*pages)) is not None:
                return ServerTokens(round(tokens), first.time_s, last.time_s, hit_share(*pages))
        return None

    @property
    def warning(self) -> str | None:
        """A sentence if the page could not be read, always or sometimes; one without a run may have none."""
        if self._failures and (self._pages or self._endpoint.job_id):
            often = f"{self._failures} of {self._attempts} times" if self._pages else "at any time"
            url = self._endpoint.metrics
            return f"The server's metrics at {url} could not be read {often} ({self._last_failure})."
        if len(self.samples) < len(self._pages):
            return f"{self._endpoint.metrics} is not a page of metrics."
        return None

    def fetch_until(self, ended: threading.Event) -> None:
        """Fetch pages about every interval, and once more at the end."""
        endpoint, interval_s, is_last = self._endpoint, self._interval_s, False
        connection = _connection(endpoint)
        while not is_last:
            is_last = ended.is_set()
            if self._endpoint != endpoint:
                connection.close()
                endpoint = self._endpoint
                connection = _connection(endpoint)
            if (page := self._fetch(connection)) is not None:
                # Rates over a short moment would be wild.
                since_s = page.time_s - self._pages[-1].time_s if len(self._pages) > 1 else interval_s
                if is_last and since_s < self._interval_s / 2:
                    self._pages.pop()
                self._pages.append(page)
                if len(self._pages) >= self._max_pages and not is_last:
                    del self._pages[1::2]
                    interval_s *= 2
            if not is_last:
                # Sampling at equal intervals would keep step with a load at a constant rate, and see it
                # always busy or always idle (RFC 2330, section 11.1: periodic sampling).
                ended.wait(interval_s * random.uniform(0.5, 1.5))
        connection.close()

    def _fetch(self, connection: HTTPConnection) -> _RawPage | None:
        """Fetch a page; ``None`` if that fails, which is noted for :attr:`warning`."""
        self._attempts += 1
        begun_s = self._clock.now()
        try:
            text = _get(connection, self._endpoint)
        except RequestFailed as error:
            self._failures += 1
            self._last_failure = error.message
            return None
        ended_s = self._clock.now()
        return _RawPage((begun_s + ended_s) / 2, (ended_s - begun_s) / 2, text)


@contextmanager
def sampled(
    endpoint: Endpoint,
    clock: Clock,
    interval_s: float = INTERVAL_S,
    *,
    max_pages: int = _MAX_PAGES,
    to: Path | None = None,
    before: Sequence[ServerSample] = (),
) -> Iterator[Samples]:
    """Fetch the endpoint's metrics page about every ``interval_s`` seconds, and once more at the end.

    A thread does it, and only keeps the bytes: they are parsed afterwards, so that the load's sender is not
    delayed. A page that cannot be read is a warning, not an error. After the samples of an earlier attempt,
    ``before``, they are written ``to`` a file even after an error, when the last ones matter most.
    """
    samples, ended = Samples(endpoint, clock, interval_s, max_pages), threading.Event()
    if not endpoint.metrics_port and endpoint.is_triton:  # a server without a run, known by one port
        yield samples
        return
    thread = threading.Thread(target=samples.fetch_until, args=(ended,), name="metrics", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        if to is not None:
            with suppress(OSError):  # the figures of the requests do not need them
                write_samples(to, [*before, *samples.samples])


def _connection(endpoint: Endpoint) -> HTTPConnection:
    url = urlsplit(endpoint.metrics)
    host, port = url.hostname or endpoint.address, url.port
    if (context := endpoint.tls()) is not None:
        return HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    return HTTPConnection(host, port, timeout=_TIMEOUT_S)


def _get(connection: HTTPConnection, endpoint: Endpoint) -> bytes:
    """Return the pages of all instances as one, whose figures are added up.

    The connection is kept: a new one each time costs both sides more. Raises RequestFailed in a few words.
    """
    if not endpoint.is_triton:
        return _get_statistics(connection, endpoint)
    further = (f"/metrics/{instance}" for instance in range(1, endpoint.instances))
    pages: list[bytes] = []
    for path in ("/metrics", *further):
        try:
            pages.append(_get_page(connection, path, endpoint.authorization))
        except RequestFailed as error:
            missing = error  # an instance that is being started again has no page
    if not pages:
        raise missing
    return _joined(pages)


def _get_statistics(connection: HTTPConnection, endpoint: Endpoint) -> bytes:
    """Return what ``trtllm-serve`` tells: a line of statistics, and its page for Prometheus if it has one."""
    root = urlsplit(endpoint.openai_root).path
    page = _get_page(connection, f"{root}/metrics", endpoint.authorization)
    if not page.lstrip().startswith(b"["):
        return page
    line = b"".join(page.strip().splitlines()) + b"\n"
    try:
        return line + _get_page(connection, f"{root}/prometheus/metrics", endpoint.authorization)
    except RequestFailed:
        return line


def _joined(pages: list[bytes]) -> bytes:
    """Join the pages of instances, without what two of them tell of the same thing.

    Figures of a GPU bear its UUID, and are taken from one page; those of the
    host bear no name, and are taken from the first page, and so from its node.
    """
    known: set[bytes] = set()
    lines: list[bytes] = []
    for number, page in enumerate(pages):
        for line in page.splitlines(keepends=True):
            if line.startswith((b"nv_gpu_", b"nv_energy_")) or (line.startswith(b"nv_cpu_") and number):
                figure = line.rpartition(b" ")[0]
                if figure in known or line.startswith(b"nv_cpu_"):
                    continue
                known.add(figure)
            lines.append(line)
    return b"".join(lines)


def _get_page(connection: HTTPConnection, path: str, headers: Mapping[str, str]) -> bytes:
    try:
        connection.request("GET", path, headers=dict(headers))
        reply = connection.getresponse()
        text = reply.read()
    except (OSError, HTTPException) as error:
        connection.close()
        raise RequestFailed(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None
    if reply.status != 200:
        raise RequestFailed(f"it answers {reply.status} {reply.reason}")
    return text


def fetch_page(endpoint: Endpoint) -> Page:
    """Return the metrics page of this moment.

    Raises RequestFailed if it cannot be read, or is not a page of metrics.
    """
    with closing(_connection(endpoint)) as connection:
        try:
            return Page(_get(connection, endpoint).decode("utf-8", errors="replace"))
        except (RequestFailed, ValueError) as error:
            raise RequestFailed(f"The metrics at {endpoint.metrics} could not be read: {error}") from None


def energy_counter(endpoint: Endpoint) -> tuple[str, float] | None:
    """Return the name and joules of the server's own energy counter, if it has such a counter."""
    name = "Triton's nv_energy_consumption" if endpoint.is_triton else "the server's /energy_metrics"
    with suppress(RequestFailed, ValueError, KeyError, TypeError):
        if endpoint.is_triton:
            joules = fetch_page(endpoint).total((Source("nv_energy_consumption"),), None)
            return None if joules is None else (name, joules)
        if endpoint.instances > 1:  # the proxy asks any of them
            return None
        with closing(_connection(endpoint)) as connection:
            path = f"{urlsplit(endpoint.openai_root).path}/energy_metrics"
            page = json.loads(_get_page(connection, path, endpoint.authorization))
            return name, float(page["total_energy_j"])
    return None


def write_samples(path: Path, samples: Iterable[ServerSample]) -> None:
    """Write samples as JSON lines."""
    write_text(path, "".join(f"{json.dumps(asdict(sample), ensure_ascii=False)}\n" for sample in samples))


def read_samples(path: Path) -> list[ServerSample]:
    """Read what :func:`write_samples` wrote; none if there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [ServerSample(**json.loads(line)) for line in text.split("\n") if line]
