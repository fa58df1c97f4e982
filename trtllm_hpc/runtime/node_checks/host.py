"""Checks on the first node, outside any container: HAProxy, MPI plugins, network, memory, GPUs and disk."""

from __future__ import annotations

import os
import re
import shutil
import socket
from typing import Any

from trtllm_hpc.errors import Diagnostic, fail, ok, unknown, warn
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.checks import full_file_system, locked_memory, shared_memory, transports
from trtllm_hpc.runtime.network import NETWORK_OK
from trtllm_hpc.runtime.node import interface_address, locked_memory_kib, query_gpus, shm_free_gib
from trtllm_hpc.runtime.node_checks.exchange import Findings, Wanted
from trtllm_hpc.runtime.process import output_of
from trtllm_hpc.runtime.records import read_events

_HAPROXY = (2, 4)
"""Oldest version that can read the proxy's configuration (docs/explanation/decisions/serving.md)."""
_TIMEOUT_S = 30


def look_at_host(paths: RunPaths, wanted: Wanted) -> Findings:
    """Check this node."""
    facts: dict[str, Any] = {"host": socket.gethostname()}
    findings = {
        "node-haproxy": _haproxy(wanted, facts),
        "node-mpi-plugin": _mpi_plugin(wanted, facts),
        "node-interface": _interface(wanted, facts),
        "node-network": _network(paths) if wanted.tries_network else None,
        "node-transports": transports(facts["host"], os.environ),
        "node-gpus": _gpus(wanted, facts),
        "node-shared-memory": shared_memory(facts["host"], shm_free_gib(), wanted.ranks // wanted.nodes or 1),
        "node-locked-memory": locked_memory(facts["host"], locked_memory_kib()) if wanted.nodes > 1 else None,
        "node-disk": full_file_system(facts["host"], paths.folder)
        or ok(f"{facts['host']} can write its run folder, /tmp and /dev/shm"),
    }
    return findings, facts


def _haproxy(wanted: Wanted, facts: dict[str, Any]) -> Diagnostic | None:
    if wanted.haproxy is None:
        return None
    where = f"on {facts['host']}"
    hint = (
        "name HAProxy's path as haproxy in the profile, install it on the nodes, or set serve.proxy to none"
    )
    program = shutil.which(wanted.haproxy)
    if program is None:
        return fail(f"there is no {wanted.haproxy} {where}", hint)
    output = output_of([program, "-v"], _TIMEOUT_S, with_errors=True)
    version = re.search(r"version (\d+)\.(\d+)\S*", output or "")
    if version is None:
        return fail(f"{program} -v {where} does not print a version of HAProxy", hint)
    facts["haproxy"] = version[0].removeprefix("version ")
    if (int(version[1]), int(version[2])) < _HAPROXY:
        return fail(f"HAProxy {where} is {facts['haproxy']}, but 2.4 or later is needed", hint)
    return ok(f"HAProxy {facts['haproxy']} is {where}")


def _mpi_plugin(wanted: Wanted, facts: dict[str, Any]) -> Diagnostic | None:
    if wanted.mpi is None:
        return None
    facts["slurm"] = (output_of(["srun", "--version"], _TIMEOUT_S, with_errors=True) or "").strip()
    listed = output_of(["srun", "--mpi=list"], _TIMEOUT_S, with_errors=True) or ""
    plugins = sorted(set(re.findall(r"\b(?:pmix\w*|pmi2|cray_shasta|none|openmpi)\b", listed)))
    facts["mpi_plugins"] = plugins
    if wanted.mpi in plugins:
        return ok(f"srun on {facts['host']} has the MPI plugin {wanted.mpi}")
    return warn(
        f"srun on {facts['host']} has no MPI plugin {wanted.mpi} (only {', '.join(plugins) or 'none'})",
        "mpirun joins the ranks instead; ask the site for Slurm built with PMIx",
    )


def _interface(wanted: Wanted, facts: dict[str, Any]) -> Diagnostic | None:
    present = [name for _, name in socket.if_nameindex()]
    facts["interfaces"] = present
    if wanted.network_interface is None:
        return None
    without = [name for name in wanted.network_interface.split(",") if interface_address(name) is None]
    if not without:
        return ok(f"{wanted.network_interface} on {facts['host']} has an IPv4 address")
    message = f"{facts['host']} has no interface {', '.join(without)} with an IPv4 address"
    return fail(f"{message} (it has: {', '.join(present)})", "set network_interface in the cluster profile")


def _network(paths: RunPaths) -> Diagnostic:
    """Return the result of the previous step, which tested the network between the nodes."""
    faults = list[str]()
    for event in read_events(paths):
        if event.name == NETWORK_OK:
            return ok("the nodes reach each other")
        if event.name == "preflight_failed":
            faults.append(str(event.data["reason"]).removeprefix("network: "))
    if faults:
        return fail("; ".join(faults), "set network_interface in the profile, or ask your site")
    hint = "run the same command with --keep, then read logs/preflight_*.out"
    return unknown("whether the nodes reach each other is not known", hint)


def _gpus(wanted: Wanted, facts: dict[str, Any]) -> Diagnostic | None:
    if not wanted.gpus_per_node:
        return None
    visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    models = query_gpus("name", "driver_version", "memory.total")
    facts["gpus"], facts["gpus_visible"] = models, len(visible)
    if visible and len(visible) < wanted.gpus_per_node:
        message = f"{facts['host']} gave this job {len(visible)} GPU(s), not {wanted.gpus_per_node}"
        return fail(
            message, "compare gpu_request and gpus_per_node in the profile with the site's documentation"
        )
    if not models:
        # Unknown and not a fault: a sandbox configures GPUs that do not exist, and has no nvidia-smi.
        return unknown(
            f"nvidia-smi on {facts['host']} shows no GPU", "srun nvidia-smi, on the profile's partition"
        )
    return ok(f"{facts['host']} has {models[0].split(',')[0]}, driver {models[0].split(',')[1].strip()}")
