"""What is written out loads as the same values, whatever is in it."""

from __future__ import annotations

from hypothesis import given, settings
from ruamel.yaml import YAML

from tests.config.values import hostile
from trtllm_hpc.config.benchmark import Benchmark, Evaluation, LoraAdapter
from trtllm_hpc.config.cluster import ClusterProfile, Container, ContainerForm, Phases
from trtllm_hpc.config.dump import cluster_yaml, flow, job_yaml
from trtllm_hpc.config.engine import ModelCopy, Repository
from trtllm_hpc.config.job import (
    Companion,
    CompanionRequest,
    Disaggregated,
    JobFile,
    Phase,
    Serve,
)
from trtllm_hpc.config.tree import Place, parse
from trtllm_hpc.config.validate import all_keys


def _loaded(text: str) -> object:
    tree, diagnostics = parse(text, Place("dump"))
    assert tree is not None and not diagnostics, diagnostics
    return tree.data


@settings(max_examples=300)
@given(hostile)
def test_text_is_the_same_text_to_other_readers(text: str) -> None:
    line = flow([text, {text: text}]) + "\n"
    assert _loaded(line) == [text, {text: text}]
    assert YAML(typ="safe", pure=True).load(line) == [text, {text: text}]


def test_every_default_is_written_out() -> None:
    phase = Phase(instances=[[0]])
    job = job_yaml(
        JobFile(
            name="a",
            repository=Repository(models=[ModelCopy(name="a", gpu_device_ids=[0])]),
            serve=Serve(
                disaggregated=Disaggregated(context=phase, generation=Phase(instances=[[1]])),
            ),
            companion=Companion(
                request=CompanionRequest(lora=LoraAdapter(directory="/a")),
                benchmark=Benchmark(),
                evaluate=Evaluation(tasks=["facts"]),
            ),
        )
    )
    for key in all_keys(JobFile):
        assert f"{key.rpartition('.')[2]}:" in job
    container = Container(form=ContainerForm(words=["sarus"]))
    cluster = cluster_yaml(ClusterProfile(name="a", phases=Phases(), container=container))
    for key in all_keys(ClusterProfile):
        assert f"{key.rpartition('.')[2]}:" in cluster
