"""Checks of the profile's folders, files and programs, and of this machine if the job runs here."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.errors import Diagnostic, RenderError, fail, ok, unknown, warn
from trtllm_hpc.plan.mounts import is_below, misread, named_folders, target_of
from trtllm_hpc.runtime.checks import shared_memory, wheel_numpy
from trtllm_hpc.runtime.node import shm_free_gib
from trtllm_hpc.runtime.servers.triton import only_wheel_has_server
from trtllm_hpc.validation.context import Check, Context

_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs|lustre|gpfs|beegfs|ceph|fuse|cifs|smb|9p|virtiofs|afs|wekafs|panfs|pvfs|orangefs|gfs"
)
"""Types of file systems that several machines can mount."""


def _in_container(context: Context) -> bool:
    return context.cluster.container.runtime != "none"


def runs_folder(context: Context) -> Diagnostic:
    """The folder of runs is writable."""
    return _writable(context.runs, "runs_folder in the profile, or --runs")


def engines_folder(context: Context) -> Diagnostic:
    """The engine cache is writable."""
    return _writable(context.engines, "engines_folder in the profile, or $TRTLLM_HPC_ENGINES")


def _writable(folder: Path, key: str) -> Diagnostic:
    parent = folder
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if not parent.is_dir():
        return fail(f"{folder} cannot be created: {parent} is not a folder", f"set {key}")
    if not os.access(parent, os.W_OK | os.X_OK):
        return fail(f"you cannot write to {parent}", f"set {key}, or chmod u+rwx {parent}")
    future = "" if parent == folder else " (it will be created)"
    return ok(f"{folder} is writable{future}")


def refuse_folder_names(run_folder: Path, engines: str, cluster: ClusterProfile) -> None:
    """Refuse folders whose names Slurm or a container runtime misreads. Raises RenderError."""
    # srun and sbatch expand %x patterns in --output, and a backslash turns all patterns off (sbatch(1),
    # "filename pattern"). Surrogates stand for bytes that are not UTF-8, which the scripts must be.
    unreadable = r"[%\\\x00-\x1f\x7f\ud800-\udfff]"
    if cluster.container.runtime != "none":
        unreadable += f"|[{re.escape(misread(cluster))}]"
    for what, folder, hint in (
        ("run folder", str(run_folder), "choose another folder with --runs"),
        ("engine cache", engines, "set engines_folder in the cluster profile to another folder"),
        (
            "cache folder",
            cluster.container.cache_folder or "",
            "set container.cache_folder in the cluster profile to another folder",
        ),
    ):
        bad = sorted(set(re.findall(unreadable, folder)))
        if bad:
            listed = ", ".join(map(repr, bad))
            raise RenderError(
                f"The name of the {what} {folder!r} contains {listed}, which Slurm or a container misreads.",
                hint=hint,
            )


def shared_folders(context: Context) -> Diagnostic | None:
    """The compute nodes can see the runs, the engines and the Python that submits."""
    folders = {
        "--runs, or runs_folder in the profile,": context.runs,
        "engines_folder in the profile": context.engines,
    }
    if context.has_job and context.job.model.hub is not None and context.job.model.path is not None:
        folders["models_folder in the profile"] = Path(context.job.model.path)
    if context.cluster.python is None:
        folders["python in the profile"] = Path(sys.executable)
    for key, folder in folders.items():
        real = os.path.realpath(folder)
        local = next((below for below in context.cluster.node_local_folders if is_below(real, [below])), None)
        # A shared file system may be mounted inside a node-local folder.
        if local is not None and not _NETWORK_FILE_SYSTEMS.match(_file_system(real)):
            return fail(
                f"the compute nodes cannot see {folder}: every machine has its own {local}",
                f"set {key} to a path on a shared file system; if the nodes share {local} with this machine, "
                "remove it from node_local_folders in the profile",
            )
    return ok("runs and engines are not in node-local folders")


def _file_system(path: str) -> str:
    """Return the type of a path's file system from ``/proc/self/mountinfo``; empty if unknown."""
    deepest_point, file_system = "", ""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""  # not Linux
    for line in lines:
        mount, _, source = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount.split()[4])
        if is_below(path, [point]) and len(point) >= len(deepest_point):
            deepest_point, file_system = point, source.split()[0]
    return file_system


def absent(context: Context, path: str, key: str) -> Diagnostic:
    """Judge a path of the job file that is missing or unreadable here; nodes may have it."""
    here = context.path_here(path)
    if os.path.lexists(here):
        return unknown(f"{key} {path} cannot be read on this machine", f"ls -l {here}")
    above = next(folder for folder in here.parents if folder.is_dir())
    # Not /: nodes that share a root file system may mount other folders below it.
    is_shared = above != Path("/") and _NETWORK_FILE_SYSTEMS.match(_file_system(os.path.realpath(above)))
    if is_shared or not context.on_slurm or context.cluster.is_sandbox:
        missing = here.relative_to(above).parts[0]
        message = f"{key} {path} does not exist: there is no {missing} in {above}"
        return fail(message, f"ls {above}, then correct {key} (--set {key}=PATH)")
    where = f" --partition={context.cluster.partition}" if context.cluster.partition else ""
    message = f"{key} {path} is not on this machine; the nodes may have it"
    return warn(message, f"type srun{where} ls {path} to look on a node")


