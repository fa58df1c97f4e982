"""``runtime node-check``: each part by name, and the checks in the ranks' job step (imports, MPI, NCCL)."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import Any

from trtllm_hpc.errors import Diagnostic, ExitCode, fail, ok, unknown
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.node import free_ports, interface_address, interface_towards, own_address, step_tasks
from trtllm_hpc.runtime.node_checks.exchange import (
    ChildReport,
    Findings,
    Wanted,
    attempt,
    error_of,
    run_child,
    write_found,
)
from trtllm_hpc.runtime.node_checks.host import look_at_host
from trtllm_hpc.runtime.node_checks.image import import_hint, look_at_image, read_image
from trtllm_hpc.runtime.preflight import mpi_library

_MEET_S = 60.0
_PMIX = "MPI in the image must be built with PMIx: compare the profile's mpi with `srun --mpi=list`"
_BYTES, _TIMES = 64 << 20, 5


def check_node(paths: RunPaths, part: str, *, is_child: bool) -> int:
    """Check one part and write the findings; the exit code shows only whether that was possible.

    With ``is_child``, do the work that may abort the process; the parent, which checks the same part, waits.
    """
    wanted = Wanted.read(paths.node_checks)
    assert wanted is not None, paths.node_checks
    if is_child:
        {"image": read_image, "ranks": join_ranks}[part](wanted)
    else:
        look = {"host": look_at_host, "image": look_at_image, "ranks": look_at_ranks}[part]
        write_found(paths, part, *look(paths, wanted))
    return ExitCode.OK


def look_at_ranks(paths: RunPaths, wanted: Wanted) -> Findings:
    """Check the ranks' step."""
    outcome = run_child(paths, "ranks")
    findings = {
        "import-ranks": _imported(outcome, wanted),
        "ranks-joined": _joined(outcome, wanted),
        "ranks-nccl": _reduced(outcome),
    }
    return findings, dict(outcome.steps)


def join_ranks(wanted: Wanted) -> None:
    """In the child: import what a server's ranks import, and join the other ranks."""
    if error_of(attempt("mpi4py", _start_mpi)) is not None:
        return
    if wanted.has_tensorrt_llm:
        attempt("tensorrt_llm", lambda: __import__("tensorrt_llm").__version__)
    if error_of(attempt("joined", _meet)) is None:
        attempt("nccl", lambda: _all_reduce(wanted))


def _start_mpi() -> str:
    from mpi4py import MPI

    return mpi_library(MPI)


def _meet() -> dict[str, Any]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return {"world_size": world.Get_size(), "hosts": world.allgather(socket.gethostname())}


def _all_reduce(wanted: Wanted) -> dict[str, Any]:
    """Join the ranks by NCCL, or by Gloo if a node has fewer GPUs than ranks, and measure an all-reduce."""
    import torch
    from mpi4py import MPI

    if wanted.network_interface and interface_address(wanted.network_interface) is None:
        raise OSError(f"there is no interface {wanted.network_interface} with an IPv4 address")
    world, dist = MPI.COMM_WORLD, torch.distributed
    own = (own_address(wanted.network_interface), free_ports(1)[0]) if world.Get_rank() == 0 else None
    address, port = world.bcast(own)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_gpus = min(world.allgather(gpus)) >= world.Get_size() // wanted.nodes
    if interface := wanted.network_interface or interface_towards(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if wanted.network_interface:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", wanted.network_interface)
    device = f"cuda:{int(os.environ.get('SLURM_LOCALID') or 0) % gpus}" if has_gpus else "cpu"
    if has_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if has_gpus else "gloo",
        init_method=f"tcp://{address}:{port}",
        rank=world.Get_rank(),
        world_size=world.Get_size(),
        timeout=timedelta(seconds=_MEET_S),
    )
    data = torch.ones(_BYTES // 4, device=device)
    began = time.monotonic()
    for count in range(1 + _TIMES):
        dist.all_reduce(data)
        if has_gpus:
            torch.cuda.synchronize()
        if count == 0:  # the first all-reduce makes the connections, so it is not measured
            began = time.monotonic()
    size = world.Get_size()
    rate = 2 * (size - 1) / size * _BYTES * _TIMES / 1e9 / (time.monotonic() - began)
    dist.destroy_process_group()
    nccl: Any = torch.cuda.nccl
    version = ".".join(map(str, nccl.version())) if has_gpus else ""
    return {"library": f"NCCL {version}" if has_gpus else "Gloo", "gb_per_s": round(rate, 2)}


def _imported(outcome: ChildReport, wanted: Wanted) -> Diagnostic:
    for step in ("mpi4py", *(("tensorrt_llm",) if wanted.has_tensorrt_llm else ())):
        result = outcome.steps.get(step)
        if (why := error_of(result)) is not None:
            return fail(f"{step} cannot be imported in the ranks' step: {why}", import_hint(why))
        if result is None:
            message = f"importing {step} in the ranks' step {outcome.ended}: {_last(outcome)}"
            return fail(message, _PMIX)
    return ok(f"the ranks' step imports mpi4py.MPI{' and tensorrt_llm' if wanted.has_tensorrt_llm else ''}")


def _last(outcome: ChildReport) -> str:
    lines = [line.strip(" -") for line in outcome.log.splitlines()]
    return " ".join(line for line in lines if line)[:400] or "it printed nothing"


def _joined(outcome: ChildReport, wanted: Wanted) -> Diagnostic | None:
    joined = outcome.steps.get("joined")
    if joined is None:
        return None  # the import has failed: the row import-ranks shows why
    if why := error_of(joined):
        return fail(
            f"the ranks do not reach each other by MPI: {why}", "set network_interface in the profile"
        )
    tasks = step_tasks() or wanted.ranks
    if joined["world_size"] != tasks:
        message = f"MPI sees a world of {joined['world_size']} in a step of {tasks} tasks"
        return fail(message, _PMIX)
    hosts = sorted(set(joined["hosts"]))
    return ok(f"MPI joins {tasks} ranks on {', '.join(hosts)}")


def _reduced(outcome: ChildReport) -> Diagnostic | None:
    joined, result = outcome.steps.get("joined"), outcome.steps.get("nccl")
    if joined is None or error_of(joined):
        return None  # the row ranks-joined or import-ranks shows why
    hint = "set network_interface in the profile; NCCL_DEBUG=INFO in its environment shows what NCCL does"
    if result is None:
        return fail(f"the ranks' first all-reduce {outcome.ended}: {_last(outcome)}", hint)
    if (why := error_of(result)) and why.startswith("ModuleNotFoundError"):
        return unknown(f"NCCL is not tried: {why}")
    if why:
        return fail(f"the ranks do not reach each other by NCCL: {why}", hint)
    return ok(f"{result['library']} joins the ranks: an all-reduce of {result['gb_per_s']:.2f} GB/s")
