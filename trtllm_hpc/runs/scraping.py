"""A configuration for Prometheus that scrapes every server of a folder of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trtllm_hpc.paths import RunPaths, write_text
from trtllm_hpc.runs.listing import listed_runs
from trtllm_hpc.runtime.records import Endpoint

FILE = "trtllm-hpc.yml"


def write_scraping(folder: Path, runs_folder: Path) -> int | None:
    """Write the configuration of all endpoints that live; returns the number of runs, ``None``: as before.

    A run whose state is unknown, because Slurm does not answer, stays as long as its endpoint is published.
    """
    jobs = []
    for row in listed_runs(runs_folder):
        run = RunPaths(row.folder)
        endpoint = Endpoint.read(run.endpoint) if row.endpoint is not None or row.state is None else None
        if endpoint is not None:
            name = Path(row.model).name if row.model else row.name
            jobs.append(scrape_config(run, endpoint, name))
    folder.mkdir(parents=True, exist_ok=True)
    # JSON is YAML. The file is a configuration by itself, and what scrape_config_files can name.
    text = json.dumps({"scrape_configs": sorted(jobs, key=lambda job: str(job["job_name"]))}, indent=2) + "\n"
    file = folder / FILE
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return None
    write_text(file, text, mode=0o644)
    return len(jobs)


def scrape_config(run: RunPaths, endpoint: Endpoint, model: str) -> dict[str, Any]:
    """Return the targets of one run, with the files of its key and certificate."""
    found: dict[str, Any] = {"job_name": run.run_id, "scheme": endpoint.scheme}
    if endpoint.key_file is not None:
        found["authorization"] = {"credentials_file": endpoint.key_file}
    if endpoint.certificate_file is not None:
        names = {} if endpoint.certificate_name is None else {"server_name": endpoint.certificate_name}
        found["tls_config"] = {"ca_file": endpoint.certificate_file, **names}
    labels = {"run": run.run_id, "model": model}
    found["static_configs"] = [
        {"targets": [place], "labels": {**labels, "part": part, "instance": of, "__metrics_path__": path}}
        for part, of, place, path in _pages(run, endpoint)
    ]
    return found


def _pages(run: RunPaths, endpoint: Endpoint) -> Iterator[tuple[str, str, str, str]]:
    """Yield what each page is of, which of several, and where the page is."""
    openai = urlsplit(endpoint.openai_url or "").netloc
    triton = f"{endpoint.address}:{endpoint.metrics_port}"
    server = ("server", openai, "/prometheus/metrics")
    part, place, path = ("triton", triton, "/metrics") if endpoint.is_triton else server
    for number in range(endpoint.instances):
        # Triton's first instance has no number in its path.
        numbered = number or (endpoint.instances > 1 and not endpoint.is_triton)
        yield part, str(number), place, f"{path}/{number}" if numbered else path
    if run.proxy(0).exists():
        yield "proxy", "0", place, "/metrics/proxy"
