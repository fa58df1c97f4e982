"""1,000 bad job files through ``render`` and ``submit``: no traceback, no stray file, nothing submitted."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from tests.config.values import hostile, nested, settings_for, trees
from tests.fuzzing import examples
from trtllm_hpc.cli import main
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.dump import flow
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ExitCode

pytestmark = [pytest.mark.long, pytest.mark.fuzz]

FUZZ = settings(suppress_health_check=list(HealthCheck), database=None, print_blob=True)
EXPECTED = {ExitCode.OK, ExitCode.USAGE, ExitCode.CONFIG, ExitCode.RENDER, ExitCode.SUBMISSION}


@dataclass
class Place:
    """A working folder and a home that are watched, and a Slurm that notes each submission."""

    folder: Path
    home: Path
    submitted: Path

    def stray(self) -> list[str]:
        """Files that are no part of a run."""
        own = {"job.yaml", "cluster.yaml", "runs"}
        found = [*self.home.iterdir(), *self.folder.iterdir()]
        return [str(file) for file in found if file.parent == self.home or file.name not in own]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    tools = tmp_path / "tools"
    made = Place(tmp_path / "work", tmp_path / "home", tools / "submitted")
    for folder in (made.folder, made.home, tools):
        folder.mkdir()
    # Quicker than the strict fake, which tests/scheduler has: here it is called a thousand times. What Slurm
    # offers may be asked before anything is submitted.
    noted = f"echo x >> '{made.submitted}'"
    lines = {
        "sbatch": f"{noted}; echo 1",
        "scontrol": f'[ "$1 $2 $3" = "--oneliner show partition" ] && exit 0; {noted}; exit 64',
        "srun": f'[ "$*" = --mpi=list ] || [ "$*" = --help ] && echo pmix && exit 0; {noted}; exit 64',
        **dict.fromkeys(("squeue", "sacct", "scancel"), f"{noted}; exit 64"),
    }
    for tool, line in lines.items():
        (tools / tool).write_text(f"#!/bin/sh\n{line}\n")
        (tools / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(made.home / ".config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tools / "cache"))
    monkeypatch.delenv("TRTLLM_HPC_RUNS", raising=False)
    monkeypatch.chdir(made.folder)
    return made


def arguments_of(name: str, cluster: str, overrides: list[str]) -> list[str]:
    """As a shell can pass them: no argument holds NUL."""
    words = [name, "job.yaml", "--cluster", cluster, "--json"]
    for override in overrides:
        words += ["--set", override]
    return [word.replace("\0", "") for word in words]


def assert_refused_or_made(place: Place, arguments: list[str]) -> int:
    """Run the command: it makes one run, or says why not, and leaves nothing else."""
    errors, output = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(output),
        pytest.raises(SystemExit) as end,
    ):
        main(arguments)
    code = end.value.code
    assert isinstance(code, int) and code in EXPECTED, (code, errors.getvalue())
    assert b"Traceback" not in errors.getvalue().encode()
    assert place.stray() == [], arguments
    runs = sorted((place.folder / "runs").iterdir()) if (place.folder / "runs").exists() else []
    if code == ExitCode.OK:
        [run] = runs
        assert json.loads(output.getvalue())["folder"] == str(run)
    else:
        assert errors.getvalue().strip(), "an error without a word"
        if code != ExitCode.SUBMISSION:
            assert runs == [], "a run was made of what was refused"
    wanted = arguments[0] == "submit" and code == ExitCode.OK
    assert place.submitted.exists() == wanted, arguments
    event(f"{arguments[0]} exit code {code}")
    place.submitted.unlink(missing_ok=True)
    shutil.rmtree(place.folder / "runs", ignore_errors=True)
    return code


commands = st.sampled_from(["render", "submit"])


@pytest.mark.parametrize("half", range(2))  # so that several processes share them
@settings(FUZZ, max_examples=examples(200))
@given(
    name=commands,
    job=settings_for(JobFile),
    more=settings_for(JobFile),
    profile=settings_for(ClusterProfile),
)
def test_wrong_values(
    half: int,
    place: Place,
    name: str,
    job: list[tuple[str, Any]],
    more: list[tuple[str, Any]],
    profile: list[tuple[str, Any]],
) -> None:
    (place.folder / "job.yaml").write_bytes(flow(nested(job)).encode())
    here = {"name": "here", "partition": "batch", "node_local_folders": []}
    # Where runs are made is the profile's to say, and the local scheduler would start them.
    kept = [(key, value) for key, value in profile if key not in ("runs_folder", "scheduler")]
    (place.folder / "cluster.yaml").write_bytes(flow(nested(kept) if half else here).encode())
    arguments = arguments_of(name, "./cluster.yaml", [f"{key}={flow(value)}" for key, value in more])
    assert_refused_or_made(place, arguments)


@settings(FUZZ, max_examples=examples(300))
@example(name="render", value="~\0", field="model.path")
@given(
    name=commands, value=hostile, field=st.sampled_from(["name", "model.path", "companion.request.prompt"])
)
def test_hostile_strings(place: Place, name: str, value: str, field: str) -> None:
    (place.folder / "job.yaml").write_bytes(flow(nested([(field, value)])).encode())
    (place.folder / "cluster.yaml").write_bytes(
        flow({"name": "b", "environment": {"NOTE": value}, "partition": value}).encode("utf-8")
    )
    assert_refused_or_made(place, arguments_of(name, "./cluster.yaml", []))


@settings(FUZZ, max_examples=examples(300))
@given(
    name=commands,
    overrides=st.lists(
        st.one_of(hostile, st.tuples(hostile, trees).map(lambda pair: f"{pair[0]}={pair[1]}")), max_size=4
    ),
    cluster=st.one_of(st.just("./cluster.yaml"), hostile),
)
def test_hostile_settings_and_profiles(place: Place, name: str, overrides: list[str], cluster: str) -> None:
    (place.folder / "job.yaml").write_text("name: a\n")
    (place.folder / "cluster.yaml").write_text("name: b\n")
    assert_refused_or_made(place, arguments_of(name, cluster, overrides))
