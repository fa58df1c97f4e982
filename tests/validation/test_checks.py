"""Checks of Slurm, folders, containers and this machine: once where all is well, once where it is not."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.validation.conftest import Checked, says, state
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.runtime import served_model
from trtllm_hpc.validation import file_system_checks
from trtllm_hpc.validation.checks import CHECKS
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
    assert {"world-size", "model-files", "tokenizer", "prompt-length", "memory"} <= set(rows)
    assert state(rows, "memory") == "ok" and "requests of 2048" in rows["memory"].message


def test_ids_are_unique_and_short() -> None:
    ids = [check.id for check in CHECKS]
    assert len(ids) == len(set(ids))
    assert all(each.replace("-", "").isalnum() and len(each) <= 32 for each in ids)


# Slurm -------------------------------------------------------------------------------------------


def test_slurm_that_offers_everything(checked: Checked, slurm: Callable[..., None]) -> None:
    slurm()
    rows = checked(needs=ALL, cluster={"partition": "gpu"})
    assert [state(rows, name) for name in ("slurm-commands", "slurm-controller", "partition")] == ["ok"] * 3
    assert "4 nodes of 8 GPUs" in rows["partition"].message


def test_the_type_of_the_gpus_is_one_of_the_partitions(checked: Checked, slurm: Callable[..., None]) -> None:
    mixed = "'gpu|4|gpu:a100:8|128|1|infinite' 'gpu|2|gpu:v100:4|128|1|infinite'"
    slurm(sinfo=f"printf '%s\\n' {mixed}")
    gpus = {"partition": "gpu", "gpus_per_node": 4}
    row = checked(needs=ALL, cluster={**gpus, "gpu_type": "v100"})["partition"]
    assert row.state == "ok" and "2 nodes of 4 GPUs" in row.message
    wrong = checked(needs=ALL, cluster={**gpus, "gpu_type": "h100"})
    says(wrong, "partition", "no GPUs of type 'h100'; it has a100, v100")
    too_many = checked(needs=ALL, cluster={**gpus, "gpus_per_node": 8, "gpu_type": "v100"})
    says(too_many, "partition", "has 4 GPUs, but the profile says 8")


def test_a_machine_without_slurm(checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = checked(needs=ALL, cluster={"partition": "gpu"})
    says(rows, "slurm-commands", "no sbatch, srun, squeue, scontrol, scancel on this machine")
    assert state(rows, "mpi-plugin") == state(rows, "partition") == "unknown"


@pytest.mark.parametrize(
    ("slurm_conf", "hint"),
    [(None, "scontrol ping"), ("/run/trtllm-hpc/x/slurm.conf", "trtllm-hpc sandbox up")],
)
def test_a_controller_that_does_not_answer_fails_by_itself(
    checked: Checked,
    slurm: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    slurm_conf: str | None,
    hint: str,
) -> None:
    slurm(sinfo="echo 'Unable to contact slurm controller'; exit 1")
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(Path, "is_file", lambda *_: True)
    rows = checked(needs=ALL, cluster={"slurm_conf": slurm_conf, "partition": "gpu"})
    says(rows, "slurm-controller", "Unable to contact slurm controller")
    assert hint in (rows["slurm-controller"].hint or "")
    assert state(rows, "partition") == "unknown"


@pytest.mark.parametrize(
    ("offers", "mpi", "found", "words"),
    [
        ("echo pmi2", "pmix", "warn", "no MPI plugin 'pmix'; it offers pmi2. Open MPI's mpirun joins"),
        ("echo none", "pmix", "warn", "it offers none"),
        ("echo none", "pmi2", "fail", "no MPI plugin 'pmi2'"),
        ("echo none", "mpirun", "ok", "mpirun joins the ranks"),
        ("echo pmix_v4; echo pmi2", "pmix", "fail", "it offers pmix_v4, pmi2"),
        ("echo pmi2", "pmi2", "warn", "by PMIx, but the profile says pmi2"),
        ("echo pmix", "pmix", "ok", "offers the MPI plugin pmix"),
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
    says(rows, "slurm-conf", "/nowhere/slurm.conf, which cannot be read")
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
            "asks for 4 nodes, but the partition 'gpu' gives a job at most 3",
        ),
        ("MaxNodes=1", {"serve": {"nodes": 2}}, "gives a job at most 1 node"),
        ("MaxTime=00:30:00", {"serve": {"time_limit_minutes": 300}}, "asks for 300 minutes, but"),
        ("MaxTime=00:30:00", {"build": {"time_limit_minutes": 31}}, "stage build asks for 31 minutes"),
        ("AllowAccounts=a,b", {}, "does not take the account 'mine'"),
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


def test_other_users_on_the_nodes_of_a_server_without_a_key(
    checked: Checked, slurm: Callable[..., None]
) -> None:
    slurm(limits=GPU_PARTITION)
    openai: dict[str, Any] = {
        "engine": {"backend": "pytorch"},
        "model": {"path": "/models/a", "synthetic": None},
    }
    found = checked(needs=(LIMITS,), **openai)["neighbours"]
    assert found.state == "warn" and "reach it at 127.0.0.1 there without a key" in found.message
    assert "neighbours" not in checked(needs=(LIMITS,)), "Triton listens on Unix sockets"
    assert "neighbours" not in checked(needs=(LIMITS,), **openai, cluster={"exclusive": True})
    slurm(limits=f"{GPU_PARTITION} OverSubscribe=EXCLUSIVE")
    assert "neighbours" not in checked(needs=(LIMITS,), **openai)


def test_limits_that_are_kept_or_not_known(checked: Checked, slurm: Callable[..., None]) -> None:
    slurm(limits=GPU_PARTITION)
    assert state(checked(needs=(LIMITS,)), "partition-limits") == "ok"
    slurm(limits=GPU_PARTITION.replace("State=UP", "State=DOWN"))
    assert "is DOWN: nothing starts there" in checked(needs=(LIMITS,))["partition-limits"].message
    slurm(limits='"; echo "Unable to contact slurm controller" >&2; exit 1; "')
    assert state(checked(needs=(LIMITS,)), "partition-limits") == "unknown"


def test_a_partition_that_is_not_there_or_too_small(checked: Checked, slurm: Callable[..., None]) -> None:
    slurm()
    says(checked(needs=ALL, cluster={"partition": "big"}), "partition", "no partition 'big'", "cpu, gpu")
    says(
        checked(needs=ALL, cluster={"partition": "cpu"}),
        "partition",
        "has 0 GPUs, but the profile says 8",
    )


PHASES = {
    "engine": {"backend": "pytorch", "max_input_len": None},
    "model": {"path": "/models/llama", "synthetic": None},
    "serve": {"mode": "disaggregated", "disaggregated": {"context": {"servers": 4}}, "placement": "spread"},
}


def test_the_partitions_of_both_phases_are_judged(checked: Checked, slurm: Callable[..., None]) -> None:
    slurm(limits=GPU_PARTITION)

    def found(**phases: Any) -> dict[str, Any]:
        return checked(needs=ALL, **PHASES, cluster={"partition": "gpu", "phases": phases})

    assert "4 nodes of 8 GPUs" in found(context={"gpus_per_node": 4})["partition"].message
    missing = found(generation={"partition": "big"})["partition"]
    assert (
        "no partition 'big'" in missing.message
        and missing.hint
        == "set phases.generation.partition in the profile, or --set cluster.phases.generation.partition=NAME"
    )
    small = found(generation={"partition": "cpu"})["partition"]
    assert "'cpu' has 0 GPUs" in small.message and "set phases.generation.gpus_per_node to 0" in (
        small.hint or ""
    )
    alone = {"partition": "cpu,gpu", "companion_partition": "none"}
    says(checked(needs=ALL, cluster=alone), "partition", "no partition 'none'")
    assert state(checked(needs=ALL, cluster={"partition": "cpu,gpu"}), "partition") == "ok"
    there = {"partition": "gpu"}
    apart = checked(
        needs=ALL, **PHASES, cluster={"partition": "cpu", "phases": {"context": there, "generation": there}}
    )
    assert state(apart, "partition") == "ok", "the server does not use the profile's own partition"
    other = checked(needs=ALL, cluster={"partition": "gpu", "phases": {"generation": {"partition": "big"}}})
    assert state(other, "partition") == "ok", "the job has no phases"
    limits = found(generation={"partition": "elsewhere"})["partition-limits"]
    assert "the phase context of stage serve asks for 4 nodes" in limits.message
    assert (
        limits.hint
        == "lower serve.disaggregated.context.servers, or set phases.context.partition in the profile"
    )


@pytest.mark.parametrize(
    ("gres", "words"),
    [
        ("gpu:4", "has 2 nodes of 4 GPUs, claimed: there is no GPU behind them"),
        ("gpu:real:1", "has 2 nodes of 1 GPU, the machine's own"),
        ("(null)", "has 2 nodes of 0 GPUs"),
    ],
)
def test_a_sandbox_says_whether_its_gpus_are_real(
    checked: Checked, slurm: Callable[..., None], monkeypatch: pytest.MonkeyPatch, gres: str, words: str
) -> None:
    slurm(sinfo=f"echo 'batch*|2|{gres}|16|4000|infinite'")
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(Path, "is_file", lambda *_: True)
    sandbox = {"slurm_conf": "/run/trtllm-hpc/x/slurm.conf", "partition": "batch"}
    row = checked(needs=ALL, cluster={**sandbox, "gpus_per_node": 0})["partition"]
    assert row.state == "ok" and row.message.endswith(words)
    row = checked(needs=ALL, cluster={**sandbox, "gpus_per_node": 8})["partition"]
    assert row.state == "fail" and "--set cluster.gpus_per_node=" in (row.hint or "")


PYXIS = {"runtime": "pyxis", "image": "/images/24.12-trtllm.sqsh", "examples": "/examples"}


def test_pyxis(checked: Checked, slurm: Callable[..., None]) -> None:
    slurm()
    assert state(checked(needs=ALL, cluster={"container": PYXIS}), "pyxis") == "ok"
    slurm(help_text="echo --chdir")
    says(checked(needs=ALL, cluster={"container": PYXIS}), "pyxis", "knows no --container-image")


@pytest.mark.parametrize(
    ("plugstack", "scope", "found"),
    [
        ("required /usr/lib/spank_pyxis.so container_scope=job", "job", "ok"),
        ("include more.d/*.conf", "global", "ok"),
        ("required /usr/lib/spank_pyxis.so", "job", "fail"),
        ("required /usr/lib/spank_pyxis.so container_scope=job", "global", "warn"),
        ("optional /usr/lib/other.so\n# required /usr/lib/spank_pyxis.so", "job", "unknown"),
        ("include /nowhere/*", "job", "unknown"),
        ("required /usr/lib/spank_pyxis.so", "step", None),
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


def test_apptainer(
    checked: Checked, slurm: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    container = {**PYXIS, "runtime": "apptainer"}
    assert state(checked(cluster={"container": container}), "apptainer") == "unknown"
    (tmp_path / "bin" / "apptainer").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "apptainer").chmod(0o755)
    assert state(checked(cluster={"container": container}), "apptainer") == "ok"


# Places ------------------------------------------------------------------------------------------


def test_folders_that_every_machine_has_for_itself(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = {"node_local_folders": [str(tmp_path)]}
    words = (f"cannot see {tmp_path}/runs", f"every machine has a {tmp_path}")
    says(checked(cluster=local), "runs-folder-shared", *words)
    assert "runs-folder-shared" not in checked(cluster={**local, "scheduler": "local"})
    assert state(checked(), "runs-folder-shared") == "ok"
    monkeypatch.setattr(file_system_checks, "_file_system", lambda _: "nfs4")
    assert state(checked(cluster=local), "runs-folder-shared") == "ok"


def test_the_nodes_of_a_sandbox_see_this_machine_s_tmp() -> None:
    sandbox = ClusterProfile.model_validate({"name": "a", "slurm_conf": "/run/trtllm-hpc/x/etc/slurm.conf"})
    assert sandbox.node_local_folders == ["/dev/shm"]
    assert "/tmp" in ClusterProfile.model_validate({"name": "a"}).node_local_folders


def test_the_python_that_submits_must_be_shared_too(checked: Checked) -> None:
    folder = str(Path(sys.executable).resolve().parent)
    says(checked(cluster={"node_local_folders": [folder]}), "runs-folder-shared", "cannot see")


def test_the_type_of_a_file_system_is_that_of_the_innermost_mount() -> None:
    assert file_system_checks._file_system("/proc/self/status") == "proc"
    assert file_system_checks._file_system("/process") not in ("", "proc")


def test_folders_that_cannot_be_made(checked: Checked, tmp_path: Path) -> None:
    rows = checked()
    assert state(rows, "runs-folder") == state(rows, "engines-folder") == "ok"
    (tmp_path / "runs").write_text("a file")
    says(checked(), "runs-folder", "is no folder")


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_folders_that_are_closed(checked: Checked, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    says(checked(), "runs-folder", "cannot be written to")


def test_images(checked: Checked, tmp_path: Path) -> None:
    image = tmp_path / "24.12-trtllm.sqsh"
    container = {**PYXIS, "image": str(image)}
    says(checked(cluster={"container": container}), "container-image", f"there is no image {image}")
    image.write_bytes(b"hsqs")
    assert state(checked(cluster={"container": container}), "container-image") == "ok"
    registry = {**PYXIS, "image": "nvcr.io#nvidia/tritonserver:24.12-trtllm-python-py3"}
    outcome = checked(cluster={"container": registry})["container-image"]
    assert outcome.state == "warn" and "pulled from a registry by every node" in outcome.message
    relative = {**PYXIS, "image": "24.12-trtllm.sqsh"}
    says(checked(cluster={"container": relative}), "container-image", "no absolute path")


def test_what_the_container_cannot_be_shown(checked: Checked, model: Path) -> None:
    assert state(checked(cluster={"container": PYXIS}), "mounts") == "ok"
    split = {"path": "/models/a,b", "synthetic": None, "family": "llama"}
    says(checked(cluster={"container": PYXIS}, model=split), "mounts", "model.path /models/a,b cannot be")
    above = {**PYXIS, "mounts": ["/models:/models:ro"]}
    assert state(checked(cluster={"container": above}, model=split), "mounts") == "ok"


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


def test_a_mount_whose_source_is_not_there(checked: Checked, model: Path) -> None:
    missing = {**PYXIS, "mounts": [f"{model}/nowhere:/data:ro"]}
    outcome = checked(cluster={"container": missing})["mount-sources"]
    assert outcome.state == "warn" and "nowhere does not exist" in outcome.message
    there = {**PYXIS, "mounts": [f"{model}:/data:ro"]}
    assert state(checked(cluster={"container": there}), "mount-sources") == "ok"


@pytest.mark.parametrize(
    ("release", "container", "outcome"),
    [
        ("0.15.0", {}, "fail"),
        ("0.15.0", {"mounts": ["/home/me/backend:/tensorrtllm_backend:ro"]}, "ok"),
        ("0.15.0", {"examples": "/mine", "all_models": "/mine too"}, "ok"),
        ("0.17.0", {}, "ok"),
    ],
)
def test_upstream_s_files_that_no_image_carries(
    checked: Checked, release: str, container: dict[str, Any], outcome: str
) -> None:
    given = {**PYXIS, "image": "/images/mine.sqsh", "tensorrt_llm_version": release, **container}
    model = {"path": "/models/llama", "synthetic": None, "family": "llama"}
    engine = {"backend": "tensorrtllm", "tensorrt_llm_version": release}
    rows = checked(cluster={"container": given, "gpus_per_node": 1}, model=model, engine=engine)
    assert state(rows, "upstream-files") == outcome


def test_whether_an_orchestrator_can_spawn_only_a_node_can_tell(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = {
        "serve": {"mode": "orchestrator"},
        "repository": {"models": [{"name": "a", "gpu_device_ids": [0]}]},
    }
    assert "spawn" not in checked()
    assert "under srun, then under mpirun" in checked(cluster={"container": PYXIS}, **copies)["spawn"].message
    monkeypatch.setenv("PATH", str(tmp_path))
    bare = checked(**copies)["spawn"]
    assert bare.state == "warn" and "there is no mpirun on this machine" in bare.message and bare.hint


def test_a_mounted_model_is_read_where_it_really_is(checked: Checked, model: Path) -> None:
    mounted = {**PYXIS, "mounts": [f"{model.parent}:/models:ro"]}
    rows = checked(
        cluster={"container": mounted},
        model={"path": "/models/llama", "synthetic": None, "family": "llama"},
    )
    assert [state(rows, name) for name in ("mounts", "model-files", "tokenizer", "memory")] == ["ok"] * 4


def test_the_nodes_python(checked: Checked, tmp_path: Path) -> None:
    assert state(checked(), "python") == "ok"
    assert state(checked(cluster={"python": "/nowhere/python3"}), "python") == "unknown"
    (tmp_path / "python3").write_text("")
    says(checked(cluster={"python": str(tmp_path / "python3")}), "python", "cannot be run")


def test_mpi4py_of_this_python(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state(checked(), "mpi4py") == "ok"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    says(checked(), "mpi4py", "no mpi4py")
    assert state(checked(cluster={"python": "/opt/python3"}), "mpi4py") == "unknown"


def test_upstream_s_programs_without_a_container(checked: Checked, tmp_path: Path) -> None:
    """NVIDIA's images have them in a folder that hardly any node has."""
    local = {"scheduler": "local", "container": {}}
    says(checked(cluster=local), "examples", "/tensorrtllm_backend/tensorrt_llm/examples/llama/convert_che")
    assert state(checked(cluster={"container": {}}), "examples") == "warn"
    program = tmp_path / "examples" / "llama" / "convert_checkpoint.py"
    program.parent.mkdir(parents=True)
    program.touch()
    there = {"container": {"examples": str(program.parents[1])}}
    assert state(checked(cluster={**local, **there}), "examples") == "ok"
    finished = {"directory": "/engines/x"}
    assert "examples" not in checked(cluster=local, engine=finished)
    assert "examples" not in checked(cluster={"container": PYXIS})


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
    for name in ("trtllm-serve", "trtllm-llmapi-launch"):
        (fake_programs / name).write_text("#!/bin/sh\n")
        (fake_programs / name).chmod(0o755)
    assert state(checked(engine=engine), "tritonserver") == "ok"
    assert "tritonserver" not in checked(engine=engine, cluster={"container": PYXIS})


