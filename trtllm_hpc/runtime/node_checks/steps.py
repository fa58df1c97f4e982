"""Each kind of job step in the scripts: are TensorRT-LLM and MPI imported, and are the ranks joined?"""

from __future__ import annotations

import socket
from typing import Any

from trtllm_hpc.errors import Diagnostic, fail, ok
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime import nccl
from trtllm_hpc.runtime.alone import alone
from trtllm_hpc.runtime.node import step_tasks
from trtllm_hpc.runtime.node_checks.child import Outcome, attempt, error_of, run_child
from trtllm_hpc.runtime.node_checks.host import network_tried
from trtllm_hpc.runtime.node_checks.image import _import_hint
from trtllm_hpc.runtime.node_checks.records import Findings, Wanted

_PURPOSE = {
    "build": "the step that builds engines and quantizes checkpoints",
    "ranks": "the ranks' step",
    "front": "the step of the front of disaggregated serving",
}


def look_at_step(paths: RunPaths, wanted: Wanted, part: str) -> Findings:
    """Look at one kind of step."""
    # As build.sh starts its commands.
    environment = alone() if part == "build" else None
    outcome = run_child(paths, part, environment)
    found: dict[str, Diagnostic | None] = {f"import-{part}": _imported(outcome, wanted, part)}
    facts = dict(outcome.steps)
    if part == "ranks":
        found["ranks-joined"] = _joined(outcome, wanted)
        whom = "ranks of two nodes" if wanted.nodes > 1 else "ranks of a node"
        found["ranks-nccl"] = network_tried(paths, nccl.EVENT, whom)
    return found, facts


def try_step(wanted: Wanted, part: str) -> None:
    """In the child: import what upstream's programs import there; in the ranks' step, join the others."""
    if error_of(attempt("mpi4py", _start_mpi)) is not None:
        return
    if wanted.has_tensorrt_llm:
        attempt("tensorrt_llm", lambda: __import__("tensorrt_llm").__version__)
    if part != "ranks":
        return
    attempt("joined", _meet)


def _start_mpi() -> str:
    from mpi4py import MPI

    return str(MPI.Get_library_version()).split(",")[0].split("\n")[0].strip("\0 ")


def _meet() -> dict[str, Any]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return {"world_size": world.Get_size(), "hosts": world.allgather(socket.gethostname())}


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
