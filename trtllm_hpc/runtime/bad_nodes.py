"""Nodes that ended a server of the run, so that Slurm does not give them to the run's next job.

Slurm itself avoids only nodes that it marks DOWN. A node with a broken GPU, or one that hung for a minute,
still answers Slurm and has just become free, so the next job would get it at once.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.runtime.blame import first_to_fail, verdict
from trtllm_hpc.runtime.heartbeat import SILENT
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.runtime.records import add_event, known_fields, rank_records

EVENT = "bad_node"
"""Name of the event whose data is a :class:`BadNode`."""

_GPU_FAULT = re.compile(
    rb"uncorrectable (?:ECC|NVLink) error|CUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE|GPU has fallen off the bus"
    # Xids 13, 31 and 43 can be the program's own fault.
    rb"|NVRM: Xid \([^)]*\): (?!(?:13|31|43)\b)\d+"
    rb"|system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY"
)
"""Log lines of the causes whose advice is to submit again without the node."""
_TAIL_BYTES = 1 << 18
_NO_NODE = ("down", "drain", "drng", "fail", "inval", "maint", "unk")
"""Beginnings of sinfo's compact states for nodes that no job can get."""
_OPTION = re.compile(r"^#SBATCH\s+--(exclude|nodelist)[= ](\S+)", re.MULTILINE)
_BRACKETS = re.compile(r"([^,\[\]]+)(?:\[([\d,-]+)\])?")


@dataclass(frozen=True)
class Pool:
    """The nodes of a partition, and the number of nodes that the next server needs."""

    names: Mapping[str, str]
    """Slurm's name of each node, by host name and by Slurm's name itself."""
    usable: frozenset[str]
    """Nodes that a job can get."""
    wanted: int
    """Number of nodes that the next server needs."""

    @classmethod
    def of(cls, sinfo: Iterable[str], wanted: int) -> Pool:
        """Read sinfo's lines, one ``NODE|HOST NAME|STATE`` for each node."""
        names: dict[str, str] = {}
        usable = set()
        for line in sinfo:
            name, host, state = (*line.strip().split("|"), "", "")[:3]
            if name:
                names |= {host.partition(".")[0]: name, name: name}
                if "*" not in state and not state.startswith(_NO_NODE):
                    usable.add(name)
        return cls(names, frozenset(usable), wanted)


@dataclass(frozen=True)
class BadNode:
    """A node that ended a server of the run."""

    node: str
    """The node's name in Slurm."""
    why: str
    """Description of the server's end, in words."""
    job_id: str
    """Slurm's ID of the server's job."""
    kept: str | None = None
    """Why the run's next jobs may still get the node; ``None``: the node is excluded."""


def bad_nodes(paths: RunPaths) -> tuple[BadNode, ...]:
    """Return the nodes that ended servers of the run."""
    with suppress(ValueError, OSError, AttributeError, TypeError):
        records = read_json(paths.bad_nodes) or []
        return tuple(BadNode(**known_fields(BadNode, record)) for record in records)
    return ()


def exclude_option(paths: RunPaths) -> str:
    """Return sbatch's option that excludes the bad nodes; empty if there are none.

    The option replaces the ``--exclude`` of the script, so the result repeats the script's nodes.
    """
    nodes = _excluded(bad_nodes(paths))
    own = _options(paths).get("exclude")
    return f"--exclude={','.join([*([own] if own else []), *nodes])}" if nodes else ""


def bad_hosts(paths: RunPaths) -> dict[str, str]:
    """Return the hosts that ended the last server, each with the reason."""
    hosts, reasons = dict[str, str](), dict[int, str]()
    with suppress(ValueError, OSError, TypeError, KeyError, AttributeError):
        # The supervisor's reason for each instance.
        instances = read_json(paths.instances) or []
        reasons = {instance["instance"]: instance["reason"] or "" for instance in instances}
    plan = PlanRecord.read(paths)
    steps = {"serve": ["serve"], "preflight": ["preflight"]} if plan is None else plan.steps
    before, after = steps["preflight"], steps["serve"]
    for number, step in enumerate((*before, *after), start=-len(before)):
        records = rank_records(paths, step)
        if first_to_fail(records) is None:
            continue
        judge = verdict(records)
        silent, why = (0, reasons.get(number, "")) if judge is None else (judge.blames, judge.reason or "")
        if SILENT in why:
            hosts |= {record.host: why.rstrip(".") for record in records if record.rank == silent}
        for record in records:
            with suppress(OSError, IndexError), paths.rank_log(step, record.rank).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = deque(_GPU_FAULT.finditer(log.read(_TAIL_BYTES)), maxlen=1).pop()[0].decode()
                hosts.setdefault(record.host, f"the log of rank {record.rank} says {text!r}")
    return hosts


def exclude(paths: RunPaths, hosts: Mapping[str, str], *, job_id: str, pools: Sequence[Pool]) -> bool:
    """Exclude hosts that ended job ``job_id`` from the run's next server; return whether any is new.

    A node is not excluded if one of ``pools``, the server's partitions, would then have fewer usable nodes
    than the server needs.
    """
    names = {host: node for pool in pools for host, node in pool.names.items()}
    options = _options(paths)
    by_script = expanded(options.get("exclude", ""))
    known = {bad.node: bad for bad in bad_nodes(paths)}
    before = _excluded(known.values())
    for host, why in hosts.items():
        node = names.get(host.partition(".")[0], host)
        excluded = _excluded(known.values())
        if node in excluded:
            continue
        if node not in names:
            kept: str | None = f"sinfo does not show it among {len(names)} nodes of the partition"
        elif "nodelist" in options:
            kept = "the script asks for certain nodes (--nodelist)"
        else:
            left = [(len(pool.usable.difference(excluded, by_script, [node])), pool) for pool in pools]
            missed = (
                f"without it {count} nodes of the partition could be used, and the job needs {pool.wanted}"
                for count, pool in left
                if node in pool.names and count < pool.wanted
            )
            kept = next(missed, None)
        known[node] = BadNode(node, why, job_id, kept)
        add_event(paths, "serve", EVENT, **asdict(known[node]))
    write_json(paths.bad_nodes, [asdict(bad) for bad in known.values()])
    return _excluded(known.values()) != before


def refuse_excluded(paths: RunPaths) -> int:
    """Return CANCELLED if this job has an excluded node, else 0.

    The job may have got its nodes before they were excluded.
    """
    own_nodes = expanded(os.environ.get("SLURM_JOB_NODELIST", ""))
    has_excluded = any(node in own_nodes for node in _excluded(bad_nodes(paths)))
    return ExitCode.CANCELLED if has_excluded else ExitCode.OK


def expanded(hosts: str) -> list[str]:
    """Return the host names in a list of Slurm's, e.g. ``n[1-2,07]``."""
    names = []
    for prefix, numbers in _BRACKETS.findall(hosts):
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            counted = range(int(first), int(last or first) + 1) if first else ()
            names += [f"{prefix}{number:0{len(first)}}" for number in counted] if first else [prefix]
    return names


def _excluded(nodes: Iterable[BadNode]) -> list[str]:
    return [bad.node for bad in nodes if bad.kept is None]


def _options(paths: RunPaths) -> dict[str, str]:
    """Return the values of ``exclude`` and ``nodelist`` in the script's own ``#SBATCH`` lines."""
    try:
        script = paths.sbatch("serve").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {match[1]: match[2] for match in _OPTION.finditer(script)}
