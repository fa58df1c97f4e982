"""Checks of Slurm, folders, containers and this machine: once where all is well, once where it is not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validation.conftest import Checked, says, state
from trtllm_hpc.paths import write_json
from trtllm_hpc.validation import file_system_checks
from trtllm_hpc.validation.context import CONTROLLER, LIMITS, SRUN

ALL = ("", SRUN, CONTROLLER, LIMITS)


@pytest.fixture
def fake_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the beginning of PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def test_a_good_job_fails_nowhere(checked: Checked) -> None:
    rows = checked()
    assert [row for row in rows.values() if row.state == "fail"] == []
    assert {"model-files", "tokenizer", "memory"} <= set(rows)
    assert state(rows, "memory") == "ok" and "requests of 2048" in rows["memory"].message


# Slurm -------------------------------------------------------------------------------------------


def test_the_type_of_the_gpus_is_one_of_the_partitions(checked: Checked, slurm: Callable[..., None]) -> None:
    mixed = "'gpu|4|gpu:a100:8|128|1|infinite' 'gpu|2|gpu:v100:4|128|1|infinite'"
    slurm(sinfo=f"printf '%s\\n' {mixed}")
    gpus = {"partition": "gpu", "gpus_per_node": 4}
    row = checked(needs=ALL, cluster={**gpus, "gpu_type": "v100"})["partition"]
    assert row.state == "ok" and "2 nodes with 4 GPUs" in row.message
    wrong = checked(needs=ALL, cluster={**gpus, "gpu_type": "h100"})
    says(wrong, "partition", "no GPUs of type 'h100'; it has a100, v100")
    too_many = checked(needs=ALL, cluster={**gpus, "gpus_per_node": 8, "gpu_type": "v100"})
    says(too_many, "partition", "has 4 GPUs, but the profile says 8")


def test_a_machine_without_slurm(checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = checked(needs=ALL, cluster={"partition": "gpu"})
    says(rows, "slurm-commands", "sbatch, srun, squeue, scontrol, scancel are not on this machine")
    assert state(rows, "mpi-plugin") == state(rows, "partition") == "unknown"


def test_a_controller_that_does_not_answer_fails_by_itself(
    checked: Checked, slurm: Callable[..., None]
) -> None:
    slurm(sinfo="echo 'Unable to contact slurm controller'; exit 1")
    rows = checked(needs=ALL, cluster={"partition": "gpu"})
    says(rows, "slurm-controller", "Unable to contact slurm controller")
    assert "scontrol ping" in (rows["slurm-controller"].hint or "")
    assert state(rows, "partition") == "unknown"


@pytest.mark.parametrize(
    ("offers", "mpi", "found", "words"),
    [
        ("echo pmi2", "pmix", "warn", "no MPI plugin 'pmix', only pmi2. Open MPI's mpirun starts"),
        ("echo none", "pmi2", "fail", "no MPI plugin 'pmi2'"),
        ("echo pmix_v4; echo pmi2", "pmix", "fail", "only pmix_v4, pmi2"),
        ("echo pmi2", "pmi2", "warn", "need PMIx, but mpi in the profile is pmi2"),
        ("echo pmix", "pmix", "ok", "has the MPI plugin pmix"),
        ("echo pspmi; echo pspmix", "pspmix", "ok", "has the MPI plugin pspmix"),
        ("echo broken; exit 1", "pmix", "unknown", "srun failed: broken"),
    ],
)
def test_mpi_plugins(
    checked: Checked, slurm: Callable[..., None], offers: str, mpi: str, found: str, words: str
) -> None:
    slurm(plugins=offers)
    outcome = checked(needs=("", SRUN), cluster={"mpi": mpi})["mpi-plugin"]
    assert outcome.state == found and words in outcome.message
    if "pmix_v4" in offers:
        assert outcome.hint == "set mpi to pmix_v4 in the profile"


def test_a_configuration_of_slurm_that_is_not_there(checked: Checked, slurm: Callable[..., None]) -> None:
    slurm()
    rows = checked(needs=ALL, cluster={"slurm_conf": "/nowhere/slurm.conf"})
    says(rows, "slurm-conf", "/nowhere/slurm.conf, cannot be read")
    assert state(rows, "mpi-plugin") == "unknown"  # and no command went looking for it in the network


GPU_PARTITION = (
    # A line of Slurm 22.05, less what is not read.
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=YES MaxNodes=UNLIMITED "
    "MaxTime=UNLIMITED MinNodes=0 State=UP TotalCPUs=512 TotalNodes=3 JobDefaults=(null)"
)


@pytest.mark.parametrize(
    ("line", "job", "words"),
    [
        (
            "",
            {"serve": {"nodes": 4}},
            "requests 4 nodes, but the partition 'gpu' allows a job at most 3",
        ),
        ("MaxTime=00:30:00", {"serve": {"time_limit_minutes": 300}}, "requests 300 minutes, but"),
        ("MaxTime=00:30:00", {"build": {"time_limit_minutes": 31}}, "stage build requests 31 minutes"),
        ("AllowAccounts=a,b", {}, "does not accept the account 'mine'"),
    ],
)
def test_what_the_partition_never_gives_is_refused(
    checked: Checked, slurm: Callable[..., None], line: str, job: dict[str, Any], words: str
) -> None:
    name = line.partition("=")[0]
    limits = " ".join(word for word in GPU_PARTITION.split() if word.partition("=")[0] != name)
    slurm(limits=f"{limits} {line}")
    engine = {"tensor_parallel": 8 * job.get("serve", {}).get("nodes", 1)}
    short = {stage: {"time_limit_minutes": 30} for stage in ("build", "serve", "companion")}
    stages = {stage: {**values, **job.get(stage, {})} for stage, values in short.items()}
    asked = {"cluster": {"account": "mine"}, "engine": engine, **stages}
    says(checked(needs=(LIMITS,), **asked), "partition-limits", words)
    # A QOS may lift the limits; and Slurm may not answer.
    lifted = {**asked, "cluster": {"account": "mine", "qos": "long"}}
    assert state(checked(needs=(LIMITS,), **lifted), "partition-limits") == "warn"


@pytest.mark.parametrize(("machine", "found"), [(os.uname().machine, "ok"), ("riscv64", "fail"), ("", None)])
def test_nodes_with_other_processors_than_the_login_node(
    checked: Checked, slurm: Callable[..., None], machine: str, found: str | None
) -> None:
    slurm(node=f"NodeName=n1 Arch={machine} CoresPerSocket=32 OS=Linux")
    row = checked(needs=ALL, cluster={"partition": "gpu"}).get("architecture")
    assert (row and row.state) == found
    if found == "fail":
        assert (
            row is not None and "processors are riscv64" in row.message and "set python" in (row.hint or "")
        )


@pytest.mark.parametrize(
    ("partition", "config", "serve", "found", "words"),
    [
        ("DefMemPerCPU=256", "DefMemPerNode = UNLIMITED", {}, "warn",
         "2.00 GiB on a node (4 ranks x 2 CPUs x DefMemPerCPU=256), but the weights there are 8.00 GiB"),
        ("DefMemPerNode=4096", "", {}, "warn", "gives it 4.00 GiB on a node (DefMemPerNode=4096)"),
        ("", "DefMemPerCPU            = 512", {}, "warn", "gives it 4.00 GiB on a node"),
        ("DefMemPerCPU=1024", "", {}, "ok", "enough memory for its weights"),
        ("DefMemPerNode=UNLIMITED", "DefMemPerNode = UNLIMITED", {}, "ok", "enough memory for its weights"),
        ("DefMemPerCPU=256", "", {"memory_gib_per_node": "all"}, "ok", "enough memory for its weights"),
    ],
)  # fmt: skip
def test_the_memory_of_a_server_that_asks_for_none(
    checked: Checked,
    slurm: Callable[..., None],
    model: Path,
    partition: str,
    config: str,
    serve: dict[str, Any],
    found: str,
    words: str,
) -> None:
    slurm(limits=f"{GPU_PARTITION} {partition}", config=config)
    index = json.loads((model / "model.safetensors.index.json").read_text())
    write_json(model / "model.safetensors.index.json", {**index, "metadata": {"total_size": 16 * 2**30}})
    engine, gpus = {"tensor_parallel": 8}, {"gpus_per_node": 4}
    row = checked(needs=(LIMITS,), cluster=gpus, engine=engine, serve=serve)["default-memory"]
    assert row.state == found and words in row.message


def test_other_users_on_the_nodes_of_a_server_without_a_key(
    checked: Checked, slurm: Callable[..., None]
) -> None:
    slurm(limits=GPU_PARTITION)
    openai: dict[str, Any] = {
        "engine": {"backend": "pytorch"},
        "model": {"path": "/models/a", "synthetic": None},
    }
    found = checked(needs=(LIMITS,), **openai)["neighbours"]
    assert found.state == "warn" and "reach it there at 127.0.0.1 without a key" in found.message
    assert "neighbours" not in checked(needs=(LIMITS,)), "Triton listens on Unix sockets"
    assert "neighbours" not in checked(needs=(LIMITS,), **openai, cluster={"exclusive": True})
    slurm(limits=f"{GPU_PARTITION} OverSubscribe=EXCLUSIVE")
    assert "neighbours" not in checked(needs=(LIMITS,), **openai)


def test_limits_that_are_kept_or_not_known(checked: Checked, slurm: Callable[..., None]) -> None:
    slurm(limits=GPU_PARTITION)
    assert state(checked(needs=(LIMITS,)), "partition-limits") == "ok"
    slurm(limits=GPU_PARTITION.replace("State=UP", "State=DOWN"))
    assert "is DOWN, so no job starts there" in checked(needs=(LIMITS,))["partition-limits"].message
    slurm(limits='"; echo "Unable to contact slurm controller" >&2; exit 1; "')
    assert state(checked(needs=(LIMITS,)), "partition-limits") == "unknown"


PHASES = {
    "engine": {"backend": "pytorch", "max_input_len": None},
    "model": {"path": "/models/llama", "synthetic": None},
    "serve": {"mode": "disaggregated", "disaggregated": {"context": {"servers": 4}}, "placement": "spread"},
}


def test_each_partition_is_judged_under_its_own_key(checked: Checked, slurm: Callable[..., None]) -> None:
    slurm(limits=GPU_PARTITION)

    def found(check: str, **cluster: Any) -> Any:
        return checked(needs=ALL, **PHASES, cluster={"partition": "gpu", **cluster})[check]

    assert "4 nodes with 8 GPUs" in found("partition", phases={"context": {"gpus_per_node": 4}}).message
    missing = found("partition", phases={"generation": {"partition": "big"}})
    assert "no partition 'big'; you can use cpu, gpu" in missing.message
    assert (missing.hint or "").startswith("set phases.generation.partition in the profile, or --set")
    small = found("partition", phases={"generation": {"partition": "cpu"}})
    assert "'cpu' has 0 GPUs" in small.message and "phases.generation.gpus_per_node to 0" in (
        small.hint or ""
    )
    limits = found("partition-limits", phases={"generation": {"partition": "elsewhere"}})
    assert "the phase context of stage serve requests 4 nodes" in limits.message
    alone = {"partition": "cpu,gpu", "companion_partition": "none"}
    says(checked(needs=ALL, cluster=alone), "partition", "no partition 'none'")
    other = checked(needs=ALL, cluster={"partition": "gpu", "phases": {"generation": {"partition": "big"}}})
    assert state(other, "partition") == "ok", "the job has no phases"


def test_a_sandbox_says_whether_its_gpus_are_real(
    checked: Checked, slurm: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm(sinfo="echo 'batch*|2|gpu:4|16|4000|infinite'")
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(Path, "is_file", lambda *_: True)
    sandbox = {"slurm_conf": "/run/trtllm-hpc/x/slurm.conf", "partition": "batch"}
    row = checked(needs=ALL, cluster={**sandbox, "gpus_per_node": 0})["partition"]
    assert row.message.endswith("has 2 nodes with 4 GPUs that are simulated: nothing can compute on them")
    row = checked(needs=ALL, cluster={**sandbox, "gpus_per_node": 8})["partition"]
    assert row.state == "fail" and "--set cluster.gpus_per_node=4" in (row.hint or "")


PYXIS = {"runtime": "pyxis", "image": "/images/24.12-trtllm.sqsh", "examples": "/examples"}


def test_pyxis(checked: Checked, slurm: Callable[..., None]) -> None:
    slurm()
    assert state(checked(needs=ALL, cluster={"container": PYXIS}), "container-program") == "ok"
    slurm(help_text="echo --chdir")
    says(
        checked(needs=ALL, cluster={"container": PYXIS}),
        "container-program",
        "has no option --container-image",
    )


@pytest.mark.parametrize(
    ("runtime", "help_text", "found", "words"),
    [
        ("singularity", "", "warn", "no singularity on this machine"),
        ("podman-hpc", "", "ok", "podman-hpc is on this machine"),
        ("container-engine", "    --environment=NAME", "ok", "has the option --environment"),
        ("container-engine", "    --environment-file=F", "fail", "has no option --environment"),
    ],
)
def test_the_program_of_the_container_runtime(
    checked: Checked,
    slurm: Callable[..., None],
    tmp_path: Path,
    runtime: str,
    help_text: str,
    found: str,
    words: str,
) -> None:
    slurm(help_text=f"printf '%s\\n' '{help_text}'")
    shutil.copy("/bin/true", tmp_path / "bin" / "podman-hpc")
    container = {"runtime": runtime, "image": "mine"}
    row = checked(needs=ALL, cluster={"container": container})["container-program"]
    assert row.state == found and words in row.message and (row.hint or found == "ok")


@pytest.mark.parametrize(
    ("plugstack", "scope", "found"),
    [
        ("required /usr/lib/spank_pyxis.so container_scope=job", "job", "ok"),
        ("include more.d/*.conf", "global", "ok"),
        ("required /usr/lib/spank_pyxis.so", "job", "fail"),
        ("required /usr/lib/spank_pyxis.so container_scope=job", "global", "warn"),
        ("include /nowhere/*", "job", "unknown"),
    ],
)
def test_how_long_pyxis_keeps_containers(
    checked: Checked,
    slurm: Callable[..., None],
    tmp_path: Path,
    plugstack: str,
    scope: str,
    found: str | None,
) -> None:
    slurm()
    (tmp_path / "plugstack.conf").write_text(f"{plugstack}\n")
    (tmp_path / "more.d").mkdir()
    (tmp_path / "more.d" / "pyxis.conf").write_text("required spank_pyxis.so runtime_path=/run/pyxis\n")
    cluster = {"container": {**PYXIS, "scope": scope}, "slurm_conf": str(tmp_path / "slurm.conf")}
    row = checked(cluster=cluster).get("pyxis-scope")
    assert (row and row.state) == found


# Places ------------------------------------------------------------------------------------------


def test_folders_that_every_machine_has_for_itself(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = {"node_local_folders": [str(tmp_path)]}
    words = (f"cannot see {tmp_path}/runs", f"every machine has its own {tmp_path}")
    says(checked(cluster=local), "runs-folder-shared", *words)
    assert "runs-folder-shared" not in checked(cluster={**local, "scheduler": "local"})
    assert state(checked(), "runs-folder-shared") == "ok"
    monkeypatch.setattr(file_system_checks, "_file_system", lambda _: "nfs4")
    assert state(checked(cluster=local), "runs-folder-shared") == "ok"


def test_folders_that_cannot_be_made(checked: Checked, tmp_path: Path) -> None:
    rows = checked()
    assert state(rows, "runs-folder") == state(rows, "engines-folder") == "ok"
    (tmp_path / "runs").write_text("a file")
    says(checked(), "runs-folder", "is not a folder")


def test_images(checked: Checked, tmp_path: Path) -> None:
    image = tmp_path / "24.12-trtllm.sqsh"
    container = {**PYXIS, "image": str(image)}
    says(checked(cluster={"container": container}), "container-image", f"there is no image {image}")
    image.write_bytes(b"hsqs")
    assert state(checked(cluster={"container": container}), "container-image") == "ok"
    registry = {**PYXIS, "image": "nvcr.io#nvidia/tritonserver:24.12-trtllm-python-py3"}
    outcome = checked(cluster={"container": registry})["container-image"]
    assert outcome.state == "warn" and "from a registry when the job starts" in outcome.message
    relative = {**PYXIS, "image": "24.12-trtllm.sqsh"}
    says(checked(cluster={"container": relative}), "container-image", "has a relative path")


@pytest.mark.parametrize("absolute", [False, True])
def test_links_that_lead_out_of_what_is_mounted(
    checked: Checked, model: Path, tmp_path: Path, absolute: bool
) -> None:
    """The Hub's cache keeps a snapshot as links to ``../../blobs``."""
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "1f2e", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    model.rename(blobs)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(file if absolute else Path("../../blobs", file.name))
    section = {"path": str(snapshot), "synthetic": None, "family": "llama"}
    words = f"is a link to {blobs}"
    says(checked(cluster={"container": PYXIS}, model=section), "mounts", words)
    above = {**PYXIS, "mounts": [f"{snapshot.parents[1]}:{snapshot.parents[1]}:ro"]}
    assert state(checked(cluster={"container": above}, model=section), "mounts") == "ok"
    elsewhere = {**PYXIS, "mounts": [f"{snapshot.parents[1]}:/hub:ro"]}
    inside = {**section, "path": "/hub/snapshots/1f2e"}
    found = state(checked(cluster={"container": elsewhere}, model=inside), "mounts")
    assert found == ("fail" if absolute else "ok")


