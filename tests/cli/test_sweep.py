"""``trtllm-hpc sweep`` as a person types it; a fake behaves as Slurm does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.cli.typed import types as types
from tests.scheduler.conftest import fake_slurm as fake_slurm
from tests.scheduler.fake_slurm import FakeSlurm
from tests.schemas.check import documented
from trtllm_hpc.errors import ExitCode

CLUSTER = "name: here\npartition: batch\ngpus_per_node: 8\nnode_local_folders: []\n"
JOB = "extends: tiny-llama-1rank\nname: demo\nsweep: {grid: {engine.max_batch_size: [4, 8]}}\n"


@pytest.fixture(autouse=True)
def files(home: Path, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "cluster.yaml").write_text(CLUSTER)
    (home / "job.yaml").write_text(JOB)
    monkeypatch.setenv("TRTLLM_HPC_CLUSTER", "./cluster.yaml")


def folder(home: Path) -> Path:
    """Return the folder of the only sweep."""
    [found] = (home / "runs" / "sweeps").iterdir()
    return found


def test_a_sweep_is_submitted_listed_shown_and_cancelled(types: Types, home: Path) -> None:
    begun = types("sweep", "job.yaml", "--set", "sweep.max_running=1")
    assert begun.code == 0, begun.errors
    name = folder(home).name
    assert begun.output.splitlines() == [
        f"sweep {name}: 2 variants",
        f"  folder {folder(home)}",
        "  submitted 1 of 2: bs4",
        "  submitted 2 of 2: bs8",
        f"next: trtllm-hpc sweep status {name}, or trtllm-hpc sweep watch {name}",
    ]
    assert name in types("sweep", "list").output
    [listed] = documented("sweep list", types("sweep", "list", "--json").output)
    assert (listed["sweep_id"], listed["variants"]) == (name, 2)
    shown = types("sweep", "status")
    assert shown.code == 0 and "2 pending" in shown.output and "max_batch_size" in shown.output
    assert documented("sweep status", types("sweep", "status", name, "--json").output)["settled"] is False
    assert types("status", f"{name}/bs8").code == 0
    assert "1 pending, 1 cancelled" in types("sweep", "cancel", "latest", "bs8").output
    assert "submitted 1 of 1: bs8" in types("sweep", "resume").output
    assert (
        types("sweep", "resume").output
        == "nothing to submit: every variant has completed or is in the queue\n"
    )
    cancelled = types("sweep", "cancel")
    assert "2 cancelled" in cancelled.output and f"trtllm-hpc sweep resume {name}" in cancelled.output
    assert types("sweep", "watch").code == ExitCode.CANCELLED


def test_check_submits_nothing(types: Types, home: Path, fake_slurm: FakeSlurm) -> None:
    checked = types("sweep", "job.yaml", "--check", "--sweep", "serve.instances=1,2")
    assert checked.output.splitlines() == [
        *("bs4-x1", "bs4-x2", "bs8-x1", "bs8-x2"),
        "4 variants, 12 jobs; nothing was submitted",
    ]
    record = documented("sweep run", types("sweep", "job.yaml", "--check", "--json").output)
    assert [it["name"] for it in record["variants"]] == ["bs4", "bs8"] and record["jobs"] == 6
    assert not fake_slurm.jobs and not (home / "runs").exists()


def test_what_was_left_out_is_said(types: Types) -> None:
    begun = types("sweep", "job.yaml", "--sweep", "engine.max_batch_size=4,0", "--skip-refused")
    assert begun.code == 0
    assert "left out: --sweep: engine.max_batch_size: must be at least 1, not 0 (in bs0)" in begun.errors
    assert "refused" in types("sweep", "status").output


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("sweep", "status", "nothing"), ExitCode.RUN, "No sweep is called 'nothing'"),
        (("sweep", "status"), ExitCode.RUN, "contains no sweep"),
        (("sweep", "tiny-llama"), ExitCode.CONFIG, "there are no variants"),
        (("submit", "job.yaml"), ExitCode.CONFIG, "trtllm-hpc sweep run job.yaml"),
    ],
)
def test_a_mistake_gets_a_sentence(types: Types, words: tuple[str, ...], code: int, said: str) -> None:
    answer = types(*words)
    assert answer.code == code and said in " ".join(answer.errors.split()), answer.errors


def test_a_damaged_record_is_no_traceback(types: Types, home: Path) -> None:
    types("sweep", "job.yaml")
    (folder(home) / "sweep.json").write_text("{")
    answer = types("sweep", "status", folder(home).name)
    assert answer.code == ExitCode.RUN and "damaged" in answer.errors
    assert "no sweeps in" in types("sweep", "list").output
    assert types("sweep", "job.yaml").code == 0
    assert types("sweep", "status", "demo").code == 0
