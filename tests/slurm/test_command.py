"""A server by its own command on a real cluster: ``transformers serve``, and commands that cannot serve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.slurm.conftest import Person
from tests.upstream.transformers_serve import make_model
from tests.waiting import eventually
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import COMPANION_MEASUREMENT
from trtllm_hpc.runtime.records import Endpoint

pytestmark = pytest.mark.slurm

SERVE = [str(Path(sys.executable).with_name("transformers")), "serve", "{model}", "--device", "cpu"]
FEW = {"requests": 4, "concurrency": 2, "max_tokens": 4, "min_requests": 1, "min_window_seconds": 0.01}


def job_file(person: Person, name: str, command: list[str], **serve: Any) -> Path:
    model = person.folder / "model"
    if not model.exists():
        make_model(model)
        subprocess.run(["chown", "-R", f"--reference={person.folder}", model], check=True)
    made = {
        "name": name,
        "model": {"path": str(model)},
        "engine": {"backend": "command"},
        "serve": {"command": command, "environment": {"HF_HUB_OFFLINE": "1"}, **serve},
        "companion": {"request": {"prompt": "the river", "max_tokens": 5}, "benchmark": FEW},
    }
    file = person.folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(made))
    return file


def test_a_server_of_another_kind_is_served_measured_and_ended(person: Person) -> None:
    job = job_file(person, "hf", [*SERVE, "--host", "{address}", "--port", "{port}"])
    answer, run = person.submit(job)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    measured = read_measurement(run.measurement(COMPANION_MEASUREMENT).summary)
    [only] = measured.levels[0].passes
    assert (measured.protocol, only.measured, only.failed) == ("openai", 4, 0)
    assert Endpoint.read(run.endpoint) is None
    assert eventually(lambda: person.leftovers() == [], 15), person.leftovers()


HTTP = [sys.executable, "-m", "http.server", "18999", "--bind=127.0.0.1", "--directory={port}"]


@pytest.mark.parametrize(
    ("name", "command", "code", "sentence"),
    [
        ("absent", ["no-such-server", "--port={port}"], ExitCode.START, "no-such-server"),
        ("over", ["true", "{port}"], ExitCode.START, "the server ended by itself"),
        ("elsewhere", HTTP, ExitCode.READINESS, "but listens at port 18999"),
    ],
)
def test_a_command_that_cannot_serve_is_named_with_its_fault(
    person: Person, name: str, command: list[str], code: int, sentence: str
) -> None:
    answer, _ = person.submit(job_file(person, name, command, ready_timeout_seconds=8))
    assert answer.returncode == code, answer.stdout + answer.stderr
    assert sentence in answer.stdout + answer.stderr
    assert eventually(lambda: person.leftovers() == [], 15), person.leftovers()