def test_a_mounted_model_is_read_where_it_really_is(checked: Checked, model: Path) -> None:
    mounted = {**PYXIS, "mounts": [f"{model.parent}:/models:ro"]}
    rows = checked(
        cluster={"container": mounted},
        model={"path": "/models/llama", "synthetic": None, "family": "llama"},
    )
    assert [state(rows, name) for name in ("mounts", "model-files", "tokenizer", "memory")] == ["ok"] * 4


def test_mpi4py_of_this_python(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state(checked(), "mpi4py") == "ok"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    says(checked(), "mpi4py", "no mpi4py")
    assert state(checked(cluster={"python": "/opt/python3"}), "mpi4py") == "unknown"


def test_the_server(checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = {"scheduler": "local"}
    says(checked(cluster={**local, "triton": {"server": "no-such-server"}}), "tritonserver", "no-such-server")
    assert state(checked(cluster={"triton": {"server": "no-such-server"}}), "tritonserver") == "unknown"
    assert state(checked(cluster={**local, "triton": {"server": "/bin/sh"}}), "tritonserver") == "ok"
    assert state(checked(cluster={**local, "triton": {"server": "pytriton"}}), "tritonserver") == "ok"
    versions = {"numpy": "2.2.6", "nvidia-pytriton": "0.7.0"}
    monkeypatch.setattr("trtllm_hpc.runtime.checks.installed_versions", lambda names: versions)
    says(checked(cluster={**local, "triton": {"server": "pytriton"}}), "tritonserver", "has NumPy 2.2.6")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    says(checked(cluster={**local, "triton": {"server": "pytriton"}}), "tritonserver", "no pytriton")


def test_the_server_of_the_llm_api_is_not_triton(checked: Checked, fake_programs: Path) -> None:
    engine = {"backend": "pytorch", "tensorrt_llm_version": "1.2.1"}
    row = checked(engine=engine)["tritonserver"]
    assert row.state == "unknown" and "no trtllm-serve and no trtllm-llmapi-launch" in row.message
    assert "container.image" in str(row.hint)
    installs = {"prologue": ["pip install /shared/tensorrt_llm.whl"]}
    assert "tritonserver" not in checked(engine=engine, serve=installs), "the job may install it"
    for name in ("trtllm-serve", "trtllm-llmapi-launch"):
        (fake_programs / name).write_text("#!/bin/sh\n")
        (fake_programs / name).chmod(0o755)
    assert state(checked(engine=engine), "tritonserver") == "ok"
    assert "tritonserver" not in checked(engine=engine, cluster={"container": PYXIS})


def test_shared_memory_is_measured_where_the_job_runs_here(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "shared-memory" not in checked()
    local = {"scheduler": "local"}
    assert state(checked(cluster=local), "shared-memory") == "ok"
    monkeypatch.setattr("trtllm_hpc.validation.file_system_checks.shm_free_gib", lambda: 0.06)
    says(checked(cluster=local), "shared-memory", "0.06 GiB free")
