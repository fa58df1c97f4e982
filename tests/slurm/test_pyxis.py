"""Whole chains in containers of pyxis, by a stand-in that Slurm itself loads (tests/slurm/pyxis)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm import pyxis
from tests.slurm.caches import ANOTHER_ENGINE, written
from tests.slurm.conftest import Person
from tests.slurm.test_backbone import answers_of, assert_served_and_measured, two_ranks
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.caches import CACHES

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(pyxis.obstacle() is not None, reason=str(pyxis.obstacle())),
]


@pytest.fixture
def plugin(person: Person, installed: Path) -> Iterator[pyxis.Pyxis]:
    """The stand-in in the person's sandbox, and their password for its registry."""
    credentials = person.folder / ".config" / "enroot" / ".credentials"
    credentials.parent.mkdir(parents=True)
    credentials.write_text(f"machine registry.test login anybody password {pyxis.PASSWORD}\n")
    for path in (credentials, *credentials.parents[:2]):
        shutil.chown(path, person.user.pw_uid, person.user.pw_gid)
    made = pyxis.Pyxis(person.sandbox, pyxis.made(installed.parent))
    made.install("job")
    yield made
    made.remove()
    shutil.rmtree(credentials.parents[1])


def settings(person: Person, **more: str) -> list[str]:
    """The profile's section, and folders whose names pyxis reads as they are."""
    section = {"runtime": "pyxis", "image": pyxis.IMAGE, "python": pyxis.PYTHON, **more}
    folder = person.folder.parent / "it's of pyxis é"
    folder.mkdir(exist_ok=True)
    shutil.chown(folder, person.user.pw_uid, person.user.pw_gid)
    keys = {"container": json.dumps(section), "runs_folder": f"{folder}/runs"}
    keys["engines_folder"] = f"{folder}/engines {time.monotonic_ns()}"
    return [word for key, value in keys.items() for word in ("--set", f"cluster.{key}={value}")]


def importing_jobs(plugin: pyxis.Pyxis) -> list[str]:
    """The job of each import, on whichever node."""
    return sorted(line.split(".")[0] for lines in plugin.imports().values() for line in lines)


def test_a_node_imports_the_image_once_a_job_and_nobody_sees_the_password(
    person: Person, plugin: pyxis.Pyxis
) -> None:
    sections = two_ranks(model={"synthetic": "stand-in"})
    sections["serve"] = {
        **sections.get("serve", {}),
        "prologue": [f"test -x {pyxis.PYTHON}", "echo in the image"],
    }
    job = person.job("in-pyxis", **sections)
    checked = person.types("doctor", job, "--cluster", person.profile, *settings(person))
    said, run = person.submit(job, *settings(person))
    # The Python of the ranks is in the image only: they were in it.
    assert_served_and_measured(run)
    assert all("in the image\n" in run.rank_log("serve", rank).read_text() for rank in range(2))
    person.has_nothing_left()
    jobs = {stage["stage"]: stage["job_id"] for stage in person.status(run)["stages"]}
    assert importing_jobs(plugin) == [jobs["build"], jobs["serve"], jobs["serve"]]
    assert eventually(lambda: not any(plugin.containers().values()), 10), plugin.containers()
    written = [file.read_text(errors="replace") for file in run.folder.rglob("*") if file.is_file()]
    assert any(pyxis.IMAGE in text for text in written) and "pyxis-scope" in checked.stdout
    assert not any(pyxis.PASSWORD in text for text in (*written, said, checked.stdout, checked.stderr))


@pytest.mark.thorough
def test_programs_in_the_image_have_a_home_and_caches_that_the_next_job_finds(
    person: Person, plugin: pyxis.Pyxis
) -> None:
    """The image is read only, and the user's home is not mounted."""
    words = [*settings(person), "--set", 'cluster.environment={"CUDA_CACHE_PATH": "/tmp"}']
    job = person.job("caches", **two_ranks(model={"synthetic": "stand-in"}))
    first = written(person, job, pyxis.PYTHON, *words)
    second = written(person, job, pyxis.PYTHON, *words, *ANOTHER_ENGINE)
    assert len(first) == len(CACHES), first
    for name, (file, state) in first.items():
        assert state == "first"
        assert file == "/tmp/written" if name == "CUDA_CACHE_PATH" else file.startswith("/trtllm-hpc-caches/")
    assert {name: state for name, (_, state) in second.items()} == {
        name: "first" if name == "CUDA_CACHE_PATH" else "again" for name in first
    }
    kept = person.folder.parent / "it's of pyxis é" / "runs" / f".trtllm-hpc-{person.user.pw_uid}"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert len(list(kept.rglob("written"))) == len(CACHES) - 1


@pytest.mark.thorough
def test_a_node_imports_the_image_once_for_all_jobs(person: Person, plugin: pyxis.Pyxis) -> None:
    plugin.install("global")
    sections = two_ranks(model={"synthetic": "stand-in"}, companion={"benchmark": None})
    job = person.job("in-pyxis", **sections)
    refused = person.types("submit", job, "--cluster", person.profile, *settings(person))
    assert refused.returncode == ExitCode.CONFIG and "check pyxis-scope: " in refused.stderr
    _, run = person.submit(job, *settings(person, scope="global"))
    assert len(answers_of(run)) == 1
    assert person.has_no_jobs()
    assert [len(lines) for lines in plugin.imports().values()] == [1, 1]
    assert [len(names) for names in plugin.containers().values()] == [1, 1]


@pytest.mark.thorough
def test_mpirun_joins_ranks_in_containers(person: Person, plugin: pyxis.Pyxis) -> None:
    job = person.job("in-pyxis", **two_ranks(model={"synthetic": "stand-in"}))
    _, run = person.submit(job, *settings(person), "--set", "cluster.mpi=mpirun")
    assert_served_and_measured(run)
    assert person.has_no_jobs()
