"""A real tritonserver with the two models of the benchmark."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.triton import running_triton
from trtllm_hpc.runtime.records import Endpoint

INSTANT, TOKENS = "instant", "tokens"
_CONFIGS = {
    INSTANT: """max_batch_size: 64
dynamic_batching { }
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
""",
    TOKENS: """max_batch_size: 64
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "STAMP" data_type: TYPE_INT64 dims: [ 1 ] } ]
""",
}


class BenchmarkFailed(Exception):
    """A contender could not be measured."""


@dataclass(frozen=True)
class Server:
    """A running tritonserver and its ports."""

    endpoint: Endpoint

    def answered(self) -> int:
        """The number of requests answered so far, by the server's own count."""
        with urllib.request.urlopen(self.endpoint.metrics, timeout=10) as page:
            lines = page.read().decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith("nv_inference_count{"))


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    """Start it in ``folder``, yield it once it is ready, and stop it.

    Raises:
        ServerFailed: it is not installed, or did not start.
    """
    _write_repository(folder / "repository")
    with running_triton(folder, list(_CONFIGS)) as endpoint:
        yield Server(endpoint)


def _write_repository(folder: Path) -> None:
    for name, config in _CONFIGS.items():
        (folder / name / "1").mkdir(parents=True)
        source = Path(__file__).parent / "models" / f"{name}.py"
        (folder / name / "1" / "model.py").write_bytes(source.read_bytes())
        (folder / name / "config.pbtxt").write_text(
            f'name: "{name}"\nbackend: "python"\n{config}', encoding="utf-8"
        )
