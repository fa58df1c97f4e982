"""This node: its addresses, free ports, GPUs and shared memory, and cleaning up after ranks."""

from __future__ import annotations

import fcntl
import glob
import os
import random
import re
import resource
import shutil
import socket
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.runtime.process import all_processes, output_of

_SIOCGIFADDR = 0x8915
"""ioctl that returns an interface's IPv4 address (netdevice(7))."""

_PORTS = range(20_000, 32_000)
"""Below Linux's default range of ephemeral ports (32768 on), so that no outgoing connection takes one."""

_drawn: set[int] = set()
"""Ports that this process has drawn, and may not have bound yet."""

_NVIDIA_SMI_TIMEOUT_S = 30

SHM = Path("/dev/shm")
SCRATCH = Path("/tmp")
"""Where a rank makes its scratch folder; short and without spaces on every node."""

_OWNER = "owner"
"""File in a folder that the folder's process holds locked for as long as it lives."""
_OF_JOB = re.compile(r"trt(\d+)_")
_JOB_ID = re.compile(rb"(?:^|\0)(?:SLURM|TRTLLM_HPC)_JOB_ID=(\d+)(?=\0)")


def shm_prefix(instance: int | str | None = None, rank: int | None = None) -> str:
    """Return how the names of shared memory and scratch folders of this job, an instance or a rank begin.

    Two jobs may share a node, and two ranks too.
    """
    parts = (os.environ["TRTLLM_HPC_JOB_ID"], instance, rank)
    return "trt" + "".join(f"{part}_" for part in parts if part is not None)


def interface_address(interface: str) -> str | None:
    """Return the IPv4 address of an interface, of several the first one; ``None`` if none has any."""
    first, _, others = interface.partition(",")
    if others:
        return interface_address(first) or interface_address(others)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def own_address(interface: str | None = None, *, loopback: bool = False) -> str:
    """Return this node's IPv4 address for others, ``interface``'s if named; ``loopback``: for itself alone.

    Raises SystemExit if the interface has none.
    """
    if loopback:
        return "127.0.0.1"
    if interface is not None:
        address = interface_address(interface)
        if address is None:
            present = ", ".join(name for _, name in socket.if_nameindex())
            raise SystemExit(
                f"error: {socket.gethostname()} has no interface {interface!r} with an IPv4 address "
                f"(it has: {present}).\n  next: set network_interface in the cluster profile"
            )
        return address
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = "127.0.0.1"
    if not named.startswith("127."):
        return named
    addresses = (interface_address(name) for _, name in socket.if_nameindex())
    return next((address for address in addresses if address and not address.startswith("127.")), named)


def interface_towards(address: str) -> str | None:
    """Return the name of the interface through which this node reaches ``address``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))  # connecting a datagram socket sends nothing
            local = probe.getsockname()[0]
        except OSError:
            return None
    return next((name for _, name in socket.if_nameindex() if interface_address(name) == local), None)


def step_tasks() -> int | None:
    """Return how many tasks this task's step has; ``None`` where what started it does not set it."""
    tasks = os.environ.get("TRTLLM_HPC_NTASKS") or os.environ.get("SLURM_NTASKS") or ""
    return int(tasks) if tasks.isdigit() else None


def task_number() -> int:
    """Return the number of this task in its step."""
    return int(os.environ.get("SLURM_PROCID") or os.environ.get("TRTLLM_HPC_PROCID") or 0)


