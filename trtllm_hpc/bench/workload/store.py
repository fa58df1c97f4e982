"""A workload as it lies beside the results: one JSON line a request."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.paths import write_text


def write_workload(path: Path, requests: Iterable[Request]) -> None:
    """Write the requests; the same requests give the same bytes.

    The file can be asked again by ``workload: {kind: dataset, path: ...}``, in
    an order of that benchmark's own; one with times also by ``kind: trace``, as it was.
    """
    write_text(path, "".join(f"{line}\n" for line in map(_line, requests)))


def _line(request: Request) -> str:
    known = {key: value for key, value in asdict(request).items() if value is not None}
    return json.dumps(known, separators=(", ", ": "))
