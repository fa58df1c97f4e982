"""The server's metrics: parse a page, compute figures, and sample them during a measurement.

:data:`SERIES` has a row for each figure, with its names in Triton with TensorRT-LLM's backend,
``trtllm-serve``, vLLM and SGLang. A figure that a page lacks is missing, never zero.
"""

from __future__ import annotations

import json
import math
import random
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.paths import write_text
from trtllm_hpc.runtime.records import Endpoint

if TYPE_CHECKING:
    from trtllm_hpc.bench.load.timing import Clock

INTERVAL_S = 0.5
"""Mean seconds between samples; TensorRT-LLM's backend updates its gauges every 0.1 s
(``stats_check_period_ms``)."""
_TIMEOUT_S = 5.0
_MAX_LOOKS = 2000
_KEY = re.compile(r"(\w+)\[(.+)\]")
_STEP = "step:"
"""Prefix of figures from the JSON statistics of ``trtllm-serve``."""
_TO_MS = {"_us": 1e-3, "_seconds_sum": 1e3}
"""Factors to milliseconds, by suffix of the metric's name."""
Labels = Mapping[str, str]
Term = tuple[str, str]
"""Name of a metric, and the value of one of its labels (empty: any value)."""


class Page:
    """The metrics of a server: the sum of its instances' pages in Prometheus' text format.

    A page of ``trtllm-serve`` can begin with a line of JSON: statistics of the engine's steps, of which the
    last is used. Raises ValueError for any other format.
    """

    def __init__(self, *texts: str) -> None:
        self._samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for text in texts:
            for name, labels, value in _figures(text):
                self._samples[name].append((labels, value))

    def models(self, series: Series) -> list[str | None]:
        """Return the models that have a series; ``None`` stands for the only engine."""
        names = {name for source in series.sources for terms in _terms(source) for name, _ in terms}
        models = {_model(labels, series.of) for name in names for labels, _ in self._samples.get(name, ())}
        return sorted(models, key=str)

    def values(self, term: Term, of: str, model: str | None) -> list[float]:
        """Return the values of a metric, one for each engine and label."""
        name, label = term
        matching = []
        for labels, value in self._samples.get(name, ()):
            # Labels of the model are skipped, because its name may equal a kind of request.
            kinds = [kind for key, kind in labels.items() if not key.startswith("model")]
            if _model(labels, of) == model and (not label or label in kinds):
                matching.append(value)
        return matching

    def total(self, terms: Sequence[Term], of: str, model: str | None) -> float | None:
        """Return the sum over all terms; ``None`` if a term is missing."""
        parts = [self.values(term, of, model) for term in terms]
        return sum(map(sum, parts)) if all(parts) else None


