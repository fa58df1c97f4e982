"""One workload of each kind, to the byte: the same on every machine and for every version of Python.

To update them after an intended change: ``python -m tests.bench.workload.test_golden``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.bench.workload.request import write_workload

from .helpers import build

GOLDEN = Path(__file__).with_name("golden")

_BINS = {"input": [[4, 8, 3], [10, 12, 1]], "output": [[1, 9, 1]]}
_QUESTIONS = [
    {"input": f"Case {number}.", "instruction": "Why?", "output": "so " * number} for number in range(1, 6)
]
_TRACE = [
    {"timestamp": 250 * number, "input_length": 6 + number, "output_length": 4, "hash_ids": [number // 2]}
    for number in range(4)
]
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "prompts": ({"kind": "prompts"}, None),
    "dataset": ({"kind": "dataset"}, _QUESTIONS),
    "normal": ({"kind": "normal", "input_tokens": 12, "input_tokens_stdev": 4.0}, None),
    "normal-ids": ({"kind": "normal", "input_tokens": 12, "input_tokens_stdev": 4.0}, None),
    "histogram": ({"kind": "histogram"}, _BINS),
    "shared-prefix": ({"kind": "shared-prefix", "prefixes": 2, "prefix_tokens": 8, "input_tokens": 5}, None),
    "conversations": (
        {"kind": "conversations", "turns": 2, "turns_stdev": 1.0, "think_seconds_stdev": 0.5}
        | {"input_tokens": 6, "input_tokens_stdev": 2.0, "prefix_tokens": 5, "prefixes": 2},
        None,
    ),
    "trace-ids": ({"kind": "trace", "speed": 2.0}, _TRACE),
}


def write(case: str, folder: Path) -> Path:
    """Write the workload of a case to a file."""
    workload, content = CASES[case]
    if content is not None:
        source = folder / "source.json"
        source.write_text(json.dumps(content))
        workload = {**workload, "path": source}
    file = folder / f"{case}.workload.jsonl"
    built = build(6, token_ids=case.endswith("-ids"), settings={"seed": 11}, **workload)
    write_workload(file, built.requests)
    return file


@pytest.mark.parametrize("case", CASES)
def test_a_workload_is_the_same_to_the_byte(case: str, tmp_path: Path) -> None:
    expected = (GOLDEN / f"{case}.workload.jsonl").read_bytes()
    assert write(case, tmp_path).read_bytes() == expected


def test_every_golden_file_belongs_to_a_case() -> None:
    assert {file.name.removesuffix(".workload.jsonl") for file in GOLDEN.iterdir()} == set(CASES)


if __name__ == "__main__":
    import tempfile

    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            written = write(name, Path(folder))
            (GOLDEN / written.name).write_bytes(written.read_bytes())
