"""The job of a sweep that runs one variant after another: what it runs, and what it leaves out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths, write_json, write_text
from trtllm_hpc.runtime import variants
from trtllm_hpc.runtime.records import TOKEN_VARIABLE, add_event, read_events
from trtllm_hpc.runtime.variants import gpus_in_use, run_variants

TOKEN = "the token"


@pytest.fixture(autouse=True)
def as_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    # The signals of the test's own process stay as they are.
    monkeypatch.setattr(variants, "on_signals", lambda handler: None)


def variant(folder: Path, name: str, **scripts: str) -> RunPaths:
    """Make a run folder with these scripts; each writes to ``order`` when it runs."""
    paths = RunPaths(folder / name)
    paths.make_folders()
    write_json(paths.jobs, {"token": TOKEN, "complete": True})
    for stage, script in (scripts or {"serve": "exit 0"}).items():
        text = f'echo {name} {stage} "${TOKEN_VARIABLE}" >> {folder}/order\n{script}\n'
        write_text(paths.sbatch(stage), text, mode=0o700)
    return paths


def order(folder: Path) -> list[str]:
    """Return what has run, in its order."""
    file = folder / "order"
    return [line.removesuffix(f" {TOKEN}") for line in file.read_text().splitlines()] if file.exists() else []


def test_variants_run_in_order_and_a_failed_one_stops_no_other(tmp_path: Path) -> None:
    variant(tmp_path, "a", build="exit 0", serve="exit 0")
    variant(tmp_path, "b", build="exit 3", serve="exit 0")
    variant(tmp_path, "c")
    assert run_variants(tmp_path, ["a", "b", "c"], 5) == 0
    assert order(tmp_path) == ["a build", "a serve", "b build", "c serve"]


def test_what_is_done_or_cancelled_is_left_out(tmp_path: Path) -> None:
    done = variant(tmp_path, "done", build="exit 0", serve="exit 0")
    add_event(done, "build", "stage_end", exit_code=0)
    cancelled = variant(tmp_path, "cancelled")
    add_event(cancelled, "serve", "stage_cancelled")
    assert run_variants(tmp_path, ["done", "cancelled"], 5) == 0
    assert order(tmp_path) == ["done serve"]


def test_a_variant_for_which_the_time_is_too_short_is_not_begun(tmp_path: Path) -> None:
    variant(tmp_path, "first", serve="sleep 2")
    second = variant(tmp_path, "second")
    assert run_variants(tmp_path, ["first", "second"], 3 / 60) == 1
    assert order(tmp_path) == ["first serve"]
    [event] = read_events(second, "serve")
    assert (event.name, event.data["reason"]) == (
        "stage_cancelled",
        "the sweep's job has too little time left",
    )


def test_a_killed_script_is_recorded_as_ended(tmp_path: Path) -> None:
    paths = variant(tmp_path, "killed", serve="kill -KILL $$")
    add_event(paths, "serve", "stage_begin", job_id="7")
    run_variants(tmp_path, ["killed"], 5)
    assert read_events(paths, "serve")[-1].data["exit_code"] == 137


def test_a_variant_is_ended_when_somebody_cancels_it_or_the_job(tmp_path: Path) -> None:
    folder = tmp_path
    first = variant(folder, "first", serve="sleep 60")
    variant(folder, "second", serve="sleep 60")
    third = variant(folder, "third")
    program = f"""
from pathlib import Path
from trtllm_hpc.runtime.variants import run_variants
raise SystemExit(run_variants(Path({str(folder)!r}), ["first", "second", "third"], 5))
"""
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        assert eventually(lambda: order(folder) == ["first serve"], 30)
        add_event(first, "serve", "stage_cancelled")
        assert eventually(lambda: order(folder) == ["first serve", "second serve"], 30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
    assert read_events(third, "serve")[-1].data["reason"] == "the sweep's job was ended (SIGTERM)"


def test_no_variant_begins_on_gpus_that_are_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    write_text(
        tmp_path / "bin" / "nvidia-smi", "#!/bin/sh\nprintf '0, 4 MiB\\n1, 40000 MiB\\n'\n", mode=0o700
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(variants, "_IDLE_TIMEOUT_S", 0.0)
    busy = gpus_in_use()
    assert busy.endswith(": GPU 1 (40000 MiB)")
    paths = variant(tmp_path, "a")
    assert run_variants(tmp_path, ["a"], 5) == 1
    assert order(tmp_path) == []
    assert busy in read_events(paths, "serve")[-1].data["reason"]
