"""Whole chains in containers of pyxis, by a stand-in that Slurm itself loads (tests/slurm/pyxis)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm import pyxis
from tests.slurm.conftest import Person
from tests.slurm.test_backbone import assert_served_and_measured, two_ranks
from tests.waiting import eventually

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


def test_every_stage_runs_in_the_image(person: Person, plugin: pyxis.Pyxis) -> None:
    container = {"runtime": "pyxis", "image": pyxis.IMAGE, "python": pyxis.PYTHON}
    job = person.job("in-pyxis", **two_ranks(model={"synthetic": "stand-in"}))
    answer, run = person.submit(job, "--set", f"cluster.container={json.dumps(container)}")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert_served_and_measured(run)
    assert person.has_no_jobs()
    assert eventually(lambda: person.leftovers() == [], 15), person.leftovers()
    jobs = {stage["stage"]: stage["job_id"] for stage in person.status(run)["stages"]}
    imported = [line.split()[0].partition(".")[0] for lines in plugin.imports().values() for line in lines]
    assert imported.count(jobs["build"]) == 1  # PYTHON is nowhere but in the image: the ranks ran there too
