"""A server by its own command on a real cluster: ``transformers serve``, and commands that cannot serve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.conftest import FEW, Person
from tests.upstream.transformers_serve import make_model
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.paths import COMPANION_MEASUREMENT
from trtllm_hpc.runtime.records import Endpoint

pytestmark = pytest.mark.slurm

SERVE = [str(Path(sys.executable).with_name("transformers")), "serve", "{model}", "--device", "cpu"]


def job_file(person: Person, name: str, command: list[str], **serve: Any) -> Path:
    model = person.folder / "model"
    if not model.exists():
        make_model(model)
        subprocess.run(["chown", "-R", f"--reference={person.folder}", model], check=True)
    return person.job(
        name,
        model={"path": str(model)},
        engine={"backend": "command"},
        serve={"command": command, "environment": {"HF_HUB_OFFLINE": "1"}, **serve},
        companion={"request": {"prompt": "the river", "max_tokens": 5}, "benchmark": FEW},
    )


def test_a_server_of_another_kind_is_served_measured_and_ended(person: Person) -> None:
    job = job_file(person, "hf", [*SERVE, "--host", "{address}", "--port", "{port}"])
    _, run = person.submit(job)
    measured = read_measurement(run.measurement(COMPANION_MEASUREMENT).summary)
    [only] = measured.levels[0].passes
    assert (measured.protocol, only.measured, only.failed) == ("openai", 12, 0)
    assert Endpoint.read(run.endpoint) is None
    person.has_nothing_left()
