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
from nbclient import NotebookClient

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


@pytest.mark.thorough
def test_the_notebook_leads_from_submit_to_a_table_and_a_plot(folder: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # An engine without a model starts in a second; the script beside it is run as it is.
    [settings] = [cell for cell in notebook.cells if "settings = [" in cell.source]
    settings.source = settings.source.replace("settings = [", 'settings = ["model.synthetic=stand-in", ')
    client = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(folder)}})
    client.execute()
    cells = {cell.source: cell for cell in notebook.cells if cell.cell_type == "code"}
    tables = [
        data["text/html"]
        for cell in cells.values()
        for data in outputs_of(cell)
        if "<table" in data.get("text/html", "")
    ]
    assert len(tables) == 2 and all("4/s" in table and "8/s" in table for table in tables)
    [plot] = [cell for source, cell in cells.items() if "axes.plot" in source]
    assert any("image/png" in data for data in outputs_of(plot))
    assert outputs_of(list(cells.values())[-1]) == [{"text/plain": "'cancelled'"}]
    [run] = trtllm_hpc.Run.list(folder / "runs")
    [measurement] = trtllm_hpc.Measurement.list(run)
    assert len(measurement.to_pandas()) == len(measurement.records) > 40


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
