"""``extends``: what a job file has from the files that it builds on, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.files import CLUSTER, Folder
from trtllm_hpc.config.files import jobs, read_job
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.validation.load import load

BASE = """\
name: base
model: {path: weights}
engine:
  backend: pytorch
  tensor_parallel: 2
  llm_api: {stream_interval: 10, kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.8}}
serve:
  hang_timeout_seconds: 90
  command: [a, b]
  environment: {A: a, B: b}
"""


def write(folder: Path, **texts: str) -> Path:
    """Write files as NAME.yaml; returns ``job.yaml``."""
    for name, text in texts.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder / "job.yaml"


def refused(file: Path) -> Diagnostic:
    with pytest.raises(ConfigError) as caught:
        read_job(file)
    [found] = caught.value.diagnostics
    return found


def test_sections_merge_lists_replace_and_null_removes(tmp_path: Path) -> None:
    job = read_job(
        write(
            tmp_path,
            base=BASE,
            job="name: mine\nextends: base.yaml\n"
            "engine:\n  tensor_parallel: null\n"
            "  llm_api: {stream_interval: null, kv_cache_config: {dtype: null}}\n"
            "serve: {command: [c], environment: {A: null, C: c}, hang_timeout_seconds: null}\n"
            "companion: {benchmark: null}\n",
        )
    )
    assert (job.name, job.engine.backend, job.engine.tensor_parallel) == ("mine", "pytorch", 1)
    assert job.engine.llm_api == {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}}
    assert (job.serve.command, job.serve.environment) == (["c"], {"B": "b", "C": "c"})
    # Here null has a meaning of its own.
    assert job.serve.hang_timeout_seconds is None and job.companion.benchmark is None


def test_a_base_may_have_a_base_and_the_layers_below_and_above_stay(files: Folder) -> None:
    write(
        files.folder,
        one="name: one\nserve: {nodes: 1, cpus_per_rank: 1, time_limit_minutes: 1}\n",
        two="extends: one.yaml\nserve: {nodes: 2, cpus_per_rank: 2}\n",
    )
    below = CLUSTER + "job_defaults: {serve: {ready_timeout_seconds: 7, time_limit_minutes: 7}}\n"
    serve = files.load("name: x\nextends: two.yaml\n", below, "serve.nodes=1").job.serve
    assert (serve.nodes, serve.cpus_per_rank, serve.time_limit_minutes) == (1, 2, 1)
    assert serve.ready_timeout_seconds == 7


def test_a_relative_path_starts_at_the_file_that_has_it(tmp_path: Path) -> None:
    job = "extends: bases/base.yaml\nengine: {backend: tensorrtllm, directory: engine}\n"
    read = read_job(write(tmp_path, **{"bases/base": BASE}, job=job))
    assert read.model.path == str(tmp_path / "bases" / "weights")
    assert read.engine.directory == str(tmp_path / "engine")
    other = write(tmp_path, job="extends: bases/base.yaml\nmodel: {synthetic: stand-in}\n")
    assert (read_job(other).model.path, read_job(other).model.synthetic) == (None, "stand-in")


def test_a_copy_of_a_shipped_job_file_that_extends_another_works_anywhere(tmp_path: Path) -> None:
    extending = [name for name, path in jobs().items() if "\nextends: " in path.read_text()]
    assert len(extending) >= 8
    for name in extending:
        copy = write(tmp_path, job=jobs()[name].read_text())
        assert read_job(copy) == read_job(jobs()[name])


def test_a_wrong_value_of_a_base_is_placed_there(files: Folder) -> None:
    base = files.folder / "base.yaml"
    base.write_text("serve:\n  nodes: two\n")
    found = files.diagnostic("name: x\nextends: base.yaml\n")
    assert (found.code, found.file, found.line, found.field) == ("wrong-type", str(base), 2, "serve.nodes")


@pytest.mark.parametrize(
    ("extends", "code", "words"),
    [
        ("qwen3-8", "not-found", "did you mean qwen3-8b?"),
        ("base", "not-found", "did you mean ./base.yaml?"),
        ("bases.yaml", "not-found", "did you mean base.yaml?"),
        ("../elsewhere/x.yaml", "not-found", "there is no job file "),
        ("~nobody-here/x.yaml", "not-found", "there is no job file "),
        ("7", "wrong-type", "a job file, not 7"),
        ("null", "wrong-type", "not None"),
        ("[base.yaml]", "wrong-type", "not ['base.yaml']"),
        ("site.yaml", "swapped", "is a cluster profile"),
        ("job.yaml", "circle", "job.yaml -> "),
        ("round.yaml", "circle", "round.yaml -> "),
        ("broken.yaml", "bad-yaml", ""),
    ],
)
def test_bases_that_are_refused(tmp_path: Path, extends: str, code: str, words: str) -> None:
    file = write(
        tmp_path,
        job=f"name: x\nextends: {extends}\n",
        base=BASE,
        site="name: site\npartition: gpu\ngpus_per_node: 8\n",
        round="extends: job.yaml\n",
        broken="name: [\n",
    )
    found = refused(file)
    assert found.code == code and words in str(found), str(found)
    if code not in ("circle", "bad-yaml"):
        assert (found.file, found.line, found.field) == (str(file), 2, "extends")


def test_a_job_that_extends_is_known_where_the_profile_should_be(files: Folder) -> None:
    files.job_file.write_text("extends: tiny-llama\nname: x\n")
    with pytest.raises(ConfigError, match="this is a job file, not a cluster profile"):
        load(files.job_file, str(files.job_file))