def test_memory_of_nodes_is_for_the_job_to_tell(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    two_nodes = checked(engine={"tensor_parallel": 8, "pipeline_parallel": 2})
    assert state(two_nodes, "shared-memory") == state(two_nodes, "locked-memory") == "unknown"
    assert state(checked(), "locked-memory") == "ok"
    local = {"scheduler": "local"}
    assert state(checked(cluster=local), "shared-memory") == "ok"
    monkeypatch.setattr("trtllm_hpc.validation.file_system_checks.shm_free_gib", lambda: 0.06)
    says(checked(cluster=local), "shared-memory", "0.06 GiB free")


PYTORCH = {"engine": {"backend": "pytorch", "tensorrt_llm_version": "1.2.1"}}


@pytest.mark.parametrize(
    ("tokenizer", "staged", "found", "words"),
    [
        (True, None, "ok", "the job makes gpt-oss's vocabulary of the checkpoint's tokenizer.json"),
        (False, None, "warn", "first chat needs the internet"),
        (True, "missing", "fail", "is not the vocabulary"),
        (True, "another", "fail", "is not the vocabulary"),
        (False, "right", "ok", "gpt-oss's vocabulary is"),
    ],
)
def test_the_vocabulary_of_gpt_oss_is_staged(
    checked: Checked,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokenizer: bool,
    staged: str | None,
    found: str,
    words: str,
) -> None:
    model = tmp_path / "gpt-oss"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "gpt_oss"}')
    if tokenizer:
        (model / "tokenizer.json").write_text("{}")
    for name in ("another", "right"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "o200k_base.tiktoken").write_text(name)
    digest = hashlib.sha256(b"right").hexdigest()
    monkeypatch.setattr(served_model, "VOCABULARY_SHA256", digest)
    environment = {} if staged is None else {"TIKTOKEN_ENCODINGS_BASE": str(tmp_path / staged)}
    row = checked(**PYTORCH, model={"path": str(model)}, cluster={"environment": environment})["vocabulary"]
    assert (row.state, words in row.message) == (found, True), row.message
    if found != "ok":
        assert "encodings/o200k_base.tiktoken" in str(row.hint) and "TIKTOKEN_ENCODINGS_BASE" in str(row.hint)


def test_the_vocabulary_of_other_models_is_no_question(checked: Checked, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "vocabulary" not in checked(**PYTORCH, model={"path": str(tmp_path)})
