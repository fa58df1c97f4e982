"""Upstream's other modes of serving on a real Slurm: MPI, Triton and the jobs are real, the models stand-ins.

The stand-in of upstream's C++ backend (``tests/upstream/backend``) starts its ranks as upstream does: spawned
by MPI, or as ranks of the step. An answer is the prompt again and again; each rank computes a part.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ended import ended_when_asked
from tests.slurm.conftest import Person, user_processes
from tests.slurm.upstream_site import Site, answers, upstream_site
from tests.upstream.backend.text_models import SOURCES
from trtllm_hpc.bench.results import read_measurement
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_config import read_engine
from trtllm_hpc.runtime.records import rank_records, read_events

pytestmark = pytest.mark.slurm


@pytest.fixture
def site(person: Person, engine: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site whose container has the release that the test names."""
    with upstream_site(person, engine / "tokenizer", request.param, SOURCES, has_backend=True) as made:
        yield made


def submit_shipped(site: Site, job: str, *settings: str) -> RunPaths:
    """A shipped job file, but with the model's place, a small node and a short benchmark, to its end."""
    small = ("build.memory_gib=null", "build.cpus=1", "companion.benchmark.max_late_share=1.0")
    short = ("companion.benchmark.concurrency=2", "companion.benchmark.duration_seconds=1.2")
    _, run = site.submit(Path(job), *as_options(site, *small, *short, *settings))
    return run


def rendered(site: Site, job: str, *settings: str) -> str:
    """What ``render`` prints of a shipped job file."""
    said, _ = site.render(Path(job), *as_options(site, *settings))
    return said


def as_options(site: Site, *settings: str) -> list[str]:
    """Settings for the command line, with the model's place."""
    return [word for one in (f"model.path={site.model}", *settings) for word in ("--set", one)]


def assert_served_and_measured(site: Site, run: RunPaths, prompt: str) -> None:
    """Every answer repeats its prompt, all ranks ended when asked, figures are valid, nothing is left."""
    for text in answers(run):
        assert len(text) > len(prompt) and (prompt * 3).startswith(text)
    records = rank_records(run, "serve")
    assert all(ended_when_asked(run, record.rank) for record in records), records
    measured = read_measurement(run.measurement("benchmark").summary)
    assert measured.verdict.valid, measured.verdict.findings
    [only] = measured.levels[0].passes
    assert only.failed == 0 and only.measured > 10
    site.has_nothing_left()


@pytest.mark.parametrize("site", ["0.11.0"], indirect=True)
def test_an_orchestrator_spawns_the_ranks_of_both_models(site: Site) -> None:
    both = "companion.benchmark.models=[ensemble, ensemble_2]"
    run = submit_shipped(site, "llama2-7b-multi-instance-orchestrator", both)
    tried = [event.data for event in read_events(run, "serve") if event.name == "spawn"]
    assert [(one["launcher"], one["works"]) for one in tried] == [("srun", False), ("mpirun", True)]
    assert_served_and_measured(site, run, "What is machine learning?")


@pytest.mark.thorough
@pytest.mark.parametrize("site", ["0.16.0"], indirect=True)
def test_two_ranks_compute_prompts_and_two_the_answers(site: Site) -> None:
    phases = "{context: {instances: [[0, 1]]}, generation: {instances: [[2, 3]]}}"
    settings = (
        "engine.tensor_parallel=2",
        f"serve.disaggregated={phases}",
        "engine.tensorrt_llm_version=null",
    )
    run = submit_shipped(site, "disaggregated-llama", *settings)
    assert_served_and_measured(site, run, "Machine learning is")
    assert read_engine(run.engine).world_size == 2
    assert "engine: found in the cache" in rendered(site, "disaggregated-llama", *settings)


@pytest.mark.thorough
@pytest.mark.parametrize("site", ["0.11.0"], indirect=True)
def test_a_killed_worker_of_an_orchestrator_is_told_and_leaves_nothing(site: Site) -> None:
    words = as_options(site, "build.memory_gib=null", "build.cpus=1", "companion.enabled=false")
    run = site.serves(Path("llama2-7b-multi-instance-orchestrator"), *words)
    node = site.sandbox.nodes[0]
    workers = [one for one in user_processes(node) if "ranks.py" in " ".join(one.arguments)]
    assert len(workers) == 4, workers
    os.kill(workers[0].pid, signal.SIGKILL)
    status = site.failed(run, 60)
    assert status["causes"][0]["id"] == "mpirun-signal" and not run.endpoint.exists()
    [rank] = rank_records(run, "serve")
    assert rank.ended_at is not None, "mpirun has not taken the supervisor with it"
    site.has_nothing_left()
