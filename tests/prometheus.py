"""A real Prometheus, with a configuration of ``trtllm-hpc metrics --prometheus``."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from trtllm_hpc.runtime.node import free_ports

Ask = Callable[[str], Any]

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (.ci/test does)"
)


@contextmanager
def prometheus(file: Path, folder: Path) -> Iterator[Ask]:
    """Start it with a scrape each second, and yield what asks its API."""
    own = folder / "prometheus.yml"
    plain = json.loads(file.read_text())
    own.write_text(json.dumps({"global": {"scrape_interval": "1s"}, **plain}))
    subprocess.run(["promtool", "check", "config", str(own)], check=True, capture_output=True)
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    storage = f"--storage.tsdb.path={folder / 'tsdb'}"
    words = ["prometheus", f"--config.file={own}", storage, f"--web.listen-address={address}"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)

    def ask(path: str) -> Any:
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/api/v1/{path}") as answer:
            return json.load(answer)["data"]
        return None

    try:
        yield ask
    finally:
        process.kill()
        process.wait()


def targets(ask: Ask) -> dict[tuple[str, str], str]:
    """The health of each target once all have been scraped, by part and instance."""

    def found() -> dict[tuple[str, str], str] | None:
        active = (ask("targets?state=active") or {}).get("activeTargets", [])
        health = {(it["labels"]["part"], it["labels"]["instance"]): it["health"] for it in active}
        return health if health and "unknown" not in health.values() else None

    seen = eventually(found, 30)
    assert seen
    return dict(seen)


def samples(ask: Ask, query: str) -> list[dict[str, str]]:
    """The labels and the value of each result of a query, once there are any."""

    def found() -> list[Any]:
        return list((ask(f"query?query={urllib.parse.quote(query)}") or {}).get("result", []))

    return [{**it["metric"], "value": it["value"][1]} for it in eventually(found, 30) or []]
