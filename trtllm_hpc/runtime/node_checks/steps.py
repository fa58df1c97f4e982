"""Each kind of job step in the scripts: are TensorRT-LLM and MPI imported, and are the ranks joined?"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from typing import Any

from trtllm_hpc.errors import Diagnostic, fail, ok, warn
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.alone import alone
from trtllm_hpc.runtime.node import free_ports, interface_address, interface_towards, own_address, step_tasks
from trtllm_hpc.runtime.node_checks.child import Outcome, attempt, error_of, run_child
from trtllm_hpc.runtime.node_checks.image import _import_hint
from trtllm_hpc.runtime.node_checks.records import Wanted

_MIB = 1 << 20
_BYTES = 64 * _MIB
_ROUNDS = 5
_SLOW_GBPS = 1.0
"""Below this, in GB/s, tensor parallelism over nodes waits for the network most of the time."""
_PURPOSE = {
    "build": "the step that builds engines and quantizes checkpoints",
    "ranks": "the ranks' step",
    "front": "the step of the front of disaggregated serving",
}


def look_at_step(paths: RunPaths, wanted: Wanted, part: str) -> tuple[list[Diagnostic], dict[str, Any]]:
    """Return what is found in one kind of step."""
    # As build.sh starts its commands.
    environment = alone() if part == "build" else None
    outcome = run_child(paths, part, environment)
    found: dict[str, Diagnostic | None] = {f"import-{part}": _imported(outcome, wanted, part)}
    facts = dict(outcome.steps)
    if part == "ranks":
        found["ranks-joined"] = _joined(outcome, wanted)
        found["ranks-bandwidth"] = _bandwidth(outcome, wanted)
    return [replace(it, code=name) for name, it in found.items() if it is not None], facts


def try_step(wanted: Wanted, part: str) -> None:
    """In the child: import what upstream's programs import there; in the ranks' step, work together."""
    if error_of(attempt("mpi4py", _start_mpi)) is not None:
        return
    if wanted.has_tensorrt_llm:
        attempt("tensorrt_llm", lambda: __import__("tensorrt_llm").__version__)
    if part != "ranks":
        return
    joined = attempt("joined", _meet)
    if error_of(joined) is None and joined["world_size"] > 1:
        attempt("bandwidth", lambda: _transfer(wanted))


def _start_mpi() -> str:
    from mpi4py import MPI

    return str(MPI.Get_library_version()).split(",")[0].split("\n")[0].strip("\0 ")


def _meet() -> dict[str, Any]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return {"world_size": world.Get_size(), "hosts": world.allgather(socket.gethostname())}


def _transfer(wanted: Wanted) -> dict[str, Any]:
    """Measure an all-reduce between the ranks, with the library of tensor parallelism if it is there."""
    from mpi4py import MPI

    world, name = MPI.COMM_WORLD, wanted.network_interface
    # Every rank must know: one that fails alone leaves the others waiting for it.
    without = None if name is None or interface_address(name) else socket.gethostname()
    if lacking := sorted({host for host in world.allgather(without) if host}):
        raise OSError(f"{', '.join(lacking)} has no interface {name} with an IPv4 address")
    place = (own_address(wanted.network_interface), free_ports(1)[0]) if world.Get_rank() == 0 else None
    address, port = world.bcast(place, root=0)
    interface = wanted.network_interface or interface_towards(address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if wanted.network_interface is not None:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", wanted.network_interface)
    try:
        import torch
    except ImportError:
        return {"with": "MPI", "gb_per_s": _by_mpi(world), "interface": interface}
    return {**_by_torch(torch, wanted, world, address, port), "interface": interface}


def _by_mpi(world: Any) -> float:
    data, answer = bytearray(_BYTES), bytearray(_BYTES)
    peer = world.Get_rank() ^ 1
    world.Barrier()
    began = time.monotonic()
    for _ in range(_ROUNDS):
        world.Sendrecv(data, dest=peer, recvbuf=answer, source=peer)
    return _rate(began)


def _by_torch(torch: Any, wanted: Wanted, world: Any, address: str, port: int) -> dict[str, Any]:
    distributed = torch.distributed
    # NCCL takes a GPU for each rank.
    with_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= wanted.ranks // wanted.nodes
    library = "nccl" if with_gpu else "gloo"
    device = "cpu"
    if with_gpu:
        device = f"cuda:{int(os.environ.get('SLURM_LOCALID', '0')) % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    size = {"world_size": world.Get_size(), "rank": world.Get_rank()}
    distributed.init_process_group(library, init_method=f"tcp://{address}:{port}", **size)
    data = torch.ones(_BYTES // 4, dtype=torch.float32, device=device)
    distributed.all_reduce(data)  # the first one makes the connections
    world.Barrier()
    began = time.monotonic()
    for _ in range(_ROUNDS):
        distributed.all_reduce(data)
    if with_gpu:
        torch.cuda.synchronize()
    rate = _rate(began)
    distributed.destroy_process_group()
    version = ".".join(map(str, torch.cuda.nccl.version())) if with_gpu else ""
    return {"with": f"{library.upper()} {version}".strip(), "gb_per_s": rate}


def _rate(began: float) -> float:
    """Return GB/s in each direction; of an all-reduce of two ranks, its bus bandwidth."""
    return round(_ROUNDS * _BYTES / 1e9 / max(time.monotonic() - began, 1e-9), 2)


def _imported(outcome: Outcome, wanted: Wanted, part: str) -> Diagnostic:
    where = _PURPOSE[part]
    for step in ("mpi4py", *(("tensorrt_llm",) if wanted.has_tensorrt_llm else ())):
        result = outcome.steps.get(step)
        if (why := error_of(result)) is not None:
            return fail(f"{step} cannot be imported in {where}: {why}", _import_hint(why))
        if result is None:
            return fail(f"importing {step} in {where} {outcome.ended}: {_last(outcome)}", _abort_hint(part))
    return ok(f"{where} imports mpi4py.MPI{' and tensorrt_llm' if wanted.has_tensorrt_llm else ''}")


def _last(outcome: Outcome) -> str:
    lines = [line.strip(" -") for line in outcome.log.splitlines()]
    return " ".join(line for line in lines if line)[:400] or "it printed nothing"


def _abort_hint(part: str) -> str:
    if part == "ranks":
        return "MPI in the image must be built with PMIx: compare the profile's mpi with `srun --mpi=list`"
    return "the same command with --keep; MPI's own message is in the step's log"


def _joined(outcome: Outcome, wanted: Wanted) -> Diagnostic | None:
    joined = outcome.steps.get("joined")
    if joined is None:
        return None  # the import has failed, and its row says why
    if why := error_of(joined):
        return fail(
            f"the ranks do not reach each other by MPI: {why}", "set network_interface in the profile"
        )
    tasks = step_tasks() or wanted.ranks
    if joined["world_size"] != tasks:
        message = f"MPI sees a world of {joined['world_size']} in a step of {tasks} tasks"
        return fail(message, "the image's MPI needs PMIx; compare the profile's mpi with `srun --mpi=list`")
    hosts = sorted(set(joined["hosts"]))
    return ok(f"MPI joins {tasks} ranks on {', '.join(hosts)}")


def _bandwidth(outcome: Outcome, wanted: Wanted) -> Diagnostic | None:
    joined, result = outcome.steps.get("joined"), outcome.steps.get("bandwidth")
    if joined is None or error_of(joined) or joined["world_size"] < 2:
        return None
    between = "two nodes" if wanted.nodes > 1 else "two ranks of a node"
    hint = "set network_interface in the profile; NCCL_DEBUG=INFO in its environment shows what NCCL chooses"
    if result is None:
        said = outcome.ended or "was not tried"
        return fail(f"an all-reduce between {between} {said}: {_last(outcome)}", hint)
    if why := error_of(result):
        return fail(f"an all-reduce between {between} fails: {why}", hint)
    sentence = f"{result['with']} moves {result['gb_per_s']:.2f} GB/s between {between}"
    if result["interface"]:
        sentence += f" (interface {result['interface']})"
    slow = wanted.nodes > 1 and result["gb_per_s"] < _SLOW_GBPS
    return warn(f"{sentence}, which is slow for tensor parallelism", hint) if slow else ok(sentence)