def container_image(context: Context) -> Diagnostic | None:
    """The image's file exists; an image in a registry is pulled when the job starts."""
    image = context.cluster.container.image
    if image is None:
        return None
    path = Path(image.removeprefix("file://"))
    if not path.is_absolute():
        if image.endswith((".sqsh", ".sif")):
            message = f"the image {image} has a relative path, but jobs start in another folder"
            return fail(message, "set container.image in the profile to its absolute path")
        entry = context.cluster.container.entry
        message = f"every node pulls {image} from a registry when the job starts"
        if entry is not None and not entry.takes("name") and not entry.cache_variable:
            message = f"this machine cannot check whether the nodes have {image}"
        return warn(message, entry.fetch if entry is not None else "")
    if path.exists():
        return ok(f"the image {path} exists")
    hint = "fix container.image in the profile; if only the compute nodes see it: --ignore container-image"
    return fail(f"there is no image {path} on this machine", hint)


def mpi4py(context: Context) -> Diagnostic | None:
    """Without a container, the Python that submits has mpi4py for the preflight."""
    if _in_container(context):
        return None
    if context.cluster.python is not None:
        return unknown("the preflight will check whether the nodes' Python has mpi4py")
    if importlib.util.find_spec("mpi4py") is None:
        return fail("this Python has no mpi4py, which the preflight needs", "pip install 'trtllm-hpc[mpi]'")
    return ok("this Python has mpi4py")


def server(context: Context) -> Diagnostic | None:
    """Without a container, the nodes have the server's programs."""
    if _in_container(context):
        return None
    name, programs = context.cluster.triton.server, context.plan.needed_programs if context.has_job else ()
    hint = "set container.runtime and container.image in the profile, to one of NVIDIA's images"
    if not context.has_job or context.plan.server.spec.driver == "triton":
        if name == "pytriton":
            if importlib.util.find_spec("pytriton") is None:
                return fail("this Python has no pytriton", "pip install 'trtllm-hpc[reference]'")
            return wheel_numpy() or ok("tritonserver comes with nvidia-pytriton")
        programs, hint = (name,), "set triton.server in the profile, or container.runtime"
        if only_wheel_has_server():
            hint = "set triton.server in the profile to pytriton, which this Python has"
    if not programs:
        return None  # serve.prologue may install them
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return ok(f"{' and '.join(programs)} {'is' if len(programs) == 1 else 'are'} on PATH")
    message = f"there is no {' and no '.join(missing)} on this machine, and the profile has no container"
    sees_nodes = not context.on_slurm or (context.cluster.is_sandbox and not context.cluster.setup)
    return fail(message, hint) if sees_nodes else unknown(message, hint)


def proxy(context: Context) -> Diagnostic | None:
    """HAProxy is installed; on a cluster, the job checks that on its nodes."""
    if not context.plan.has_proxy or (context.on_slurm and not context.cluster.is_sandbox):
        return None
    program = context.cluster.haproxy
    found = shutil.which(program)
    hint = "install HAProxy (package haproxy), set haproxy in the profile, or set serve.proxy to none"
    return ok(f"HAProxy is {found}") if found else fail(f"there is no program {program!r}", hint)


def dev_shm(context: Context) -> Diagnostic | None:
    """/dev/shm has space for the ranks, if the job runs here; on a cluster the preflight checks it."""
    if context.on_slurm:
        return None
    ranks = context.plan.parts[0].allocation.ranks_per_node if context.has_job else 1
    return shared_memory(socket.gethostname(), shm_free_gib(), ranks)


def mounts(context: Context) -> Diagnostic | None:
    """The container has mounts for all folders of the job file, and for the targets of links in them."""
    if not _in_container(context):
        return None
    targets = [target_of(mount) for mount in context.plan.mounts]
    bad = " ".join(misread(context.cluster))
    for key, path in named_folders(context.job):
        if not is_below(path, targets):
            message = f"{key} {path} cannot be mounted by itself: its name contains one of {bad}"
            return fail(message, "mount a folder above it in container.mounts of the profile, or rename it")
        link, target = next(_links_out_of_mounts(path, context.path_here(path), targets), ("", ""))
        if link:
            message = f"{link} is a link to {target}, which is not mounted"
            hint = "mount a folder above both in container.mounts of the profile, or copy the files (cp -rL)"
            return fail(message, hint)
    return ok("the container has mounts for all folders of the job file")


def _links_out_of_mounts(path: str, here: Path, targets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield links in a folder whose targets are not mounted, such as those of the Hub's cache.

    Args:
        path: the folder in the container.
        here: the same folder on this machine.
        targets: the mounted folders, as paths in the container.
    """
    for place, folders, names in os.walk(here):
        for name in (*folders, *names):
            file = Path(place, name)
            if not file.is_symlink():
                continue
            inside = PurePosixPath(path, file.relative_to(here))
            target = os.path.normpath(inside.parent / file.readlink())
            if not is_below(target, targets):
                yield str(inside), target


CHECKS = (
    Check("runs-folder", runs_folder),
    Check("engines-folder", engines_folder),
    Check("runs-folder-shared", shared_folders, on_slurm=True),
    Check("container-image", container_image),
    Check("mpi4py", mpi4py, on_slurm=True),
    Check("tritonserver", server),
    Check("proxy", proxy, of_job=True),
    Check("shared-memory", dev_shm),
    Check("mounts", mounts, of_job=True),
)
