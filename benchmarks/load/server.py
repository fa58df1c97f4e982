"""Run a real tritonserver with the two models of the benchmark."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.triton import running_triton
from trtllm_hpc.runtime.records import Endpoint

INSTANT, TOKENS = "instant", "tokens"
_CONFIG = """name: "{name}"
backend: "python"
max_batch_size: 64
{kind}
input [ {{ name: "{given}" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "{made}" data_type: {type} dims: [ 1 ] }} ]
"""
_MODELS = {
    INSTANT: {"kind": "dynamic_batching { }", "given": "INPUT", "made": "OUTPUT", "type": "TYPE_INT32"},
    TOKENS: {
        "kind": "model_transaction_policy { decoupled: true }",
        "given": "COUNT",
        "made": "STAMP",
        "type": "TYPE_INT64",
    },
}


class BenchmarkFailed(Exception):
    """A load generator could not be measured."""


def answered(server: Endpoint) -> int:
    """Return the number of answered requests according to the server's metrics."""
    with urllib.request.urlopen(server.metrics, timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("nv_inference_count{"))


@contextmanager
def running_server(folder: Path) -> Iterator[Endpoint]:
    """Start tritonserver in ``folder``, yield its endpoint when all models are ready, and stop it.

    Raises:
        ServerFailed: tritonserver is not installed, or did not start.
    """
    for name, fields in _MODELS.items():
        model = folder / "repository" / name
        (model / "1").mkdir(parents=True)
        source = Path(__file__).parent / "models" / f"{name}.py"
        (model / "1" / "model.py").write_bytes(source.read_bytes())
        (model / "config.pbtxt").write_text(_CONFIG.format(name=name, **fields), encoding="utf-8")
    with running_triton(folder, list(_MODELS)) as endpoint:
        yield endpoint
