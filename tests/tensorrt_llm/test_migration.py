"""What becomes of a job with an engine on the PyTorch path; each key is in ``outcomes.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tensorrt_llm.outcomes import read_job
from trtllm_hpc.config.files import jobs
from trtllm_hpc.config.inheritance import whole_text
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.migration import AlreadyMigrated, migrate
from trtllm_hpc.runs.shipped_jobs import shipped_jobs
from trtllm_hpc.tensorrt_llm.releases.data_files import read_data
from trtllm_hpc.validation.load import load

COMMENTED = """# Our chat model
name: chat
model:
  path: /models/llama # on the fast disk
engine:
  backend: tensorrtllm
  plugins: {gemm: auto}
"""


def test_comments_stay() -> None:
    done = migrate(COMMENTED, read_job(COMMENTED))
    assert "# Our chat model" in done.text and "# on the fast disk" in done.text


@pytest.mark.parametrize("backend", ["pytorch", "reference"])
def test_a_job_without_an_engine_is_refused(backend: str) -> None:
    text = f"name: a\nengine: {{backend: {backend}}}\n"
    with pytest.raises(AlreadyMigrated, match=backend):
        migrate(text, read_job(text))


@pytest.mark.parametrize("name", [job.name for job in shipped_jobs() if job.backend == "tensorrtllm"])
def test_every_shipped_engine_job_loads_after_it(name: str, tmp_path: Path) -> None:
    text = whole_text(jobs()[name])
    done = migrate(text, read_job(text))
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert [line for line in done.text.splitlines() if line.startswith("#")] == comments
    file = tmp_path / "job.yaml"
    file.write_text(done.text)
    assert load(file, "pyxis").job.engine.backend == "pytorch"


def test_the_data_name_keys_of_the_job_file() -> None:
    named = [key for rule in read_data("migration")["rule"] for key in rule["keys"]]
    assert len(named) == len(set(named))
    schema = JobFile.model_json_schema()
    for key in named:
        at = schema
        for word in key.split("."):
            choices = [at, *at.get("anyOf", ())]
            at = next(
                schema["$defs"][choice["$ref"].rpartition("/")[2]] if "$ref" in choice else choice
                for choice in choices
                if "$ref" in choice or "properties" in choice
            )
            assert word in at["properties"], key
            at = at["properties"][word]
    for rule in read_data("migration")["rule"]:
        assert len({"dropped", "lost", "becomes"} & set(rule)) == 1, rule