def free_ports(count: int) -> list[int]:
    """Return different ports that can be bound on this node now; raises SystemExit if there are too few.

    Drawn at random, so that two jobs that start in the same second hardly ever draw the same.
    """
    draw, left = random.Random(os.urandom(16)), sorted({*_PORTS} - _drawn)
    found: list[int] = []
    for port in draw.sample(left, len(left)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            _drawn.update(found)
            return found
    raise SystemExit(
        f"error: {socket.gethostname()} has no {count} free ports in {_PORTS.start}-{_PORTS.stop - 1}."
    )


def print_leader(interface: str | None, *, loopback: bool) -> None:
    """Print this node's address and four free ports, for the servers of a run."""
    print(own_address(interface, loopback=loopback), *free_ports(4))


def query_gpus(*fields: str) -> list[str]:
    """Return a line of fields for each GPU of this process; none if ``nvidia-smi`` does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    only = [f"--id={visible}"] if visible else []
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", *only]
    return [line.strip() for line in (output_of(command, _NVIDIA_SMI_TIMEOUT_S) or "").splitlines()]


def shm_free_gib() -> float:
    """Return the free space in /dev/shm, in GiB."""
    statistics = os.statvfs(SHM)
    return statistics.f_bavail * statistics.f_frsize / 2**30


def locked_memory_kib() -> int | None:
    """Return the soft limit on locked memory; ``None`` is unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft // 1024


def free_space(folder: Path) -> tuple[float, int | None]:
    """Return the free MiB for this user on a folder's file system, and its inodes; ``None``: any number."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize / 2**20, found.f_favail if found.f_files else None


def mount_of(folder: Path) -> Path:
    """Return where a folder's file system is mounted."""
    place = folder.resolve()
    while not place.is_mount() and place != place.parent:
        place = place.parent
    return place


def make_private(prefix: str) -> None:
    """Let no other user read this node's shared memory that begins with ``prefix``.

    Triton's Python backend passes prompts through it, and lets everybody read it (Boost.Interprocess).
    """
    for region in SHM.glob(f"{glob.escape(prefix)}*"):
        # One with such a name may be somebody else's, who wants to be in the way.
        with suppress(FileNotFoundError, PermissionError):
            mode = region.stat().st_mode
            if mode & 0o077:
                region.chmod(mode & 0o700)


def remove_leftovers(prefix: str) -> list[str]:
    """Remove this node's shared memory and scratch folders that begin with ``prefix``; returns them.

    The caller's prefix carries a job id, so nothing of another job can match.
    """
    if not prefix:
        raise ValueError("an empty prefix would remove everybody's shared memory")
    found = [file for folder in (SHM, SCRATCH) for file in folder.iterdir() if file.name.startswith(prefix)]
    return [str(file) for file in sorted(found) if _remove(file)]


def remove_turns() -> None:
    """Remove the file by which this node's ranks take turns in ``serve.prologue``, unless one has its turn.

    A job that is cancelled ends before it can sweep its nodes, so each rank does it at its end.
    """
    file = SCRATCH / f"{shm_prefix()}prologue"
    with suppress(OSError), file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink()


def sweep(instance: str | None) -> None:
    """Remove from this node what killed ranks of this job, or of one instance, and ended jobs have left."""
    for file in [*remove_leftovers(shm_prefix(instance)), *remove_of_ended_jobs()]:
        print(f"removed what a killed rank left: {file}")


def make_owned(prefix: str, parent: Path = SCRATCH) -> tuple[Path, int]:
    """Make a folder for this process; returns it, and a descriptor that holds a file in it locked."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    descriptor = os.open(folder / _OWNER, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return folder, descriptor


def is_abandoned(folder: Path) -> bool:
    """Return whether the process that owned a folder has ended. A folder that nobody owned is not."""
    with suppress(OSError):
        descriptor = os.open(folder / _OWNER, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        finally:
            os.close(descriptor)
    return False


def remove_of_ended_jobs() -> list[str]:
    """Remove what this user's ended jobs left on this node under names with their ids; returns it.

    Nothing else: Triton's own folder in /tmp shows no job. A job has ended if Slurm's queue lacks it, and no
    process and no locked folder of it is here: a controller without its state forgets jobs that still run.
    """
    own_id, found = os.environ.get("SLURM_JOB_ID"), dict[str, list[Path]]()
    for file in [*SHM.iterdir(), *SCRATCH.iterdir()]:
        with suppress(FileNotFoundError):
            if (match := _OF_JOB.match(file.name)) and file.lstat().st_uid == os.getuid():
                found.setdefault(match[1], []).append(file)
    if own_id is None or not found.keys() - {own_id}:
        return []
    # Variables such as SQUEUE_PARTITION would hide jobs.
    words = ["env", *(f"--unset={name}" for name in os.environ if name.startswith("SQUEUE_"))]
    words += ["squeue", "--noheader", "--all", f"--user={os.getuid()}", "--format=%A"]
    alive = set((output_of(words, timeout_s=20) or "").split())
    if own_id not in alive:  # this is not an answer about this cluster's jobs
        return []
    for pid in all_processes():
        with suppress(OSError):
            alive |= {job.decode() for job in _JOB_ID.findall(Path(f"/proc/{pid}/environ").read_bytes())}
    removed = []
    for files in (files for job, files in found.items() if job not in alive):
        owned = [file for file in files if (file / _OWNER).exists()]
        # A folder without an owner may be one that is being made.
        if all(map(is_abandoned, owned)) and (owned or not any(file.is_dir() for file in files)):
            removed += [str(file) for file in files if _remove(file)]
    return removed


def _remove(file: Path) -> bool:
    try:
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink()
    except FileNotFoundError:
        return False  # another rank of this node removed it first
    except OSError as error:
        print(f"could not remove {file}: {error}")
        return False
    return True