def _figures(text: str) -> Iterator[tuple[str, Labels, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    if text.startswith("["):
        line, _, text = text.partition("\n")
        steps = json.loads(line)
        if not all(isinstance(step, dict) for step in steps):
            raise ValueError("not a list of statistics")
        for name, value in _leaves(steps[-1], _STEP) if steps else ():
            yield name, {}, value
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if math.isfinite(sample.value):
                # The parser's names have OpenMetrics' suffix of counters, which Triton's names lack.
                yield sample.name.removesuffix("_total"), sample.labels, float(sample.value)


def _leaves(plain: dict[str, Any], name: str) -> Iterator[tuple[str, float]]:
    for key, value in plain.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{name}{key}.")
        elif isinstance(value, (int, float)):
            yield f"{name}{key}", float(value)


def _model(labels: Labels, of: str) -> str | None:
    # Only Triton can have several engines, each with the name of its model.
    return labels.get("model") or (labels.get("model_name") if of == "model" else None)


@dataclass(frozen=True)
class Series:
    """A figure of the server."""

    key: str
    label: str
    unit: str
    """``requests``, ``tokens/s``, ``1/s``, ``ms``, ``bytes``, or ``share`` (0 to 1)."""
    of: Literal["engine", "model"]
    """Whether there is a value per engine or per served model."""
    kind: Literal["gauge", "rate", "mean"]
    """``gauge``: the current value. ``rate``: growth per second between two pages. ``mean``: growth of the
    numerator divided by growth of the denominator."""
    sources: tuple[str, ...]
    """Formulas for the servers' metrics, of which the first that the page has is used: a sum of metrics,
    optionally divided by another sum, ``NAME[=LABEL] ... [/ NAME ...]``. ``%NAME`` is a share; several
    engines are averaged."""
    model: str | None = None
    """Model in the key, see :func:`describe`."""

    def value(
        self, page: Page, model: str | None, before: Page | None = None, gap_s: float = 0.0
    ) -> float | None:
        """Return the value at ``page``, ``gap_s`` seconds after ``before``; ``None`` if the page has none.

        Without ``before`` a rate is the count since the server's start, and a mean covers all that time.
        """
        for source in self.sources:
            above, below = _terms(source)
            if source.startswith("%"):
                if shares := page.values(above[0], self.of, model):
                    return sum(shares) / len(shares)
                continue
            over = page.total(above, self.of, model)
            under = page.total(below, self.of, model) if below else 1.0
            if over is None or under is None:
                continue
            if before is not None and self.kind != "gauge":
                over = _growth(over, before.total(above, self.of, model))
                under = _growth(under, before.total(below, self.of, model)) if below else 1.0
            if over is None or under is None or under <= 0:
                return None
            if self.kind == "rate" and before is not None:
                return over / gap_s if gap_s > 0 else None
            scales = [scale for end, scale in _TO_MS.items() if above[0][0].endswith(end)]
            return over * math.prod(scales) / under
        return None

    @property
    def counted(self) -> Series:
        """The series of values since the server's start, in which a rate becomes a count."""
        if self.kind != "rate":
            return self
        unit = "" if self.unit == "1/s" else self.unit.removesuffix("/s")
        return replace(self, key=self.key.removesuffix("_per_s"), unit=unit)


def _growth(now: float, before: float | None) -> float | None:
    """Return the growth of a counter; ``None`` if it fell, because server or model restarted."""
    return None if before is None or now < before else now - before


@cache
def _terms(source: str) -> tuple[Sequence[Term], Sequence[Term]]:
    """Return the metrics of a formula's numerator and denominator."""
    over, _, under = source.removeprefix("%").partition("/ ")
    above, below = (
        [(name, label) for name, _, label in (word.partition("=") for word in part.split())]
        for part in (over, under)
    )
    return above, below


def _mean_ms(key: str, label: str, microseconds: str, *histograms: str) -> Series:
    sources = (
        f"{microseconds} / nv_inference_request_success",
        *(f"{histogram}_sum / {histogram}_count" for histogram in histograms),
    )
    return Series(key, label, "ms", "model", "mean", sources)


_REQUESTS = "nv_trt_llm_request_metrics"
_BLOCKS, _MEMORY = "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_runtime_memory_metrics"
_KV = f"{_STEP}kvCacheStats."
# Names are those of Triton (its docs/user_guide/metrics.md) and of custom_metrics_reporter.cc in
# tensorrtllm_backend v0.16.0; of trtllm-serve's /metrics (IterationStats, "step:") and, with
# return_perf_metrics, of its /prometheus/metrics; of vLLM 0.11 and SGLang 0.5, in this order.
SERIES: tuple[Series, ...] = (
    Series("requests_active", "requests in the engine", "requests", "engine", "gauge",
           (f"{_REQUESTS}=active", f"{_STEP}numActiveRequests", "trtllm_num_requests_running",
            "vllm:num_requests_running", "sglang:num_running_reqs")),
    Series("requests_waiting", "requests waiting for the engine", "requests", "engine", "gauge",
           (f"{_REQUESTS}=waiting", f"{_STEP}numQueuedRequests", "trtllm_num_requests_waiting",
            "vllm:num_requests_waiting", "sglang:num_queue_reqs")),
    Series("requests_max", "maximum requests in the engine", "requests", "engine", "gauge",
           (f"{_REQUESTS}=max", f"{_STEP}maxNumActiveRequests", "trtllm_max_num_active_requests")),
    Series("kv_used_share", "KV cache in use", "share", "engine", "gauge",
           (f"{_BLOCKS}=used / {_BLOCKS}=max", f"{_KV}usedNumBlocks / {_KV}maxNumBlocks",
            "trtllm_kv_cache_used_blocks / trtllm_kv_cache_max_blocks", "%vllm:kv_cache_usage_perc",
            "%sglang:token_usage")),
    Series("kv_hit_share", "prompts found in the KV cache", "share", "engine", "mean",
           (f"{_BLOCKS}=reused / {_BLOCKS}=reused {_BLOCKS}=missed",
            f"{_KV}reusedBlocks / {_KV}reusedBlocks {_KV}missedBlocks",
            "trtllm_kv_cache_reused_blocks / trtllm_kv_cache_reused_blocks trtllm_kv_cache_missed_blocks",
            "vllm:prefix_cache_hits / vllm:prefix_cache_queries", "%sglang:cache_hit_rate")),
    Series("memory_gpu_bytes", "GPU memory of the engine", "bytes", "engine", "gauge",
           (f"{_MEMORY}=gpu", f"{_STEP}gpuMemUsage", "trtllm_gpu_memory_usage_bytes")),
    Series("iterations_per_s", "steps of the engine", "1/s", "engine", "rate",
           ("nv_trt_llm_general_metrics=iteration_counter", f"{_STEP}iter")),
    Series("output_tokens_per_s", "output tokens", "tokens/s", "engine", "rate",
           ("nv_llm_output_token_len_sum", "trtllm_generation_tokens", "vllm:generation_tokens",
            "sglang:generation_tokens")),
    Series("input_tokens_per_s", "prompt tokens", "tokens/s", "engine", "rate",
           ("nv_llm_input_token_len_sum", "trtllm_prompt_tokens", "vllm:prompt_tokens",
            "sglang:prompt_tokens")),
    Series("finished_per_s", "requests finished", "1/s", "model", "rate",
           ("nv_inference_request_success", "trtllm_request_success", "vllm:request_success",
            "sglang:num_requests")),
    Series("failed_per_s", "requests failed", "1/s", "model", "rate", ("nv_inference_request_failure",)),
    Series("pending", "requests queued for the model", "requests", "model", "gauge",
           ("nv_inference_pending_request_count",)),
    _mean_ms("queue_ms", "time in the queue", "nv_inference_queue_duration_us",
             "trtllm_request_queue_time_seconds", "vllm:request_queue_time_seconds",
             "sglang:queue_time_seconds"),
    _mean_ms("compute_ms", "computation", "nv_inference_compute_input_duration_us"
             " nv_inference_compute_infer_duration_us nv_inference_compute_output_duration_us"),
    _mean_ms("duration_ms", "from arrival to answer", "nv_inference_request_duration_us",
             "trtllm_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds",
             "sglang:e2e_request_latency_seconds"),
)  # fmt: skip
"""All series, in the order of tables."""


def _with_models(page: Page) -> Iterator[tuple[Series, str | None, str]]:
    """Yield each series that the page may have, with its model and the suffix of its key.

    Keys of a model's series contain the model's name (``pending[ensemble]``). Keys of an engine's series do
    so only if there are several engines, as in disaggregated serving (``kv_used_share[context]``).
    """
    engines = {model for series in SERIES if series.of == "engine" for model in page.models(series)}
    for series in SERIES:
        for model in page.models(series):
            named = series.of == "model" or len(engines) > 1
            yield series, model, f"[{model}]" if named and model else ""


def values(page: Page, before: Page | None, gap_s: float) -> dict[str, float]:
    """Return every figure of ``page`` by key; rates and means since ``before``, ``gap_s`` seconds earlier."""
    return {
        series.key + end: value
        for series, model, end in _with_models(page)
        if before is not None or series.kind == "gauge"
        if (value := series.value(page, model, before, gap_s)) is not None
    }


def since_start(page: Page) -> dict[str, float]:
    """Return every figure of one page by key, with counts instead of rates, since the server's start."""
    return {
        series.counted.key + end: value
        for series, model, end in _with_models(page)
        if (value := series.value(page, model)) is not None
    }


def describe(key: str) -> Series:
    """Return the series, or the count, of a key; an unknown key is its own label."""
    match = _KEY.fullmatch(key)
    base, model = (match[1], match[2]) if match else (key, None)
    for series in SERIES:
        for candidate in (series, series.counted):
            if candidate.key == base:
                return replace(candidate, model=model)
    return Series(key, key, "", "engine", "gauge", ())


# Samples ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerSample:
    """The figures of the server at one moment."""

    time_s: float
    """Middle of the HTTP request, in seconds on the measurement's clock."""
    within_s: float
    """Half of the HTTP request's duration: the page is from ``time_s`` plus or minus this."""
    values: dict[str, float]
    """Figures by key of :data:`SERIES`. Unreported figures are missing, never zero; so are rates and means in
    the first sample, and means over requests if none finished since the previous sample."""


class Samples:
    """The metrics during a measurement. A thread fetches them; they are parsed after the sampling.

    With more than ``max_looks`` samples, every second one is dropped and the interval doubles.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, interval_s: float, max_looks: int) -> None:
        self._endpoint, self._clock = endpoint, clock
        self._interval_s, self._max_looks = interval_s, max_looks
        self._looks: list[tuple[ServerSample, Sequence[bytes]]] = []
        """Samples without values, and their pages, which are parsed after the load."""
        self._attempts = self._failures = 0
        self._last_failure = ""

    def follow(self, endpoint: Endpoint) -> None:
        """From now on fetch the pages of a server that has moved."""
        self._endpoint = endpoint

    def __len__(self) -> int:
        """Return the number of samples so far."""
        return len(self._looks)

    @cached_property
    def samples(self) -> list[ServerSample]:
        """The parsed samples in the order of time."""
        parsed, before, before_s = [], None, 0.0
        for look, texts in self._looks:
            with suppress(ValueError):
                page = _parsed(texts)
                parsed.append(replace(look, values=values(page, before, look.time_s - before_s)))
                before, before_s = page, look.time_s
        return parsed

    @property
    def warning(self) -> str | None:
        """Sentence about unreadable metrics, except for a server outside any run, which may have none."""
        if self._failures and (self._looks or self._endpoint.job_id):
            often = f"{self._failures} of {self._attempts} times" if self._looks else "at any time"
            url = self._endpoint.metrics
            return f"The server's metrics at {url} could not be read {often} ({self._last_failure})."
        if len(self.samples) < len(self._looks):
            return f"{self._endpoint.metrics} is not a page of metrics."
        return None

    def fetch_until(self, ended: threading.Event) -> None:
        """Fetch the metrics at random intervals until ``ended`` is set, and once more then."""
        endpoint, interval_s, is_last = self._endpoint, self._interval_s, False
        connection = _connection(endpoint)
        while not is_last:
            is_last = ended.is_set()
            if self._endpoint != endpoint:
                connection.close()
                endpoint = self._endpoint
                connection = _connection(endpoint)
            if (look := self._look(connection, endpoint)) is not None:
                # Drop the previous sample if it is recent, because rates over a short time are noise.
                since_s = look[0].time_s - self._looks[-1][0].time_s if len(self._looks) > 1 else interval_s
                if is_last and since_s < self._interval_s / 2:
                    self._looks.pop()
                self._looks.append(look)
                if len(self._looks) >= self._max_looks and not is_last:
                    del self._looks[1::2]
                    interval_s *= 2
            if not is_last:
                # Random, because equal intervals could synchronise with a load at a constant rate and always
                # see a busy, or an idle, server (RFC 2330, section 11.1: periodic sampling).
                ended.wait(interval_s * random.uniform(0.5, 1.5))
        connection.close()

    def _look(
        self, connection: HTTPConnection, endpoint: Endpoint
    ) -> tuple[ServerSample, Sequence[bytes]] | None:
        """Fetch the metrics; ``None`` after an error, which :attr:`warning` reports later."""
        self._attempts += 1
        begun_s = self._clock.now()
        try:
            pages = _get(connection, endpoint)
        except RequestFailed as error:
            self._failures += 1
            self._last_failure = error.message
            return None
        ended_s = self._clock.now()
        return ServerSample((begun_s + ended_s) / 2, (ended_s - begun_s) / 2, {}), pages


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

    A thread fetches them and keeps the bytes, which are parsed afterwards so that they do not delay the load.
    An unreadable page is a warning, not an error. The samples are written ``to`` a file after those of an
    earlier attempt (``before``), even after an error, when the last samples matter most.
    """
    samples, ended = Samples(endpoint, clock, interval_s, max_looks), threading.Event()
    if not endpoint.metrics_port and endpoint.is_triton:  # outside any run, only one port is known
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
            with suppress(OSError):  # the measurement is complete without them
                write_samples(to, [*before, *samples.samples])


def fetch_page(endpoint: Endpoint) -> Page:
    """Return the server's current metrics. Raises RequestFailed if they cannot be fetched or parsed."""
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
    """Return the pages of all instances, except those that are restarting.

    The connection stays open, because a new one each time costs both sides more. Raises RequestFailed if no
    instance has a page.
    """
    root = "" if endpoint.is_triton else urlsplit(endpoint.openai_root).path
    numbers = [f"/{number}" for number in range(endpoint.instances)]
    if endpoint.is_triton or endpoint.instances == 1:
        numbers[0] = ""
    pages, failure = list[bytes](), None
    for number in numbers:
        try:
            page = _get_page(connection, f"{root}/metrics{number}", endpoint.authorization)
        except RequestFailed as error:
            failure = error
            continue
        if page.lstrip().startswith(b"["):  # trtllm-serve's JSON; it may also have a page for Prometheus
            page = b"".join(page.strip().splitlines()) + b"\n"
            with suppress(RequestFailed):
                page += _get_page(connection, f"{root}/prometheus/metrics{number}", endpoint.authorization)
        pages.append(page)
    if not pages and failure is not None:
        raise failure
    return pages


def _get_page(connection: HTTPConnection, path: str, headers: Mapping[str, str]) -> bytes:
    try:
        connection.request("GET", path, headers=dict(headers))
        reply = connection.getresponse()
        text = reply.read()
    except (OSError, HTTPException) as error:
        connection.close()
        raise RequestFailed(getattr(error, "strerror", None) or str(error) or type(error).__name__) from None
    if reply.status != 200:
        raise RequestFailed(f"HTTP {reply.status} {reply.reason}")
    return text


def write_samples(path: Path, samples: Iterable[ServerSample]) -> None:
    """Write samples as JSON lines."""
    write_text(path, "".join(f"{json.dumps(asdict(sample), ensure_ascii=False)}\n" for sample in samples))


def read_samples(path: Path) -> list[ServerSample]:
    """Read a file of :func:`write_samples`; empty if there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [ServerSample(**json.loads(line)) for line in text.split("\n") if line]
