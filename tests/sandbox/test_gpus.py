"""The machine's GPUs are shared out between nodes, or refused with what to type."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tests.sandbox.conftest import Commands
from tests.sandbox.test_files import REAL, values
from tests.sandbox.test_refusals import Refused, refused
from tests.schemas.check import documented
from trtllm_hpc.cli import main
from trtllm_hpc.sandbox import NodeStatus, Sandbox, Status, cluster, requirements
from trtllm_hpc.sandbox.cluster import Cluster, rendered
from trtllm_hpc.sandbox.hosts import Folder, Shape
from trtllm_hpc.sandbox.nodes import NAMESPACES

__all__ = ["refused"]

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files and mounts")


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /dev."""
    folder = tmp_path / "a dev"
    folder.mkdir()
    monkeypatch.setattr(cluster, "DEVICES", folder)
    return folder


def make_devices(folder: Path, *names: str) -> None:
    """Character devices with the numbers of /dev/null."""
    for name in names:
        os.mknod(folder / name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))


@ROOT
@pytest.mark.parametrize(
    ("nodes", "wanted", "found"),
    [(1, None, 5), (2, None, 2), (5, None, 1), (2, 1, 1)],
)
def test_every_node_gets_as_many_gpus(nodes: int, wanted: int | None, found: int, devices: Path) -> None:
    make_devices(devices, *(f"nvidia{number}" for number in range(5)), "nvidia-uvm")
    assert requirements.real_shape(nodes, wanted) == Shape(nodes, found, real_gpus=True)


@ROOT
@pytest.mark.usefixtures("as_root", "root_folder")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "2 nodes with 1 real GPU each needs 2 NVIDIA GPUs; this machine has 0: no /dev/nvidia0"),
        (("--nodes", "3"), "3 nodes with 1 real GPU each needs 3 NVIDIA GPUs; this machine has 2"),
        (("--nodes", "1", "--gpus-per-node", "3"), "1 node with 3 real GPUs each needs 3"),
    ],
)
def test_too_few_gpus(
    options: tuple[str, ...], said: str, devices: Path, commands: Commands, refused: Refused
) -> None:
    if options:
        make_devices(devices, "nvidia0", "nvidia5")
    found = " ".join(refused("up", "--gpus", "real", *options).split())
    assert said in found and "--gpus claimed" in found and commands.called == []


def real_values(devices: Path, layout: Cluster, folder: Folder) -> dict[str, object]:
    return values(layout=layout, folder=folder, machine_devices=devices)


def test_slurm_counts_real_gpus_from_0_on_every_node(tmp_path: Path) -> None:
    """As CUDA does, which sees the GPUs of its own node only."""
    lines = rendered("slurm.conf", real_values(tmp_path, REAL, Folder("try-1"))).splitlines()
    assert all(" Gres=gpu:real:2,scratch:1000 " in line for line in lines if line.startswith("NodeName="))
    found = rendered("gres.conf", real_values(tmp_path, REAL, Folder("try-1"))).splitlines()
    assert [line for line in found if line.startswith("Name=gpu")] == [
        "Name=gpu Type=real File=/run/trtllm-hpc/try-1/dev/gpu0",
        "Name=gpu Type=real File=/run/trtllm-hpc/try-1/dev/gpu1",
    ]


@ROOT
@pytest.mark.parametrize("count", [1, 2])
def test_a_node_sees_the_device_files_of_its_own_gpus_only(count: int, devices: Path, tmp_path: Path) -> None:
    names = ["nvidia1", "nvidia3", "nvidia7"]
    make_devices(devices, *names, "nvidiactl", "nvidia-uvm", "null", "shm-file")
    (devices / "core").symlink_to("/proc/kcore")
    (devices / "nvidia-caps").mkdir()
    make_devices(devices / "nvidia-caps", "nvidia-cap1")
    layout = Cluster("try-1", Shape(3 // count, count, real_gpus=True), "10.97.3", tuple(names))
    common = ["core", "null", "nvidia-caps", "nvidia-uvm", "nvidiactl", "shm-file"]
    for index, host in enumerate(layout.nodes):
        seen = seen_on(host.name, layout, devices, tmp_path)
        assert seen == sorted([*common, *names[index * count : (index + 1) * count]])
    assert sorted(path.name for path in devices.iterdir()) == sorted([*common, *names])


def init_script(layout: Cluster, devices: Path, folder: Path) -> str:
    """The script of process 1, with a state folder below ``folder``."""
    state = Folder("try-1")
    text = rendered("init.sh", real_values(devices, layout, state))
    return text.replace(str(state.path), str(folder / "state"))


def seen_on(node: str, layout: Cluster, devices: Path, folder: Path) -> list[str]:
    """What a process on the node finds in the folder of devices; process 1 is a real one."""
    state = folder / "state"
    for path in (state / "etc", state / "private"):
        path.mkdir(parents=True, exist_ok=True)
    for path in (state / "etc" / "hosts", state / "slurmstepd.py", state / "epilog.sh"):
        path.touch()
    script = state / "init.sh"
    script.write_text(init_script(layout, devices, folder))
    namespaces = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*namespaces, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine permits no namespaces")
    with subprocess.Popen(
        [*namespaces, "bash", str(script), node], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        inside = ["nsenter", "--target", children[0], "--mount", "ls", "-A", str(devices)]
        seen = subprocess.run(inside, check=True, capture_output=True, text=True).stdout.splitlines()
        process.stdin.close()
        process.wait(10)
    return sorted(seen)


def test_status_names_the_gpus_of_each_node_and_how_to_submit(
    root_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = (
        NodeStatus("n1", "10.97.0.11", "idle", True, ("nvidia0", "nvidia1")),
        NodeStatus("n2", "10.97.0.12", "idle", True, ("nvidia4", "nvidia5")),
    )
    found = Status("default", "up", 2, True, "/run/slurm.conf", ("batch",), nodes=nodes)
    monkeypatch.setattr(Sandbox, "status", lambda _: found)
    with pytest.raises(SystemExit) as left:
        main(["sandbox", "status"])
    assert left.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "n1 10.97.0.11 GPUs: nvidia0, nvidia1 idle" in said
    assert "--set cluster.slurm_conf=/run/slurm.conf --set cluster.gpus_per_node=2" in said
    with pytest.raises(SystemExit):
        main(["sandbox", "status", "--json"])
    record = documented("sandbox status", capsys.readouterr().out)
    assert record["nodes"][1]["gpus"] == ["nvidia4", "nvidia5"]
