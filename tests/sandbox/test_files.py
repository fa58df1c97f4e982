"""What the daemons read, and the small programs that nodes run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.waiting import eventually
from trtllm_hpc.sandbox.cluster import Cluster, rendered
from trtllm_hpc.sandbox.hosts import JOB_IDS, POOLS, Folder, Shape, interface_name

LAYOUT = Cluster("try-1", Shape(nodes=2, gpus_per_node=4), "10.97.3")

REAL = Cluster("try-1", Shape(2, 2, real_gpus=True), "10.97.3", ("nvidia0", "nvidia1", "nvidia2", "nvidia3"))


def values(**others: object) -> dict[str, object]:
    return {
        "folder": Folder("try-1"),
        "layout": LAYOUT,
        "cpus": 16,
        "memory_mb": 2000,
        "shm_size": "4g",
        "machine_devices": Path("/dev"),
        "machine_hosts": "127.0.0.1 localhost",
        "version": (22, 5),
        "python": sys.executable,
        "slurmstepd": "/usr/sbin/slurmstepd",
        **others,
    }


def settings(text: str) -> dict[str, str]:
    """``key=value`` lines as a mapping; keys with several lines keep the last."""
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key: value for key, value in (line.split("=", 1) for line in lines)}


def test_every_path_in_slurm_conf_is_the_sandboxs_own() -> None:
    found = settings(rendered("slurm.conf", values())).values()
    paths = [value.removeprefix("socket=") for value in found if value.startswith(("/", "socket="))]
    outside = [path for path in paths if not path.startswith("/run/trtllm-hpc/try-1/")]
    assert outside == ["/bin/true"] and len(paths) > 5
    # /tmp is shared, and servers in PID namespaces of their own would choose the same names there.
    database = settings(rendered("my.cnf", values()).replace(" = ", "="))
    for name in ("datadir", "socket", "pid-file", "log-error", "tmpdir"):
        assert database[name].startswith("/run/trtllm-hpc/try-1/")


def test_nodes_have_names_addresses_and_gpus() -> None:
    lines = rendered("slurm.conf", values()).splitlines()
    nodes = [line for line in lines if line.startswith("NodeName=")]
    assert len(nodes) == 2
    assert nodes[1].startswith("NodeName=sbx-try-1-n2 NodeAddr=10.97.3.12 ")
    assert " Gres=gpu:4,scratch:1000 " in nodes[1]
    gpus = [line for line in rendered("gres.conf", values()).splitlines() if line.startswith("Name=gpu")]
    assert gpus[3] == "Name=gpu File=/run/trtllm-hpc/try-1/dev/gpu3"


@pytest.mark.parametrize(
    ("version", "plugin"),
    [((21, 8), None), ((22, 5), "cgroup/v1"), ((23, 11), "cgroup/v1"), ((24, 11), "disabled")],
)
def test_the_cgroup_plugin_is_one_that_the_release_knows(
    version: tuple[int, int], plugin: str | None
) -> None:
    assert settings(rendered("cgroup.conf", values(version=version))).get("CgroupPlugin") == plugin


@pytest.mark.parametrize("name", ["init.sh", "epilog.sh", "policy-rc.d"])
@pytest.mark.parametrize("layout", [LAYOUT, REAL], ids=["claimed", "real"])
def test_shell_scripts_pass_shellcheck(name: str, layout: Cluster, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(rendered(name, values(layout=layout, pid=1, started="2")))
    subprocess.run(["bash", "-n", script], check=True)
    done = subprocess.run(["shellcheck", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_orphans_become_children_of_slurmstepd(tmp_path: Path) -> None:
    """The reaper must hold through exec: proctrack/linuxproc finds only descendants."""
    stepd = tmp_path / "slurmstepd"
    stepd.write_text('#!/bin/sh\n(setsid sleep 3600 & echo $!) & wait\nexec sleep "$1"\n')
    stepd.chmod(0o755)
    reaper = tmp_path / "reaper"
    reaper.write_text(rendered("slurmstepd.py", values(slurmstepd=str(stepd))))
    reaper.chmod(0o755)
    with subprocess.Popen([str(reaper), "3600"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        try:
            assert eventually(lambda: parent_of(orphan) == parent.pid)
        finally:
            subprocess.run([shutil.which("kill") or "kill", "-9", str(orphan)], check=True)
            parent.kill()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_interface_names_fit_the_kernel_and_differ() -> None:
    names = [interface_name(name) for name in ("a", "default", "lifecycle-tests-one", "lifecycle-tests-two")]
    assert all(len(name) <= 15 for name in names) and len(set(names)) == 4


def test_sandboxes_on_different_subnets_never_use_the_same_job_id() -> None:
    layouts = [Cluster("try-1", Shape(1, 0), f"{pool}.{number}") for pool in POOLS for number in range(256)]
    first = [layout.first_job_id for layout in layouts]
    assert first[0] == 1
    assert all(after - before == JOB_IDS for before, after in pairwise(first))
    assert first[-1] + JOB_IDS < 67_043_328  # MaxJobId in slurm.conf(5)
