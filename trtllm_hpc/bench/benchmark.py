"""One benchmark from its settings to its result files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtllm_hpc.bench.gate import Verdict, judge
from trtllm_hpc.bench.load import Load, run_load
from trtllm_hpc.bench.metrics import Distribution, all_metrics
from trtllm_hpc.bench.progress import Progress, reported, terminal_bar
from trtllm_hpc.bench.prompts import choose_prompts
from trtllm_hpc.bench.records import RequestRecord, write_records
from trtllm_hpc.bench.schedule import send_times
from trtllm_hpc.bench.tokens import replay_counts, with_tokens
from trtllm_hpc.bench.wire import output_tokens, text_request
from trtllm_hpc.client.ask import describe
from trtllm_hpc.client.tensors import ENSEMBLE, TextModel
from trtllm_hpc.errors import InvalidMeasurement, RequestFailed
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths, write_json
from trtllm_hpc.runtime.records import Endpoint

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Settings:
    """What to measure. The same settings give the same requests at the same times."""

    requests: int
    rate_per_s: float
    max_tokens: int
    prompts: tuple[str, ...] = ()
    """Empty: the built-in ones."""
    seed: int = 0
    arrival: str = "constant"
    warmup: int = 2
    """Requests before the measurement, recorded nowhere."""
    timeout_s: float = 60.0
    """For each request."""
    model: str = "ensemble"


def run_benchmark(paths: RunPaths, endpoint: Endpoint, settings: Settings, name: str) -> dict[str, Any]:
    """Measure, write the records and the summary into the run folder, and return the summary.

    Args:
        name: of the measurement. Only the companion's reports its progress to
            those who watch the run.

    Raises:
        NotReady: no connection to the endpoint.
    """
    prompts = choose_prompts(settings.requests, settings.prompts, settings.seed)
    kind = _kind(endpoint, settings)
    progress = Progress(of=settings.requests)
    paths.results.mkdir(exist_ok=True)
    progress_file = paths.benchmark_progress if name == COMPANION_MEASUREMENT else None
    with terminal_bar(progress) as show, reported(progress, progress_file, show):
        load = run_load(
            endpoint,
            [_request(settings, kind, prompt, str(index)) for index, prompt in enumerate(prompts)],
            send_times(settings.requests, settings.rate_per_s, settings.arrival, settings.seed),
            warmup=[_request(settings, kind, prompt, "warm-up") for prompt in prompts[: settings.warmup]],
            timeout_s=settings.timeout_s,
            progress=progress,
        )
    records = _counted(endpoint, settings, prompts, load)
    summary = summarise(settings, endpoint, load.started_at, records)
    files = paths.measurement(name)
    write_records(files.requests, records)
    write_json(files.summary, summary)
    return summary


def _kind(endpoint: Endpoint, settings: Settings) -> TextModel:
    try:
        return describe(endpoint, settings.model, settings.timeout_s)
    except RequestFailed:
        return ENSEMBLE  # a server that does not answer is the load's to tell


def _request(settings: Settings, kind: TextModel, prompt: str, request_id: str) -> bytes:
    return text_request(settings.model, prompt, settings.max_tokens, request_id, kind)


def _counted(
    endpoint: Endpoint, settings: Settings, prompts: Sequence[str], load: Load
) -> list[RequestRecord]:
    finished = [reply for reply in load.replies if reply is not None]
    replayed = {}
    if finished and output_tokens(finished[0]) is None:
        replayed = replay_counts(endpoint, prompts, settings.max_tokens, settings.timeout_s)
    return with_tokens(load.records, load.replies, prompts, settings.max_tokens, replayed)


def summarise(
    settings: Settings, endpoint: Endpoint, started_at: float, records: Sequence[RequestRecord]
) -> dict[str, Any]:
    """The summary as plain JSON types; units stand in the names."""
    verdict = judge(records, settings.rate_per_s)
    finished = [record for record in records if record.ok]
    return {
        "settings": asdict(settings),
        "endpoint": {"host": endpoint.host, "grpc": endpoint.grpc, "job_id": endpoint.job_id},
        "started_at": started_at,
        "requests": {
            "asked": settings.requests,
            "finished": len(finished),
            "failed": len(records) - len(finished),
        },
        "asked_rate_per_s": settings.rate_per_s,
        "metrics": _plain(records),
        "tokens": {
            "input": _total([record.input_tokens for record in finished]),
            "output": _total([record.output_tokens for record in finished]),
            "counted_by": sorted({record.tokens_by for record in records if record.tokens_by}),
        },
        "errors": _errors(records),
        **_judged(verdict),
    }


def _plain(records: Sequence[RequestRecord]) -> dict[str, Any]:
    figures = all_metrics(records)
    return {key: asdict(f) if isinstance(f, Distribution) else f for key, f in figures.items()}


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _errors(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Each kind of error with its number of requests; where only numbers differ it is one kind."""
    kinds: dict[str, Counter[str]] = {}
    for record in records:
        if not record.ok:
            words = (record.error or "").strip() or record.status
            kinds.setdefault(_NUMBER.sub("N", words), Counter())[words] += 1
    return {next(iter(words)) if len(words) == 1 else kind: words.total() for kind, words in kinds.items()}


def _judged(verdict: Verdict) -> dict[str, Any]:
    return {"valid": not verdict.findings, **asdict(verdict)}


def refuse_invalid(summary: dict[str, Any], run: str) -> None:
    """Raise InvalidMeasurement if the figures may not be used, with the commonest error.

    Args:
        run: the word for the run in the next command.
    """
    if summary["valid"]:
        return
    message = " ".join(summary["findings"])
    if summary["errors"]:
        error, count = max(summary["errors"].items(), key=lambda item: item[1])
        message += f" Most often ({count} times): {error}"
    raise InvalidMeasurement(message, hint=f"trtllm-hpc logs {run} --rank 0")
