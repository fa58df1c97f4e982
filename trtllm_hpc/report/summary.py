"""A run's results on one screen: endpoint, answer, benchmark."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from trtllm_hpc.bench.records import read_records
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths, read_json
from trtllm_hpc.report.measurement_table import print_measurement
from trtllm_hpc.runtime.records import Endpoint, known_fields, read_events


def print_summary(paths: RunPaths) -> None:
    """Print the endpoint with the time of each phase, the answer and the benchmark, as far as they exist."""
    for event in read_events(paths, "serve"):
        if event.name == "ready":
            print(_endpoint(event.data))
    for line in _answers(paths):
        print(line)
    files = paths.measurement(COMPANION_MEASUREMENT)
    with suppress(RunNotFound):  # the companion ended before it measured
        measurement = read_measurement(files.summary)
        print_measurement(measurement, read_records(files.requests) if files.requests.exists() else ())


def _endpoint(data: dict[str, Any]) -> str:
    phases = ", ".join(
        f"{name.replace('_', ' ')} {seconds:.1f} s" for name, seconds in data["phases_s"].items()
    )
    ports = Endpoint(**known_fields(Endpoint, data)).places
    return f"endpoint: {ports} on {data['host']}\nphases: {phases}"


def _answers(paths: RunPaths) -> list[str]:
    try:
        record = read_json(paths.answer)
    except ValueError:
        return []
    if not isinstance(record, dict):
        return []
    lines = [f"prompt: {record.get('prompt')!r}"]
    lines += [f"answer ({item['protocol']}): {item['text']!r}" for item in record.get("answers", [])]
    return lines
