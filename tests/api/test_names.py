"""The public names: where they are, and what importing them costs."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import trtllm_hpc
from trtllm_hpc.errors import ConfigError


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True)


def import_us(package: str) -> int:
    """Microseconds that Python takes to import a package and all that it imports."""
    last = python(f"import {package}", "-X", "importtime").stderr.splitlines()[-1]
    assert last.endswith(f" {package}")
    return int(last.split("|")[1])


def test_importing_the_package_takes_less_than_one_and_a_half_times_the_import_of_click() -> None:
    times = [(import_us("trtllm_hpc"), import_us("click")) for _ in range(5)]
    ours, clicks = (statistics.median(it) for it in zip(*times, strict=True))
    assert ours < 1.5 * clicks, times


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys, types; before = set(sys.modules); import trtllm_hpc;"
        "print(sorted(set(sys.modules) - before))"
    )
    assert python(code).stdout.strip() == "['trtllm_hpc']"


def test_every_public_name_is_there() -> None:
    assert set(trtllm_hpc.__all__) <= set(dir(trtllm_hpc))
    for name in trtllm_hpc.__all__:
        assert getattr(trtllm_hpc, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'sumbit'"):
        _ = trtllm_hpc.sumbit  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", ["trtllm_hpc.plan", "trtllm_hpc.bench.results, trtllm_hpc.plan.model"])
def test_functions_stay_what_they_are_when_folders_of_their_names_are_imported(first: str) -> None:
    code = (
        f"import {first}\n"
        "import trtllm_hpc, trtllm_hpc.render.scripts\n"
        "print([getattr(trtllm_hpc, name).__module__ for name in ('bench', 'plan', 'render')])\n"
        "from trtllm_hpc.plan.model import Plan\n"
        "from trtllm_hpc.bench import results"
    )
    functions = ["trtllm_hpc.api.measurement", "trtllm_hpc.api.jobs", "trtllm_hpc.api.jobs"]
    assert python(code).stdout == f"{functions}\n"


def test_a_job_file_has_every_layer() -> None:
    job = trtllm_hpc.load_job("tiny-llama", "local", ["serve.time_limit_minutes=7"])
    assert (job.name, job.engine.tensor_parallel, job.serve.time_limit_minutes) == ("tiny-llama", 2, 7)
    assert job.serve.cpus_per_rank == 2 and job.serve.restarts is None
    with pytest.raises(ConfigError) as refused:
        trtllm_hpc.load_job("tiny-llama", "local", ["serve.nods=2"])
    [diagnostic] = refused.value.diagnostics
    assert (diagnostic.file, diagnostic.field) == ("--set", "serve.nods")


def test_the_profile_is_that_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_HPC_CLUSTER", "local")
    assert trtllm_hpc.plan("tiny-llama").cluster.name == "local"
    assert trtllm_hpc.plan("tiny-llama", "sandbox").cluster.name == "sandbox"


def test_doctor_finds_what_submit_would_refuse(tmp_path: Path) -> None:
    good = trtllm_hpc.doctor("tiny-llama", "local")
    assert good.ok and good.memory is not None
    empty = ["model.synthetic=null", f"engine.directory={tmp_path}"]
    bad = trtllm_hpc.doctor("tiny-llama", "local", empty)
    assert [row.code for row in bad.checks if row.state == "fail"] and not bad.ok
    with pytest.raises(ConfigError, match="--ignore"):
        trtllm_hpc.submit("tiny-llama", "local", empty, tmp_path / "runs")
    assert trtllm_hpc.doctor(cluster="local").memory is None
