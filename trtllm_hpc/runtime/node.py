"""This node: addresses, free ports, GPUs, shared memory, and removal of what ranks and jobs leave."""

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
"""Ports that this process has drawn, and may not have bound yet, so they look free."""

_NVIDIA_SMI_TIMEOUT_S = 30

SHM = Path("/dev/shm")
SCRATCH = Path("/tmp")
"""Parent of the ranks' scratch folders; its path is short and has no spaces on every node."""

_OWNER = "owner"
"""File in a folder that the folder's process keeps locked as long as it lives."""
_OF_JOB = re.compile(r"trt(\d+)_")
_JOB_ID = re.compile(rb"(?:^|\0)(?:SLURM|TRTLLM_HPC)_JOB_ID=(\d+)(?=\0)")


def shm_prefix(instance: int | str | None = None, rank: int | None = None) -> str:
    """Return the prefix of shared memory and scratch folders of this job, or of its instance or rank.

    Two jobs, or two ranks, may share a node.
    """
    parts = (os.environ["TRTLLM_HPC_JOB_ID"], instance, rank)
    return "trt" + "".join(f"{part}_" for part in parts if part is not None)


def interface_address(interface: str) -> str | None:
    """Return the IPv4 address of an interface, or of the first of several that has one; else ``None``."""
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
    """Return the IPv4 address at which other nodes reach this node; with ``loopback``, 127.0.0.1.

    Raises SystemExit if ``interface`` is given and has no address.
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
    """Return the number of tasks of this job step; ``None`` if the launcher does not set it."""
    tasks = os.environ.get("TRTLLM_HPC_NTASKS") or os.environ.get("SLURM_NTASKS") or ""
    return int(tasks) if tasks.isdigit() else None


def task_number() -> int:
    """Return the number of this task within its step."""
    return int(os.environ.get("SLURM_PROCID") or os.environ.get("TRTLLM_HPC_PROCID") or 0)


def free_ports(count: int) -> list[int]:
    """Return different ports that can be bound on this node now; raise SystemExit if there are too few.

    The ports are random, so that two jobs that start in the same second hardly ever get the same ports.
    """
    draw, left = random.Random(os.urandom(16)), sorted({*_PORTS} - _drawn)
    ports: list[int] = []
    for port in draw.sample(left, len(left)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            _drawn.update(ports)
            return ports
    raise SystemExit(
        f"error: {socket.gethostname()} has only {len(ports)} free ports in "
        f"{_PORTS.start}-{_PORTS.stop - 1}, and {count} are needed.\n"
        "  next: ss -tln on that node shows which programs listen there"
    )


def print_leader(interface: str | None, *, loopback: bool) -> None:
    """Print this node's address and four free ports for the servers of a run."""
    print(own_address(interface, loopback=loopback), *free_ports(4))


def query_gpus(*fields: str) -> list[str]:
    """Return a line with the fields of each GPU of this process; no lines if ``nvidia-smi`` fails."""
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
    """Return the soft limit on locked memory in KiB; ``None``: unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft // 1024


def free_space(folder: Path) -> tuple[float, int | None]:
    """Return the MiB and inodes that this user has free on a folder's file system; ``None``: no limit."""
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize / 2**20, space.f_favail if space.f_files else None


def mount_of(folder: Path) -> Path:
    """Return the mount point of a folder's file system."""
    place = folder.resolve()
    while not place.is_mount() and place != place.parent:
        place = place.parent
    return place


def make_private(prefix: str) -> None:
    """Remove other users' access to this node's shared memory whose name begins with ``prefix``.

    Triton's Python backend passes prompts through shared memory that everybody can read (Boost.Interprocess).
    """
    for region in SHM.glob(f"{glob.escape(prefix)}*"):
        # Another user may have made a file of this name, to cause an error here.
        with suppress(FileNotFoundError, PermissionError):
            mode = region.stat().st_mode
            if mode & 0o077:
                region.chmod(mode & 0o700)


def remove_leftovers(prefix: str) -> list[str]:
    """Remove this node's shared memory and scratch folders whose names begin with ``prefix``; return them.

    The prefix contains the job's ID, so it matches nothing of another job.
    """
    if not prefix:
        raise ValueError("an empty prefix would remove everybody's shared memory")
    files = [file for folder in (SHM, SCRATCH) for file in folder.iterdir() if file.name.startswith(prefix)]
    return [str(file) for file in sorted(files) if _remove(file)]


def remove_turns() -> None:
    """Remove the lock file that lets this node's ranks run ``serve.prologue`` one after the other, if free.

    Each rank does this at its end, because a cancelled job ends before it can sweep its nodes.
    """
    file = SCRATCH / f"{shm_prefix()}prologue"
    with suppress(OSError), file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink()


def sweep(instance: str | None) -> None:
    """Remove what killed ranks of this job (or one ``instance``) and ended jobs have left on this node."""
    for file in [*remove_leftovers(shm_prefix(instance)), *remove_of_ended_jobs()]:
        print(f"removed what a killed rank left: {file}")


def make_owned(prefix: str, parent: Path = SCRATCH) -> tuple[Path, int]:
    """Make a folder owned by this process; return it and the descriptor of its locked owner file."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    descriptor = os.open(folder / _OWNER, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return folder, descriptor


def is_abandoned(folder: Path) -> bool:
    """Return whether a folder's owner process has ended; false for a folder without an owner file."""
    with suppress(OSError):
        descriptor = os.open(folder / _OWNER, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        finally:
            os.close(descriptor)
    return False


def remove_of_ended_jobs() -> list[str]:
    """Remove files of this user's ended jobs from this node, if their names have a job ID; return them.

    Triton's own folder in /tmp stays, because its name shows no job. A job counts as ended if it is not in
    Slurm's queue and has no process and no locked folder on this node: a controller that has lost its state
    forgets jobs that still run.
    """
    own_id, files_by_job = os.environ.get("SLURM_JOB_ID"), dict[str, list[Path]]()
    for file in [*SHM.iterdir(), *SCRATCH.iterdir()]:
        with suppress(FileNotFoundError):
            if (match := _OF_JOB.match(file.name)) and file.lstat().st_uid == os.getuid():
                files_by_job.setdefault(match[1], []).append(file)
    if own_id is None or not files_by_job.keys() - {own_id}:
        return []
    # Without SQUEUE_*: variables such as SQUEUE_PARTITION would hide jobs.
    words = ["env", *(f"--unset={name}" for name in os.environ if name.startswith("SQUEUE_"))]
    words += ["squeue", "--noheader", "--all", f"--user={os.getuid()}", "--format=%A"]
    alive = set((output_of(words, timeout_s=20) or "").split())
    if own_id not in alive:  # squeue failed, or answered about another cluster's jobs
        return []
    for pid in all_processes():
        with suppress(OSError):
            alive |= {job.decode() for job in _JOB_ID.findall(Path(f"/proc/{pid}/environ").read_bytes())}
    removed = []
    for files in (files for job, files in files_by_job.items() if job not in alive):
        owned = [file for file in files if (file / _OWNER).exists()]
        # A folder without an owner file may be in the making.
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
