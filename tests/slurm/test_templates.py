"""Templates taken by a real task of a real Slurm, and a repository made of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.runtime.model_repository.upstream import write_all_models
from tests.schemas.check import documented
from tests.slurm.conftest import USER, Person

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]


@pytest.fixture
def all_models(person: Person) -> Path:
    """Templates in a folder that the nodes see."""
    made = write_all_models(person.folder / "an installed TensorRT-LLM", "0.16.0")
    for path in (made.parent, *made.parent.rglob("*")):
        shutil.chown(path, USER.pw_uid, USER.pw_gid)
    return made


def test_one_task_prints_the_templates_and_a_job_is_made_of_them(person: Person, all_models: Path) -> None:
    folder = f"cluster.container.all_models={json.dumps(str(all_models))}"
    options: list[str | Path] = ["--cluster", person.profile, "--set", folder]
    version = ["--set", "cluster.container.tensorrt_llm_version=0.16.0"]
    fetched = person.types("templates", "fetch", *options, "--json")
    assert fetched.returncode == 0, fetched.stderr
    record = documented("templates fetch", fetched.stdout)
    assert record["origin"] == str(all_models)
    assert record["whole"]
    assert "inflight_batcher_llm/tensorrt_llm" in record["models"]
    assert person.has_no_jobs()

    # The templates on the nodes are gone: what was kept is enough.
    shutil.rmtree(all_models)
    job = person.job(
        "upstream",
        model={"path": "/models/llama"},
        engine={"backend": "tensorrtllm", "directory": "/engines/a, b: c", "max_batch_size": 4},
    )
    shown = person.types("templates", "show", job, *options, *version, "tensorrt_llm")
    assert shown.returncode == 0, shown.stderr
    assert 'string_value: "/engines/a, b: c"' in shown.stdout
    assert "${" not in shown.stdout
