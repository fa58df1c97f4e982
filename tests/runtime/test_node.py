"""What a node offers and what is left on it: addresses, ports, shared memory, scratch folders."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.runtime.conftest import Runtime
from trtllm_hpc.runtime import node
from trtllm_hpc.runtime.node import (
    SCRATCH,
    SHM,
    free_ports,
    interface_towards,
    own_address,
    remove_leftovers,
)


def test_the_leader_prints_an_address_and_four_free_ports(runtime: Runtime) -> None:
    answer = runtime("leader", "--loopback")
    address, *ports = answer.stdout.split()
    assert address == "127.0.0.1" and len(set(ports)) == 4
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("0.0.0.0", int(port)))


def test_the_named_interface_decides_the_address(runtime: Runtime) -> None:
    assert runtime("leader", "--interface=lo").stdout.split()[0] == "127.0.0.1"
    answer = runtime("leader", "--interface=no-such0")
    assert answer.returncode == 1
    assert "has no interface 'no-such0'" in answer.stderr and "lo" in answer.stderr
    assert "set network_interface in the cluster profile" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_interface_towards_an_address() -> None:
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("no address") is None


def test_ports_in_use_are_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(1)[0]
    monkeypatch.setattr(node, "_PORTS", range(first, first + 2))
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", first))
        with pytest.raises(SystemExit, match=r"has only [01] free ports in .* 2 are needed"):
            free_ports(2)


def test_leftovers_are_what_begins_with_the_prefix_and_nothing_else(runtime: Runtime) -> None:
    mine, other = f"trt{os.getpid()}_", f"trt{os.getpid()}9_"
    files = [SHM / f"{mine}0_a", SHM / f"{mine}1_b", SHM / f"{other}0_a"]
    folders = [SCRATCH / f"{mine}0_x", SCRATCH / f"{other}0_x"]
    try:
        for file in files:
            file.write_text("x")
        for folder in folders:
            (folder / "below").mkdir(parents=True)
            (folder / "repository").symlink_to(runtime.paths.folder)
        answer = runtime("sweep", TRTLLM_HPC_JOB_ID=str(os.getpid()))
        assert answer.returncode == 0
        assert answer.stdout.count("removed what a killed rank left") == 3
        assert [file.exists() for file in (*files, *folders)] == [False, False, True, False, True]
        assert runtime.paths.runtime.exists(), "what a link points to is not ours"
        assert remove_leftovers(mine) == []
    finally:
        remove_leftovers(other)


def test_a_planted_link_is_removed_and_not_followed(tmp_path: Path) -> None:
    prefix = f"trt{os.getpid()}_"
    (tmp_path / "precious").write_text("")
    link = SCRATCH / f"{prefix}link"
    link.symlink_to(tmp_path)
    assert remove_leftovers(prefix) == [str(link)]
    assert not link.is_symlink() and (tmp_path / "precious").exists()


def test_the_next_job_removes_what_ended_jobs_left_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may forget a job that runs: then a process with its id, or a locked folder, keeps its files."""
    shm, scratch = tmp_path / "shm", tmp_path / "tmp"
    monkeypatch.setattr(node, "SHM", shm)
    monkeypatch.setattr(node, "SCRATCH", scratch)
    shm.mkdir()
    scratch.mkdir()
    for parent, name in ((shm, "trt987611_proxy0_"), (scratch, "trt987611_0_0_")):
        os.close(node.make_owned(name, parent)[1])
    _, locked = node.make_owned("trt987613_0_0_", scratch)
    for job in range(987610, 987615):  # no job of a sandbox beside this test has these
        (shm / f"trt{job}_0_0_region").touch()
    for name in ("trt987611_caches", "trt987615_0_0_b", "python_env_x", "trtlocal987611_0", "trt987611"):
        (scratch / name).mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    asked = tmp_path / "asked"
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SQUEUE_PARTITION", "other")

    def left_after(answer: str, own_id: str = "987610") -> set[str]:
        squeue.write_text(f"#!/bin/sh\n[ -z \"$SQUEUE_PARTITION\" ] || exit 1\necho >>'{asked}'\n{answer}\n")
        squeue.chmod(0o755)
        monkeypatch.setenv("SLURM_JOB_ID", own_id)
        removed = node.remove_of_ended_jobs()
        assert not any(Path(name).exists() for name in removed)
        return {file.name for folder in (shm, scratch) for file in folder.iterdir()}

    everything = left_after("exit 1")
    # Without an answer, and from a controller that does not even know this job, nothing is known.
    assert left_after("echo 987612") == left_after("kill -9 $$") == everything
    living = subprocess.Popen(["sleep", "60"], env={"SLURM_JOB_ID": "987614"})
    try:
        of_ended = {name for name in everything if name.startswith("trt987611_")}
        assert len(of_ended) == 4
        assert left_after("echo 987612; echo 987610") == everything - of_ended
    finally:
        living.kill()
        living.wait()
    os.close(locked)
    left = left_after("echo 987612; echo 987610")
    of_ended |= {name for name in everything if name.startswith(("trt987613_", "trt987614_"))}
    assert left == everything - of_ended
    (shm / "trt987612_0_0_region").unlink()
    (scratch / "trt987615_0_0_b").rmdir()
    asked.unlink()
    left_after("exit 1")
    assert not asked.exists(), "Slurm is asked only where something is left"


def test_the_address_is_that_of_the_first_interface_that_has_one() -> None:
    assert own_address("not-there0,lo") == own_address("lo,not-there0") == "127.0.0.1"
    with pytest.raises(SystemExit, match="has no interface 'not-there0,not-there1'"):
        own_address("not-there0,not-there1")
