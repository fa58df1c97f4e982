"""A run repeated from its ``lock.json`` on a real cluster, with a checkpoint that has changed since."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.schemas.check import documented
from tests.slurm.conftest import FEW, Person
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.lock import Lock

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]


def test_a_run_is_repeated_and_what_has_changed_is_named(person: Person, engine_alone: Path) -> None:
    model = person.folder / "locked model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    subprocess.run(["chown", "-R", f"--reference={person.folder}", model], check=True)
    job = person.job(
        "locked",
        model={"path": str(model)},
        engine={"directory": str(engine_alone)},
        serve={"door": "none", "cpus_per_rank": 1, "environment": {"MY_TOKEN": "secret-word"}},
        companion={"request": {"max_tokens": 4}, "benchmark": FEW},
    )
    _, run = person.submit(job)
    lock = Lock.read(run.lock)
    assert lock is not None and "secret-word" not in run.lock.read_text()
    [node] = lock.nodes
    assert "torch" in node["packages"]

    (model / "config.json").write_text('{"changed": true}')
    # As if the first run had had an image with another package.
    run.lock.write_text(run.lock.read_text().replace('"torch": "', '"torch": "0.'))
    person.environment["MY_TOKEN"] = "secret-word"
    answer = person.types("submit", run.folder, "--runs", person.folder / "again", "--wait")
    said = " ".join((answer.stdout + answer.stderr).split())
    assert answer.returncode == 0, said
    assert "warning: checkpoint: config.json is [17, " in said and "in the lock" in said
    again = RunPaths(next((person.folder / "again").iterdir()))
    places = f"runs/{run.run_id}", f"again/{again.run_id}"
    scripts = [(it.name, it.read_text().replace(*places)) for it in sorted(run.scripts.iterdir())]
    assert scripts == [(it.name, it.read_text()) for it in sorted(again.scripts.iterdir())]
    assert "warning: nodes: packages is " in said
    [warning] = person.status(again)["unlike"]
    assert (
        warning.startswith("nodes: packages is ") and warning in person.types("status", again.folder).stdout
    )
    compared = person.types("runs", "diff", run.folder, again.folder, "--json")
    record = documented("runs diff", compared.stdout)
    assert record["settings"] == [] and record["figures"]["rows"]
    assert "checkpoint: config.json" in [it["key"] for it in record["environment"]]
    person.has_nothing_left()
