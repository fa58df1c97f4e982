"""The notebook and the script of docs/examples, from ``submit`` to a table and a plot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

import trtllm_hpc

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed (.ci/test does)"),
]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NOTEBOOK = EXAMPLES / "serve_and_measure.ipynb"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the example runs; what it leaves running when it fails is cancelled."""
    yield tmp_path
    for run in trtllm_hpc.Run.list(tmp_path / "runs"):
        if not run.status.settled:
            run.cancel()


def outputs_of(cell: Any) -> list[Any]:
    return [output.get("data", {}) for output in cell.outputs]


def test_the_notebook_is_kept_with_its_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {kind for cell in code for data in outputs_of(cell) for kind in data}
    assert {"text/html", "image/png"} <= kinds
    assert [output for cell in code for output in cell.outputs if output.output_type == "error"] == []
    assert str(EXAMPLES.parents[1]) not in NOTEBOOK.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_the_script_tells_the_same_story(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRTLLM_HPC_RUNS"}
    script = subprocess.run(
        [sys.executable, EXAMPLES / "serve_and_measure.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert script.returncode == 0, script.stdout + script.stderr
    assert "serve: runs, ready at 127.0.0.1" in script.stderr, script.stderr
    assert "at 8/s" in script.stdout or "at 4/s" in script.stdout
    [run] = trtllm_hpc.Run.list(folder / "runs")
    assert (run.folder / "latency.png").read_bytes().startswith(b"\x89PNG")
    assert {file.name for file in folder.iterdir()} == {"runs", "engines"}
    assert run.status.state is trtllm_hpc.RunState.CANCELLED
