"""``trtllm-serve`` on a real cluster, by stand-ins of upstream's server and launcher with their manners."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.conftest import Person
from tests.slurm.upstream_site import Site, answers, stages, upstream_site
from tests.upstream.container import add_llm_api
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import RankRecord

pytestmark = pytest.mark.slurm

TWO_RANKS = {"backend": "pytorch", "tensor_parallel": 2, "max_input_len": None}


@pytest.fixture
def site(person: Person, engine: Path) -> Iterator[Site]:
    with upstream_site(person, engine / "tokenizer", "1.2.0", {}) as made:
        add_llm_api(made.container)
        yield made


def submit(site: Site, job: Path, *words: str) -> tuple[int, str, RunPaths]:
    """The exit code of ``submit --wait``, what it said, and the run."""
    over = f"cluster.environment.FAKE_LAUNCH_OVER={json.dumps(str(site.person.folder / job.stem))}"
    answer, run = site.submit(job, "--set", over, *words)
    return answer.returncode, answer.stdout + answer.stderr, run


def test_a_model_is_served_over_two_nodes_without_a_build(site: Site) -> None:
    job = site.job("served", repository={}, engine=TWO_RANKS)
    code, said, run = submit(site, job)
    assert code == 0, said
    assert stages(run) == ["serve", "companion"]
    assert answers(run) == ["hello hello"]
    ranks = [RankRecord.read(run.rank_record("serve", rank)) for rank in range(2)]
    assert len({rank.host for rank in ranks if rank}) == 2
    assert eventually(lambda: site.person.leftovers() == [], 15), site.person.leftovers()


def test_an_image_without_the_programs_is_told_before_the_server_starts(site: Site) -> None:
    (site.container.folder / "bin" / "trtllm-llmapi-launch").unlink()
    code, said, _ = submit(site, site.job("no-launcher", repository={}, engine=TWO_RANKS))
    assert code == ExitCode.START and "there is no trtllm-llmapi-launch on" in said
