"""Start a program outside Slurm's MPI world: a disaggregated run's front, a launcher's server.

Importing TensorRT-LLM initialises MPI (``tensorrt_llm/llmapi/disagg_utils.py``, 1.3.0rc3). Open MPI 4.1 takes
a process with Slurm's variables for a task of the step, and aborts where the step has no PMIx.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence

from trtllm_hpc.errors import ExitCode

_WORLD = ("SLURM_", "PMIX_", "PMI_", "OMPI_")
"""Prefixes of the variables by which a process knows its world; upstream's launcher removes the same."""
_LONGEST_HOST = 29
"""Open MPI 5 cuts ``singleton.HOST.PID.RANK`` off after 49 bytes, and then cannot spawn (its pull request
14398; TensorRT-LLM 19019)."""


def host_variables(environment: Mapping[str, str], host: str) -> dict[str, str]:
    """Return a short name of this node for PMIx if its name is too long and no PMIx server names it."""
    if len(host) <= _LONGEST_HOST or not {"PMIX_HOSTNAME", "PMIX_NAMESPACE"}.isdisjoint(environment):
        return {}
    return {"PMIX_HOSTNAME": f"n-{hashlib.sha256(host.encode()).hexdigest()[:12]}"}


def alone(environment: Mapping[str, str] = os.environ, host: str = os.uname().nodename) -> dict[str, str]:
    """Return an environment in which MPI starts alone; by default made of this process's."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_WORLD)}
    return {**kept, **host_variables(kept, host)}


def run_alone(command: Sequence[str]) -> int:
    """Become a program for which MPI starts alone; returns only if there is no such program."""
    try:
        os.execvpe(command[0], list(command), alone())
    except OSError as error:
        host = os.uname().nodename
        print(f"error: {command[0]} cannot be started on {host}: {error.strerror}.", file=sys.stderr)
    return ExitCode.START
