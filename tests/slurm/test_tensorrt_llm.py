"""TensorRT-LLM's path on a real Slurm: upstream's programs and models are stand-ins, all between is real.

The programs take the options of the release's list and refuse others; the
models are Python behind a real tritonserver and answer with what they were
configured with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ended import ended_when_asked
from tests.runtime.model_repository.python_models import LLM_API, SOURCES
from tests.runtime.model_repository.upstream import write_llmapi
from tests.slurm.conftest import Person
from tests.slurm.upstream_site import Site, answers, stages, upstream_site
from tests.upstream.container import add_llm_api
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.records import RankRecord

pytestmark = pytest.mark.slurm

RELEASE = "0.16.0"


@pytest.fixture
def site(person: Person, engine: Path) -> Iterator[Site]:
    with upstream_site(person, engine / "tokenizer", RELEASE, SOURCES) as made:
        yield made


def test_a_model_is_converted_built_and_served_and_the_next_run_builds_nothing(site: Site) -> None:
    said, run = site.submit(site.job("first"))
    assert "engine: not in the cache" in said and "build: has completed" in said
    # The fake models answer with their engine's and their tokenizer's folder.
    assert answers(run) == [f"hello|{run.engine}|{site.model}"]
    convert, build = site.calls()
    assert convert[0] == "convert_checkpoint.py" and convert[convert.index("--tp_size") + 1] == "2"
    assert build[0] == "trtllm-build" and build[build.index("--max_seq_len") + 1] == "128"
    assert build[build.index("--gpus_per_node") + 1] == "1"  # two nodes, a rank each
    assert sorted(file.name for file in run.engine.glob("*.engine")) == ["rank0.engine", "rank1.engine"]
    ranks = [RankRecord.read(run.rank_record("serve", rank)) for rank in range(2)]
    assert len({rank.host for rank in ranks if rank}) == 2

    again, second = site.render(site.job("second"))
    assert "engine: found in the cache" in again and "build" not in stages(second)
    assert second.engine.resolve() == run.engine.resolve()

    # Only the build differs: the conversion is found again.
    told, third = site.render(site.job("third", engine={"max_batch_size": 2}))
    assert "max_batch_size" in told  # what differs from the nearest
    site.slurm("sbatch", "--wait", third.sbatch("build"))
    assert [call[0] for call in site.calls()[2:]] == ["trtllm-build"]
    assert site.types("engines", "verify", "--cluster", site.profile).returncode == 0
    site.has_nothing_left()


@pytest.mark.thorough
def test_a_word_that_upstream_refuses_ends_the_build_in_its_own_words(site: Site) -> None:
    """As when the lists here are wrong about a release: the log has upstream's own sentence."""
    program = site.container.folder / "bin" / "trtllm-build"
    program.write_text(program.read_text().replace('"$@"', '"$@" --no_such_option'))
    _, run = site.submit(site.job("refused"), exit_code=ExitCode.BUILD)
    assert "unrecognized arguments: --no_such_option" in run.rank_log("build", 0).read_text()
    program.write_text(program.read_text().replace(" --no_such_option", ""))
    _, mended = site.render(site.job("mended"))
    site.slurm("sbatch", "--wait", mended.sbatch("build"))
    refused, built = site.calls()[1:]  # after the one conversion, which both runs share
    assert refused[-1] == "--no_such_option" and built[:-1] == refused[:-2]  # but for the output folder

    # The same by commands of the job file.
    convert = ["python3", "{examples}/llama/convert_checkpoint.py", "--model_dir", "{model}"]
    convert += ["--tp_size", "{tensor_parallel}", "--output_dir", "{work}/checkpoint"]
    build = ["trtllm-build", "--checkpoint_dir", "{work}/checkpoint", "--output_dir", "{output}"]
    _, own = site.render(site.job("own", build={"commands": [convert, build]}))
    site.slurm("sbatch", "--wait", own.sbatch("build"))
    assert [call[0] for call in site.calls()[3:]] == ["convert_checkpoint.py", "trtllm-build"]
    assert sorted(file.name for file in own.engine.glob("*.engine")) == ["rank0.engine", "rank1.engine"]
    assert not (own.engine / ".work").exists()


@pytest.mark.thorough
def test_the_llm_api_serves_over_two_nodes_through_its_launcher(site: Site) -> None:
    """No engine and no build: the launcher joins the ranks, and the model reads what the job file says."""
    add_llm_api(site.container)
    write_llmapi(site.container.folder, LLM_API)
    site.carries("1.1.0")
    over = site.folder / "the workers may end"
    job = site.job(
        "llm-api",
        repository={},
        engine={"backend": "pytorch", "max_input_len": None},
        serve={"nodes": 2, "ready_timeout_seconds": 120, "frontend": "triton"},
    )
    release = "cluster.container.tensorrt_llm_version=1.1.0"
    environment = f"cluster.environment.FAKE_LAUNCH_OVER={json.dumps(str(over))}"
    _, run = site.submit(job, "--set", release, "--set", environment)
    assert "build" not in stages(run)
    for text in answers(run):
        asked, _, arguments = text.partition("|")
        assert asked == "hello" and '"tensor_parallel_size": 2,' in arguments and "Llama, tiny" in arguments
    leader = RankRecord.read(run.rank_record("serve", 0))
    assert leader is not None and ended_when_asked(run, 0), run.rank_log("serve", 0).read_text()
    # A server that gives up waiting for its models fails, and the launcher does not end the workers then.
    assert over.exists() == (leader.exit_code == 0)
    site.has_nothing_left()
