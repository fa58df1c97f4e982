"""Every check of doctor: once where all is well, once where it is not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tensorrt_llm.memory_models import LLAMA_3_8B, LLAMA_3_70B
from tests.validation.conftest import Checked
from tests.validation.engines import new_engine
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.paths import write_json
from trtllm_hpc.validation import file_system_checks
from trtllm_hpc.validation.checks import CHECKS, rule_rows, run_checks
from trtllm_hpc.validation.context import CONTROLLER, LIMITS, SRUN, Context

ALL = ("", SRUN, CONTROLLER, LIMITS)


def state(rows: dict[str, Diagnostic], name: str) -> str:
    return rows[name].state


def says(rows: dict[str, Diagnostic], name: str, *words: str) -> None:
    """That it fails, with these words, and says what to do."""
    outcome = rows[name]
    assert outcome.state == "fail", outcome
    for word in words:
        assert word in outcome.message
    assert outcome.hint
    assert not outcome.message.endswith(".") and "\n" not in outcome.message


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
    ids = [check.id for check in CHECKS] + [row.code for row in rule_rows()]
    assert len(ids) == len(set(ids))
    assert all(name.replace("-", "").isalnum() and len(name) <= 32 for name in ids)


def test_every_rule_has_a_sentence_for_its_row() -> None:
    for row in rule_rows():
        sentence = row.message
        assert row.state == "ok" and 10 < len(sentence) < 110 and "``" not in sentence, row


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


# The job -----------------------------------------------------------------------------------------


def test_ranks_and_nodes_are_told(checked: Checked) -> None:
    rows = checked(engine={"tensor_parallel": 8, "pipeline_parallel": 2})
    assert rows["world-size"].message == "16 ranks (tp 8 x pp 2) on 2 nodes of 8"


@pytest.mark.parametrize(
    ("config", "engine", "found", "words"),
    [
        ({}, {"tensor_parallel": 8}, "ok", "32 heads and 32 layers divide by the ranks"),
        (
            {"num_attention_heads": 12},
            {"tensor_parallel": 8},
            "fail",
            "12 attention heads cannot be split over 8",
        ),
        ({"num_key_value_heads": 3}, {"tensor_parallel": 2}, "fail", "3 KV heads cannot be split over 2"),
        ({"num_key_value_heads": 2}, {"tensor_parallel": 8}, "ok", ""),
        ({"num_hidden_layers": 31}, {"pipeline_parallel": 2}, "warn", "31 layers do not divide"),
        (
            {"model_type": "mixtral", "num_local_experts": 6},
            {"tensor_parallel": 4, "moe_expert_parallel": 4, "moe_tensor_parallel": 1},
            "fail",
            "6 experts do not divide by engine.moe_expert_parallel 4",
        ),
        ({"model_type": "mamba"}, {"tensor_parallel": 2}, "unknown", "no sum for models of type 'mamba'"),
    ],
)
def test_what_cannot_be_split(
    checked: Checked, model: Path, config: dict[str, Any], engine: dict[str, Any], found: str, words: str
) -> None:
    write_json(model / "config.json", {**LLAMA_3_8B, **config})
    outcome = checked(engine=engine)["model-divides"]
    assert outcome.state == found and words in outcome.message


def test_a_model_that_is_not_whole(checked: Checked, model: Path) -> None:
    shard = model / "model-00002-of-00002.safetensors"
    shard.write_text("version https://git-lfs.github.com/spec/v1\n")
    says(checked(), "model-files", "a pointer of Git LFS")
    shard.write_bytes(b"{}")
    says(checked(), "model-files", f"{shard} has 2 bytes only: no weights")
    shard.unlink()
    says(checked(), "model-files", f"{shard.name} is missing", "its index names it")
    (model / "model.safetensors.index.json").unlink()
    assert state(checked(), "model-files") == "ok"  # one file without an index is a whole model
    (model / "model-00001-of-00002.safetensors").unlink()
    says(checked(), "model-files", "there are no weights")
    (model / "config.json").write_text("{")
    says(checked(), "model-files", "no config.json")


def test_a_model_that_only_the_nodes_see(checked: Checked) -> None:
    rows = checked(model={"path": "/nowhere/llama", "synthetic": None, "family": "llama"})
    assert {state(rows, name) for name in ("model-files", "tokenizer", "memory")} == {"unknown"}


@pytest.mark.parametrize(
    ("key", "check"),
    [
        ("engine.directory", "engine-folder"),
        ("repository.tokenizer", "tokenizer"),
    ],
)
def test_a_path_that_the_system_refuses_fails_by_its_key(checked: Checked, key: str, check: str) -> None:
    # Too long a name is refused to everybody; a closed folder would not be to root, who may run this.
    path = f"/{'x' * 300}"
    section, _, name = key.partition(".")
    rows = checked(**{section: {name: path}})
    assert [row.code for row in rows.values() if path in row.message and row.state == "fail"] == [check]
    outcome = rows[check]
    assert outcome.state == "fail" and outcome.message.startswith(f"{key}: {path}")
    assert outcome.hint is not None and f"or set {key} to another path" in outcome.hint


def test_a_tokenizer_is_needed(checked: Checked, model: Path, engine: Path) -> None:
    (model / "tokenizer.json").unlink()
    says(checked(), "tokenizer", "there is no tokenizer in", "may not reach the Hub")
    (model / "tokenizer.model").write_bytes(b"words")
    assert state(checked(), "tokenizer") == "ok"
    reference = checked(engine={"backend": "reference", "tensorrt_llm_version": None}, model={})
    assert "tokenizer" not in reference


def test_limits_of_the_benchmark_that_cannot_be_read(checked: Checked) -> None:
    wrong = {"benchmark": {"slo": "ttft.p98<500ms"}}
    says(checked(companion=wrong), "slo", "no statistic is called")
    assert state(checked(companion={"benchmark": {"slo": "latency<500ms"}}), "slo") == "ok"
    assert "slo" not in checked()


def test_limits_that_only_a_streamed_answer_has(checked: Checked) -> None:
    asks: dict[str, Any] = {"slo": "ttft<500ms,itl.p99<50ms,latency<1s"}
    found = checked(companion={"benchmark": asks})
    says(found, "slo", "ttft, itl", "repository.decoupled is false")
    assert "repository.decoupled to true" in (found["slo"].hint or "")
    streams = {"decoupled": True}
    assert state(checked(companion={"benchmark": asks}, repository=streams), "slo") == "ok"
    asks["streaming"] = False
    found = checked(companion={"benchmark": asks}, repository=streams)
    says(found, "slo", "companion.benchmark.streaming is false")
    assert "companion.benchmark.streaming to true" in (found["slo"].hint or "")
    assert state(checked(companion={"benchmark": {**asks, "slo": "latency<1s"}}), "slo") == "ok"
    del asks["streaming"]
    openai = {"backend": "pytorch", "tensorrt_llm_version": "1.2.1"}
    assert state(checked(companion={"benchmark": asks}, engine=openai), "slo") == "ok"


def test_the_adapters_of_a_workload(checked: Checked, tmp_path: Path) -> None:
    folder, engine = tmp_path / "adapter", {"max_lora_rank": 8}
    asks = {"benchmark": {"workload": {"lora": [{"directory": str(folder)}]}}}
    assert "lora-adapters" not in checked()
    outcome = checked(engine=engine, companion=asks)["lora-adapters"]
    assert outcome.state == "warn" and "is not on this machine" in outcome.message and outcome.hint
    folder.mkdir()
    says(checked(engine=engine, companion=asks), "lora-adapters", "it has no model.lora_weights.npy")
    np.save(folder / "model.lora_weights.npy", np.zeros((1, 1, 4), np.float16))
    np.save(folder / "model.lora_config.npy", np.array([[[1, 0, 8]]], np.int32))
    assert state(checked(engine=engine, companion=asks), "lora-adapters") == "ok"
    found = checked(engine={"max_lora_rank": 4}, companion=asks)
    says(found, "lora-adapters", "an adapter has rank 8, and the engine takes ranks up to 4")


def test_the_file_of_a_workload(checked: Checked, tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    asks = {"benchmark": {"workload": {"kind": "dataset", "path": str(file)}}}
    outcome = checked(companion=asks)["workload-file"]
    assert outcome.state == "warn" and "is not on this machine" in outcome.message and outcome.hint
    file.write_text('[{"prompt": "why?"}]')
    assert state(checked(companion=asks), "workload-file") == "ok"
    assert "workload-file" not in checked()


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("dataset", '{"prompt": "why?"}\n{"prompt": 3}\n', ":2: prompt must be text"),
        ("dataset", "[]", ": has no entries"),
        ("dataset", '{"prompt": ""}', ": all prompts are empty"),
        (
            "histogram",
            "input: [[1, 2, 1]]\noutput:\n- [9, 3, 1]\n",
            ":3: a bin's lengths must be",
        ),
        ("histogram", "input: [", "file:1: "),
        ("trace", '{"timestamp": 1, "prompt": "a"}\n{"prompt": "b"}\n', ":2: has no time"),
        (
            "trace",
            '{"timestamp": 1, "prompt": "a"}\n{"timestamp": 2, "prompt": ""}\n',
            ":2: the prompt is empty",
        ),
        ("trace", '{"timestamp": 1, "input_length": 0}\n', ":1: input_length must be"),
        ("trace", '{"timestamp": 1, "input_length": 9, "hash_ids": [1.5]}\n', ":1: hash_ids must be"),
        ("trace", '{"timestamp": 1, "input_length": 9, "output_length": "x"}\n', ":1: output_length must"),
    ],
)
def test_a_workload_that_cannot_be_read_is_told_before_there_is_a_server(
    checked: Checked, tmp_path: Path, kind: str, text: str, words: str
) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    asks = {"benchmark": {"workload": {"kind": kind, "path": str(file)}}}
    outcome = checked(companion=asks)["workload-file"]
    assert (outcome.state, outcome.message.startswith(str(file))) == ("fail", True)
    assert words in outcome.message and outcome.hint


def test_a_prompt_that_is_longer_than_any_prompt_may_be(checked: Checked, engine: Path) -> None:
    asks = {"request": {"prompt": "word " * 1025}}
    says(checked(companion=asks, engine={"max_input_len": 1024}), "prompt-length", "has 1025 words")
    assert state(checked(companion=asks, engine={"max_input_len": 1025}), "prompt-length") == "ok"
    assert state(checked(companion=asks), "prompt-length") == "unknown"
    finished = {"directory": str(engine), "tensor_parallel": 4}
    says(checked(companion=asks, engine=finished), "prompt-length", "1024 tokens at most")


def test_prompts_longer_than_a_step(checked: Checked) -> None:
    engine = {"max_input_len": 2000, "max_num_tokens": 1000, "paged_context_fmha": True}
    outcome = checked(engine=engine)["prompt-steps"]
    assert outcome.state == "warn" and "prompts of more than 1000 tokens" in outcome.message
    assert state(checked(engine=engine, repository={"chunked_context": True}), "prompt-steps") == "ok"
    assert state(checked(engine={**engine, "max_num_tokens": 2000}), "prompt-steps") == "ok"
    assert "prompt-steps" not in checked()
    assert "engine.paged_context_fmha" in str(outcome.hint)


def test_prompts_longer_than_a_step_without_an_engine(checked: Checked) -> None:
    """No engine is built, so no key of one helps; the LLM API's own key counts like the job file's."""
    lengths = {"max_input_len": 2000, "max_num_tokens": 1000, "max_seq_len": None}
    engine = {"backend": "pytorch", "tensorrt_llm_version": "1.2.1", **lengths}
    outcome = checked(engine=engine)["prompt-steps"]
    assert outcome.hint == "raise engine.max_num_tokens, or set repository.chunked_context"
    assert state(checked(engine=engine, repository={"chunked_context": True}), "prompt-steps") == "ok"
    chunked = {**engine, "llm_api": {"enable_chunked_prefill": True}}
    assert state(checked(engine=chunked), "prompt-steps") == "ok"


def test_a_model_that_does_not_fit(checked: Checked, model: Path) -> None:
    write_json(model / "config.json", LLAMA_3_70B)
    rows = checked()
    says(rows, "memory", "do not fit into 79.65 GiB a rank")
    remedy = rows["memory"].hint
    assert remedy is not None and remedy.startswith("set engine.tensor_parallel 2; or")
    assert state(checked(engine={"tensor_parallel": 2}), "memory") == "ok"


# A finished engine --------------------------------------------------------------------------------


def with_engine(checked: Checked, engine: Path, **engine_keys: Any) -> dict[str, Diagnostic]:
    return checked(engine={"directory": str(engine), "tensor_parallel": 4, **engine_keys})


def test_a_finished_engine_that_fits(checked: Checked, engine: Path) -> None:
    rows = with_engine(checked, engine)
    names = [name for name in rows if name.startswith("engine-") and name != "engines-folder"]
    assert len(names) == 8 and {state(rows, name) for name in names} == {"ok"}


def test_a_folder_without_an_engine(checked: Checked, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    says(with_engine(checked, tmp_path / "empty"), "engine-files", "there is no engine in")
    assert state(with_engine(checked, tmp_path / "nowhere"), "engine-files") == "unknown"
    says(with_engine(checked, tmp_path / "nowhere"), "engine-folder", f"there is no {tmp_path / 'nowhere'}")
    assert state(with_engine(checked, tmp_path / "not" / "here"), "engine-folder") == "unknown"


def test_an_engine_that_is_not_this_one(checked: Checked, tmp_path: Path, engine: Path) -> None:
    (engine / "rank3.engine").unlink()
    rows = with_engine(checked, engine)
    says(rows, "engine-files", "rank3.engine is missing")
    rows = with_engine(checked, new_engine(tmp_path / "two", tensor=2))
    says(rows, "engine-world", "built for 2 rank(s), but the plan says 4")
    rows = with_engine(checked, new_engine(tmp_path / "old", version="0.15.0"))
    says(rows, "engine-version", "of TensorRT-LLM 0.15.0, but the container has 0.16.0")


def test_an_engine_for_other_nodes(context: Callable[..., Context], tmp_path: Path) -> None:
    engine = new_engine(tmp_path / "eight", tensor=8, gpus_per_node=8)
    fits = context(engine={"directory": str(engine), "tensor_parallel": 8})
    four = context(cluster={"gpus_per_node": 4}, engine={"directory": str(engine), "tensor_parallel": 8})
    found = {row.code: row for row in run_checks(four, ("",))}
    says(found, "engine-gpus-per-node", "is built for nodes of 8 GPUs, but 4 of the ranks run on each node")
    assert {row.code: row for row in run_checks(fits, ("",))}["engine-gpus-per-node"].state == "ok"


@pytest.mark.parametrize(
    ("job", "name", "words"),
    [
        (
            {"engine": {"max_batch_size": 128}},
            "engine-limits",
            "engine.max_batch_size is 128, but the engine",
        ),
        ({"engine": {"max_seq_len": 4096}}, "engine-limits", "engine.max_seq_len is 4096"),
        ({"engine": {"max_beam_width": 2}}, "engine-limits", "engine.max_beam_width is 2"),
        ({"repository": {"triton_max_batch_size": 65}}, "engine-limits", "was built for 64"),
        ({"engine": {"gather_context_logits": True}}, "engine-logits", "engine.gather_context_logits"),
        ({"engine": {"gather_generation_logits": True}}, "engine-logits", "gather_generation_logits"),
        ({"companion": {"request": {"context_logits": True}}}, "engine-logits", "asks for context_logits"),
        ({"companion": {"request": {"lora": {"directory": "/a"}}}}, "engine-lora", "without --lora_plugin"),
        ({"repository": {"kv_cache_reuse": True}}, "paged-context", "repository.kv_cache_reuse needs"),
        ({"repository": {"chunked_context": True}}, "paged-context", "repository.chunked_context needs"),
        (
            {
                "engine": {"max_seq_len": None},
                "companion": {"benchmark": {"max_tokens": 2048}},
            },
            "engine-lengths",
            "companion.benchmark.max_tokens 2048 and a prompt do not fit into the engine's 2048 tokens",
        ),
    ],
)
def test_what_the_engine_was_not_built_for(
    checked: Checked, engine: Path, job: dict[str, Any], name: str, words: str
) -> None:
    given = {"directory": str(engine), "tensor_parallel": 4, **job.get("engine", {})}
    says(checked(**{**job, "engine": given}), name, words)


def test_an_engine_that_takes_adapters(checked: Checked, tmp_path: Path) -> None:
    engine = {"directory": str(new_engine(tmp_path / "lora", plugins={"lora_plugin": "float16"}))}
    asks = {"request": {"lora": {"directory": "/a"}}}
    rows = checked(engine={**engine, "tensor_parallel": 4}, companion=asks)
    assert state(rows, "engine-lora") == "ok"
    assert "engine-lora" not in checked(engine={**engine, "tensor_parallel": 4})


def test_paged_context_that_is_there(checked: Checked, tmp_path: Path) -> None:
    engine = new_engine(tmp_path / "paged", plugins={"use_paged_context_fmha": True})
    rows = checked(
        engine={"directory": str(engine), "tensor_parallel": 4}, repository={"kv_cache_reuse": True}
    )
    assert state(rows, "paged-context") == "ok"
