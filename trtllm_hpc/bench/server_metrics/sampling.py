"""The server's own metrics during a measurement, on the client's clock."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Protocol

from trtllm_hpc.bench.server_metrics.page import Page
from trtllm_hpc.bench.server_metrics.series import values
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import write_text
from trtllm_hpc.runtime.records import Endpoint

INTERVAL_S = 0.5
"""TensorRT-LLM's backend brings its gauges up to date every 0.1 s (``stats_check_period_ms``)."""
_TIMEOUT_S = 5.0
_MOST_PAGES = 2000


class Clock(Protocol):
    """The measurement's clock."""

    def now(self) -> float:
        """Seconds since its zero, monotonic."""


@dataclass(frozen=True)
class ServerSample:
    """One look at the server's metrics page."""

    time_s: float
    """Middle of the GET, on the measurement's clock."""
    within_s: float
    """Half of the GET's time: the page was written at ``time_s``, give or take this."""
    values: dict[str, float]
    """By key of the series, see :mod:`trtllm_hpc.bench.server_metrics.series`. What the server does not
    tell is absent, never zero; so are a rate and a mean in the first sample, and a mean over
    requests where none finished since the sample before."""


@dataclass(frozen=True)
class _Look:
    time_s: float
    within_s: float
    text: bytes


class Samples:
    """What was sampled; to be read once the sampling is over.

    Args:
        url: of the page.
        most: pages kept; with more, every second one is let go and the interval doubles.
    """

    def __init__(self, url: str, most: int) -> None:
        self._url, self._most = url, most
        self._looks: list[_Look] = []
        self._asked = self._failures = 0
        self._failure = ""
        self._stride = 1

    def __len__(self) -> int:
        """Pages that have come so far."""
        return len(self._looks)

    @cached_property
    def samples(self) -> list[ServerSample]:
        """All of them, in the order of time."""
        found, before, before_s = [], None, 0.0
        for look in self._looks:
            try:
                page = Page(look.text.decode("utf-8", errors="replace"))
            except ValueError:
                continue
            figures = values(page, before, look.time_s - before_s)
            found.append(ServerSample(look.time_s, look.within_s, figures))
            before, before_s = page, look.time_s
        return found

    @property
    def warning(self) -> str | None:
        """One sentence if the page could not be had, or not always."""
        if self._failures:
            often = f"{self._failures} of {self._asked} times" if self._looks else "at any time"
            return f"The server's metrics at {self._url} could not be read {often} ({self._failure})."
        if len(self.samples) < len(self._looks):
            return f"What is at {self._url} is no page of metrics."
        return None

    def _add(self, look: _Look) -> None:
        self._looks.append(look)
        if len(self._looks) >= self._most:
            del self._looks[1::2]
            self._stride *= 2

    def _end(self, look: _Look, interval_s: float) -> None:
        """The last one takes the place of one just before: growth over a moment makes a wild rate."""
        if len(self._looks) > 1 and look.time_s - self._looks[-1].time_s < interval_s / 2:
            self._looks.pop()
        # Not thinned out any more, which might take just this one.
        self._looks.append(look)

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        self._asked += 1
        try:
            yield
        except RequestFailed as error:
            self._failures += 1
            self._failure = error.message


@contextmanager
def sampled(
    endpoint: Endpoint, clock: Clock, interval_s: float = INTERVAL_S, *, most: int = _MOST_PAGES
) -> Iterator[Samples]:
    """While open, look at the endpoint's metrics page about every ``interval_s`` seconds, and at the end.

    A thread does it, and only keeps what comes: it is read afterwards, so that the load's
    sender is not held up. A page that cannot be had is no error but a warning.

    Args:
        most: pages kept, see :class:`Samples`.
    """
    samples, ended = Samples(endpoint.metrics, most), threading.Event()
    thread = threading.Thread(
        target=_sample, args=(endpoint, clock, interval_s, samples, ended), name="metrics", daemon=True
    )
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _sample(
    endpoint: Endpoint, clock: Clock, interval_s: float, samples: Samples, ended: threading.Event
) -> None:
    connection = HTTPConnection(endpoint.address, endpoint.metrics_port, timeout=_TIMEOUT_S)
    while not ended.is_set():
        with samples._noting_failure():
            samples._add(_look(connection, clock))
        ended.wait(_pause(interval_s * samples._stride))
    with samples._noting_failure():
        samples._end(_look(connection, clock), interval_s)
    connection.close()


def _pause(interval_s: float) -> float:
    """Seconds until the next look, ``interval_s`` on average.

    Looks at equal times would keep step with a load at a constant rate, and see it always
    busy or always idle (RFC 2330, section 11.1: periodic sampling).
    """
    return interval_s * random.uniform(0.5, 1.5)


def _look(connection: HTTPConnection, clock: Clock) -> _Look:
    begun_s = clock.now()
    text = _get(connection)
    ended_s = clock.now()
    return _Look((begun_s + ended_s) / 2, (ended_s - begun_s) / 2, text)


def _get(connection: HTTPConnection) -> bytes:
    """The page's bytes. The connection is kept: a new one each time costs both sides more.

    Raises:
        RequestFailed: in a few words.
    """
    try:
        connection.request("GET", "/metrics")
        reply = connection.getresponse()
        text = reply.read()
    except (OSError, HTTPException) as error:
        connection.close()
        raise RequestFailed(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None
    if reply.status != 200:
        raise RequestFailed(f"it answers {reply.status} {reply.reason}")
    return text


def look_now(endpoint: Endpoint) -> Page:
    """The metrics page as it is now.

    Raises:
        RequestFailed: it cannot be had, or is no page of metrics.
    """
    connection = HTTPConnection(endpoint.address, endpoint.metrics_port, timeout=_TIMEOUT_S)
    try:
        return Page(_get(connection).decode("utf-8", errors="replace"))
    except (RequestFailed, ValueError) as error:
        raise RequestFailed(f"The metrics at {endpoint.metrics} could not be read: {error}") from None
    finally:
        connection.close()


def write_samples(path: Path, samples: Iterable[ServerSample]) -> None:
    """Write them as JSON lines."""
    write_text(path, "".join(f"{json.dumps(asdict(sample), ensure_ascii=False)}\n" for sample in samples))


def read_samples(path: Path) -> list[ServerSample]:
    """Read what :func:`write_samples` wrote; none if there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [ServerSample(**json.loads(line)) for line in text.split("\n") if line]
