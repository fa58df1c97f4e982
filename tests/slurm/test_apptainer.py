"""A whole chain in a real container: needs apptainer, and an image made of container/reference.def.

``TRTLLM_HPC_TEST_IMAGE`` names the image, which every user can read.
"""

from __future__ import annotations

import json
import os
import shutil

import pytest

from tests.slurm.caches import ANOTHER_ENGINE, written
from tests.slurm.conftest import Person
from tests.slurm.test_backbone import assert_served_and_measured, two_ranks
from trtllm_hpc.runtime.caches import CACHES

IMAGE = os.environ.get("TRTLLM_HPC_TEST_IMAGE", "")

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("apptainer") is None, reason="there is no apptainer"),
    pytest.mark.skipif(not IMAGE, reason="TRTLLM_HPC_TEST_IMAGE names no image"),
]


def test_every_stage_runs_in_the_image(person: Person) -> None:
    # The ranks' Python is a link that only the overlay has. Not in the home, since quotes are refused.
    overlay, python = person.folder.parent / "overlay", "/opt/of-the-overlay/python3"
    for folder in ("upper/opt/of-the-overlay", "work"):
        (overlay / folder).mkdir(parents=True)
    (overlay / f"upper{python}").symlink_to("/usr/bin/python3")
    container = {
        **{"runtime": "apptainer", "image": IMAGE, "options": ["--overlay", f"{overlay}:ro"]},
        **{"python": python, "cache_folder": str(person.folder / "cache")},
    }
    job = person.job("in-an-image", **two_ranks(model={"synthetic": "stand-in"}))
    _, run = person.submit(job, "--set", f"cluster.container={json.dumps(container)}")
    assert "apptainer exec" in run.sbatch("build").read_text()
    assert_served_and_measured(run)
    assert person.has_no_jobs()
    words = ("--set", f"cluster.container={json.dumps(container)}")
    first = written(person, job, python, *words, *ANOTHER_ENGINE)
    assert len(first) == len(CACHES), first
    assert all(file.startswith("/trtllm-hpc-caches/") for file, _ in first.values()), first
    kept = person.folder / "cache" / f".trtllm-hpc-{person.user.pw_uid}"
    assert len(list(kept.rglob("written"))) == len(CACHES)
    person.has_nothing_left()
