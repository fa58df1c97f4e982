"""Sample the server's metrics during a measurement, on the client's clock."""

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
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from trtllm_hpc.bench.server_metrics.series import Page, values
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import write_text
from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from trtllm_hpc.bench.load.timing import Clock

INTERVAL_S = 0.5
"""TensorRT-LLM's backend updates its gauges every 0.1 s (``stats_check_period_ms``)."""
_TIMEOUT_S = 5.0
_MAX_LOOKS = 2000


@dataclass(frozen=True)
class ServerSample:
    """The figures of the server at one moment."""

    time_s: float
    """Middle of the GET, on the measurement's clock."""
    within_s: float
    """Half of the GET's duration: the page was written at ``time_s`` plus or minus this."""
    values: dict[str, float]
    """By the keys of :mod:`trtllm_hpc.bench.server_metrics.series`. What the server does not report is
    absent, never zero. So are rates and means in the first sample, and a mean over requests if none
    finished since the previous sample."""


class _Look(NamedTuple):
    """Pages as they came; parsed only when the load is over."""

    time_s: float
    within_s: float
    pages: Sequence[bytes]


class Samples:
    """The metrics during a measurement, fetched by a thread; to be read when the sampling is over.

    With more than ``max_looks``, every second one is dropped and the interval doubles.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, interval_s: float, max_looks: int) -> None:
        self._endpoint, self._clock = endpoint, clock
        self._interval_s, self._max_looks = interval_s, max_looks
        self._looks: list[_Look] = []
        self._attempts = self._failures = 0
        self._last_failure = ""

    def follow(self, endpoint: Endpoint) -> None:
        """Fetch the pages of a server that has moved, from now on."""
        self._endpoint = endpoint

    def __len__(self) -> int:
        """Return the number of looks kept so far."""
        return len(self._looks)

    @cached_property
    def samples(self) -> list[ServerSample]:
        """The samples in the order of time."""
        found, before, before_s = [], None, 0.0
        for look in self._looks:
            with suppress(ValueError):
                page = _parsed(look.pages)
                figures = values(page, before, look.time_s - before_s)
                found.append(ServerSample(look.time_s, look.within_s, figures))
                before, before_s = page, look.time_s
        return found

    @property
    def warning(self) -> str | None:
        """A sentence if the metrics could not be read; a server without a run may have no such page."""
        if self._failures and (self._looks or self._endpoint.job_id):
            often = f"{self._failures} of {self._attempts} times" if self._looks else "at any time"
            url = self._endpoint.metrics
            return f"The server's metrics at {url} could not be read {often} ({self._last_failure})."
        if len(self.samples) < len(self._looks):
            return f"{self._endpoint.metrics} is not a page of metrics."
        return None

    def fetch_until(self, ended: threading.Event) -> None:
        """Fetch the metrics about every interval, and once more at the end."""
        endpoint, interval_s, is_last = self._endpoint, self._interval_s, False
        connection = _connection(endpoint)
        while not is_last:
            is_last = ended.is_set()
            if self._endpoint != endpoint:
                connection.close()
                endpoint = self._endpoint
                connection = _connection(endpoint)
            if (look := self._look(connection, endpoint)) is not None:
                # Rates over a short moment would be wild.
                since_s = look.time_s - self._looks[-1].time_s if len(self._looks) > 1 else interval_s
                if is_last and since_s < self._interval_s / 2:
                    self._looks.pop()
                self._looks.append(look)
                if len(self._looks) >= self._max_looks and not is_last:
                    del self._looks[1::2]
                    interval_s *= 2
            if not is_last:
                # Sampling at equal intervals would keep step with a load at a constant rate, and see it
                # always busy or always idle (RFC 2330, section 11.1: periodic sampling).
                ended.wait(interval_s * random.uniform(0.5, 1.5))
        connection.close()

    def _look(self, connection: HTTPConnection, endpoint: Endpoint) -> _Look | None:
        """Fetch the metrics; ``None`` if that fails, which is noted for :attr:`warning`."""
        self._attempts += 1
        begun_s = self._clock.now()
        try:
            pages = _get(connection, endpoint)
        except RequestFailed as error:
            self._failures += 1
            self._last_failure = error.message
            return None
        ended_s = self._clock.now()
        return _Look((begun_s + ended_s) / 2, (ended_s - begun_s) / 2, pages)


@contextmanager
def sampled(
    endpoint: Endpoint,
    clock: Clock,
    interval_s: float = INTERVAL_S,
    *,
    max_looks: int = _MAX_LOOKS,
    to: Path | None = None,
    before: Sequence[ServerSample] = (),
) -> Iterator[Samples]:
    """Fetch the endpoint's metrics about every ``interval_s`` seconds, and once more at the end.

    A thread does it, and only keeps the bytes: they are parsed afterwards, so that the load's sender is not
    delayed. A page that cannot be read is a warning, not an error. After the samples of an earlier attempt,
    ``before``, they are written ``to`` a file even after an error, when the last ones matter most.
    """
    samples, ended = Samples(endpoint, clock, interval_s, max_looks), threading.Event()
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


def fetch_page(endpoint: Endpoint) -> Page:
    """Return the server's metrics of this moment.

    Raises RequestFailed if they cannot be read, or are not a page of metrics.
    """
    with closing(_connection(endpoint)) as connection:
        try:
            return _parsed(_get(connection, endpoint))
        except (RequestFailed, ValueError) as error:
            raise RequestFailed(f"The metrics at {endpoint.metrics} could not be read: {error}") from None


def _parsed(pages: Iterable[bytes]) -> Page:
    return Page(*(page.decode("utf-8", errors="replace") for page in pages))


def _connection(endpoint: Endpoint) -> HTTPConnection:
    url = urlsplit(endpoint.metrics)
    host, port = url.hostname or endpoint.address, url.port
    if (context := endpoint.tls()) is not None:
        return HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
    return HTTPConnection(host, port, timeout=_TIMEOUT_S)


def _get(connection: HTTPConnection, endpoint: Endpoint) -> Sequence[bytes]:
    """Return the page of each of Triton's instances, or of any instance of another server.

    The connection is kept: a new one each time costs both sides more. Raises RequestFailed in a few words.
    """
    headers = endpoint.authorization
    if endpoint.is_triton:
        pages, failure = list[bytes](), None
        for path in ("/metrics", *(f"/metrics/{instance}" for instance in range(1, endpoint.instances))):
            try:
                pages.append(_get_page(connection, path, headers))
            except RequestFailed as error:
                failure = error  # an instance that is being started again has no page
        if not pages and failure is not None:
            raise failure
        return pages
    path = f"{urlsplit(endpoint.openai_root).path}/metrics"
    page = _get_page(connection, path, headers)
    if page.lstrip().startswith(b"["):  # trtllm-serve, which may have a page for Prometheus, too
        line = b"".join(page.strip().splitlines()) + b"\n"
        with suppress(RequestFailed):
            line += _get_page(connection, path.removesuffix("metrics") + "prometheus/metrics", headers)
        return [line]
    return [page]


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
