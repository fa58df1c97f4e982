"""Rules about several fields: each with its code, its place, and a remedy that works."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.config.files import CLUSTER, JOB, Folder
from trtllm_hpc.backends import BACKENDS, facts_of
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.config.cluster import ClusterProfile, Container
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.rules import Excludes
from trtllm_hpc.errors import RenderError
from trtllm_hpc.validation import benchmark_rules, cluster_rules, job_rules, serve_rules
from trtllm_hpc.validation.file_system_checks import refuse_folder_names
from trtllm_hpc.validation.load import cluster_problems

LOCAL = CLUSTER + "scheduler: local\n"


@pytest.mark.parametrize(
    ("cluster", "code", "place"),
    [
        ("container:\n  runtime: pyxis\n", "missing", "cluster:2 container.image"),
        ("container:\n  runtime: apptainer\n  image: a\n  mounts:\n  - a:b:c:d\n", "bad-value",
         "cluster:6 container.mounts[0]"),
        ("container:\n  runtime: apptainer\n  image: a\n  mounts:\n  - /a:b\n", "bad-value",
         "cluster:6 container.mounts[0]"),
        ("container:\n  runtime: pyxis\n  image: a\n  mounts:\n  - /a$b:/b\n", "bad-value",
         "cluster:6 container.mounts[0]"),
        ("container:\n  image: a.sif\n", "conflict", "cluster:3 container.image"),
        ("container: {runtime: apptainer, image: a, scope: step}\n", "conflict", "cluster:2 container.scope"),
        ("container: {python: /opt/python3}\n", "conflict", "cluster:2 container.python"),
        ("container: {gpu_options: [--rocm]}\n", "conflict", "cluster:2 container.gpu_options"),
        ("container: {runtime: pyxis, image: a, gpu_options: [--rocm]}\n", "conflict",
         "cluster:2 container.gpu_options"),
        ("container: {runtime: custom, image: a}\n", "missing", "cluster:2 container.runtime"),
        ("container: {runtime: pyxis, image: a, form: {words: [sarus, run, '{image}']}}\n", "conflict",
         "cluster:2 container.form"),
        ("container: {runtime: custom, image: a, mounts: [/a], form: {words: [sarus, '{image}']}}\n",
         "conflict", "cluster:2 container.mounts"),
        ("container: {runtime: custom, image: a, form: {words: [sarus, run, it]}}\n", "missing",
         "cluster:2 container.form.words"),
        ("container: {runtime: container-engine, image: e, options: [--environment=mine]}\n", "managed",
         "cluster:2 container.options[0]"),
        ("scheduler: local\ncontainer: {runtime: container-engine, image: e}\n", "conflict",
         "cluster:3 container.runtime"),
        ("container: {cache_folder: /c}\n", "conflict", "cluster:2 container.cache_folder"),
        ("scheduler: local\ncompanion: overlap\n", "conflict", "cluster:3 companion"),
        ("scheduler: local\npartition: gpu\n", "conflict", "cluster:3 partition"),
        ("scheduler: local\ncontainer: {runtime: pyxis, image: i}\n", "conflict",
         "cluster:3 container.runtime"),
        ("network_interface: ^docker0\n", "bad-value", "cluster:2 network_interface"),
        ("network_interface: hsn0, hsn1\n", "bad-value", "cluster:2 network_interface"),
        ("exclusive: mine\n", "bad-value", "cluster:2 exclusive"),
        ("job_defaults: {serve: {memory_gib_per_node: 0}}\n", "bad-value",
         "cluster:2 job_defaults.serve.memory_gib_per_node"),
        ("gres: [nvme:1, gpu:a100:4]\n", "managed", "cluster:2 gres[1]"),
        ("scheduler: local\ngres: [nvme:1]\n", "conflict", "cluster:3 gres"),
        ("environment:\n  SLURM_CONF: /etc\n", "managed", "cluster:3 environment.SLURM_CONF"),
        ("environment:\n  HF_TOKEN: hf_x\n", "secret", "cluster:3 environment.HF_TOKEN"),
    ],
)  # fmt: skip
def test_a_conflict_in_the_profile(files: Folder, cluster: str, code: str, place: str) -> None:
    diagnostic = files.diagnostic(JOB, CLUSTER + cluster)
    assert (diagnostic.code, files.place(diagnostic)) == (code, place)


@pytest.mark.parametrize(
    ("runtime", "section"),
    [
        ("pyxis", "image: 'me:hidden@nvcr.io#nvidia/tritonserver:25.10'"),
        ("apptainer", "image: 'docker://me:hidden@nvcr.io/nvidia/tritonserver:25.10'"),
        ("apptainer", "image: /a.sif\n  options: [--env=NGC_API_KEY=hidden]"),
        ("apptainer", "image: /a.sif\n  options: [--docker-password=hidden]"),
    ],
)
def test_a_password_is_refused_and_not_shown(files: Folder, runtime: str, section: str) -> None:
    diagnostic = files.diagnostic(JOB, f"{CLUSTER}container:\n  runtime: {runtime}\n  {section}\n")
    assert diagnostic.code == "secret" and diagnostic.hint
    assert "hidden" not in repr(diagnostic) + str(diagnostic)


@pytest.mark.parametrize(
    "image",
    [
        "me@nvcr.io#nvidia/tritonserver:25.10",
        "registry:5000#team/server:1",
        "ubuntu:24.04@sha256:" + "0" * 64,
        "/images/a:b@c.sqsh",
    ],
)
def test_an_image_without_a_password_is_none(image: str) -> None:
    container = Container(runtime="pyxis", image=image)
    assert cluster_problems(ClusterProfile(name="x", container=container)) == []


@pytest.mark.parametrize(
    ("key", "option", "remedy"),
    [
        ("sbatch_options", "--job-name=x", "name"),
        ("sbatch_options", "--partition=gpu", "partition"),
        ("sbatch_options", "--part=gpu", "partition"),
        ("sbatch_options", "--gres=gpu:4", "gpus_per_node"),
        ("sbatch_options", "--array=1-9", "leave it out"),
        ("srun_options", "--mpi=pmi2", "mpi"),
        ("srun_options", "--ntasks=4", "tensor_parallel"),
        ("srun_options", "--container-name=x", "container.scope"),
    ],
)
def test_options_that_the_toolkit_manages(files: Folder, key: str, option: str, remedy: str) -> None:
    diagnostic = files.diagnostic(JOB, f"{CLUSTER}{key}:\n  - --comment=fine\n  - {option}\n")
    assert (diagnostic.code, files.place(diagnostic)) == ("managed", f"cluster:4 {key}[1]")
    assert remedy in (diagnostic.hint or "")


@pytest.mark.parametrize("option", ["-p gpu", "--mail-type FAIL --time=5", "--", "---x=1", "-", "--=x"])
def test_options_that_are_not_one_long_option(files: Folder, option: str) -> None:
    diagnostic = files.diagnostic(JOB, f"{CLUSTER}sbatch_options: ['{option}']\n")
    assert (diagnostic.code, files.place(diagnostic)) == ("bad-value", "cluster:2 sbatch_options[0]")


@pytest.mark.parametrize(
    "option",
    ["--http-port=8000", "--grpc-port", "--model-repository=/m", "--model-r=/m", "--load-model=x",
     "--backend-config=python,shm-region-prefix-name=x"],
)  # fmt: skip
def test_server_options_that_the_toolkit_manages(files: Folder, option: str) -> None:
    diagnostic = files.diagnostic(JOB, f"{CLUSTER}triton:\n  options: ['{option}']\n")
    assert (diagnostic.code, files.place(diagnostic)) == ("managed", "cluster:3 triton.options[0]")


def test_options_that_are_nobody_elses_business_pass(files: Folder) -> None:
    cluster = (
        CLUSTER
        + "sbatch_options: [--mail-type=FAIL, '--comment=a b $(x)', --time-min=5, --nice, --mail-user=me]\n"
        "srun_options: [--unbuffered, --cpu-bind=cores, --network=x]\n"
        "triton: {options: [--log-verbose=1, --backend-config=python, '0']}\n"
        "environment: {OMP_NUM_THREADS: '4', TOKENIZERS_PARALLELISM: 'false', NCCL_DEBUG: INFO}\n"
    )
    assert len(files.load(JOB, cluster).cluster.sbatch_options) == 5


def test_a_job_of_two_nodes_is_told_that_local_has_one(files: Folder) -> None:
    diagnostic = files.diagnostic(JOB + "engine: {tensor_parallel: 2}\nserve: {nodes: 2}\n", LOCAL)
    assert (diagnostic.code, files.place(diagnostic)) == ("conflict", "job:3 serve.nodes")
    assert "a single machine" in diagnostic.message
    assert files.load(files.job_file.read_text(), LOCAL, "serve.nodes=1").job.serve.nodes == 1


def test_rows_name_keys_and_values_that_there_are() -> None:
    """A misspelt key would be found only where a job file has the key beside it."""
    serve = {"mode": "disaggregated", "disaggregated": {}}
    whole = JobFile.model_validate({"name": "a", "engine": {"backend": "pytorch"}, "serve": serve})
    facts = facts_of(whole, ClusterProfile(name="b"))
    rules = {*job_rules.RULES, *cluster_rules.RULES, *serve_rules.RULES}
    rows = [it for it in rules.union(*(it.rules for it in BACKENDS.values())) if isinstance(it, Excludes)]
    subjects: list[tuple[Any, list[Excludes]]] = [
        (facts, rows),
        (Benchmark(), [it for it in benchmark_rules.RULES if isinstance(it, Excludes)]),
    ]
    for subject, judged in subjects:
        for row in judged:
            for key in (*row.keys.split(), *row.others.split()):
                list(replace(row, keys=key.partition("=")[0].removesuffix("!"), others="")(subject))
            names = {"key": "k", "value": 1, "job": facts.job, "cluster": facts.cluster}
            assert row.why.format(**names) and row.fix.format(**names)
    assert len(rows) > 25


# Names of folders --------------------------------------------------------------------------------


def judge(folder: str, runtime: str = "none") -> None:
    container = Container.model_validate({"runtime": runtime, "image": None if runtime == "none" else "a"})
    refuse_folder_names(Path(folder), "/engines", ClusterProfile(name="here", container=container))


@pytest.mark.parametrize(
    "folder",
    ["/runs/100%", "/runs/a\\b", "/runs/a\nb", "/runs/a\x7f", "/r%j/a", os.fsdecode(b"/runs/caf\xe9")],
)
def test_a_folder_that_slurm_misreads_is_refused(folder: str) -> None:
    with pytest.raises(RenderError, match="misreads") as caught:
        judge(folder)
    assert caught.value.hint is not None and "--runs" in caught.value.hint


@pytest.mark.parametrize("folder", ["/runs/a,b", "/runs/a:b"])
def test_a_folder_that_cannot_be_mounted_is_refused_where_there_is_a_container(folder: str) -> None:
    judge(folder)
    for runtime in ("pyxis", "apptainer"):
        with pytest.raises(RenderError, match="misreads"):
            judge(folder, runtime)


@pytest.mark.parametrize("folder", ['/runs/a "b"', "/runs/$(a)", "/runs/`a`"])
def test_a_folder_that_pyxis_writes_into_a_line_of_bash_is_refused(folder: str) -> None:
    judge(folder, "apptainer")
    with pytest.raises(RenderError, match="misreads"):
        judge(folder, "pyxis")


@pytest.mark.parametrize("folder", ["/runs/it's a #run; $(x) é 模型", "/runs/a*b?[c]"])
def test_other_folders_are_taken_as_they_are(folder: str) -> None:
    judge(folder)
