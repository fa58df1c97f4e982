"""2,000 bad files: nothing but ConfigError, and nothing written."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.config.files import CLUSTER, JOB, Folder
from tests.config.values import hostile, nested, settings_for
from tests.fuzzing import examples
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.dump import flow
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.validation.load import load

pytestmark = [pytest.mark.long, pytest.mark.fuzz]

FUZZ = settings(suppress_health_check=list(HealthCheck), database=None)


def _load(files: Folder, job: bytes, cluster: bytes, overrides: list[str]) -> None:
    files.job_file.write_bytes(job)
    files.cluster_file.write_bytes(cluster)
    try:
        load(files.job_file, str(files.cluster_file), overrides)
    except ConfigError as error:
        assert error.diagnostics
        for diagnostic in error.diagnostics:
            assert diagnostic.code and diagnostic.file and diagnostic.message
            # Whatever stands in the file, the report can be printed, and steers no terminal.
            text = str(diagnostic).encode().decode()
            assert all(line.isprintable() for line in text.split("\n")), repr(text)
    assert sorted(path.name for path in files.folder.iterdir()) == ["cluster.yaml", "job.yaml"]


@pytest.fixture(autouse=True)
def in_the_folder(files: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files.folder)


@settings(
    FUZZ, max_examples=examples(300)
)  # a thousand more go through the command line: tests/cli/test_fuzz.py
@given(changes=settings_for(JobFile), more=settings_for(JobFile))
def test_job_files_of_wrong_values(
    files: Folder, changes: list[tuple[str, object]], more: list[tuple[str, object]]
) -> None:
    overrides = [f"{key}={flow(value)}" for key, value in more]
    _load(files, flow(nested(changes)).encode(), CLUSTER.encode(), overrides)


@settings(FUZZ, max_examples=examples(300))
@given(changes=settings_for(ClusterProfile))
def test_profiles_of_wrong_values(files: Folder, changes: list[tuple[str, object]]) -> None:
    _load(files, JOB.encode(), flow(nested(changes)).encode(), [])


@settings(FUZZ, max_examples=examples(300))
@given(
    world=st.lists(st.integers(-2, 5000), min_size=5, max_size=5),
    scheduler=st.sampled_from(["slurm", "local"]),
)
def test_impossible_parallelism(files: Folder, world: list[int], scheduler: str) -> None:
    tensor, pipeline, context, nodes, gpus = world
    engine = {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "context_parallel": context}
    job = flow({"name": "a", "engine": engine, "serve": {"nodes": nodes}})
    cluster = flow({"name": "b", "scheduler": scheduler, "gpus_per_node": gpus})
    _load(files, job.encode(), cluster.encode(), [])


@settings(FUZZ, max_examples=examples(300))
@given(
    raw=st.one_of(st.binary(max_size=200), hostile.map(lambda text: text.encode("utf-8", "surrogatepass")))
)
def test_random_bytes(files: Folder, raw: bytes) -> None:
    _load(files, raw, b"name: b\nsetup: [" + raw + b"]\n", [])
    _load(files, JOB.encode() + b"model: " + raw, CLUSTER.encode(), [])
