"""The command line of ``runtime.pyz``, which the rendered scripts call.

A job starts it hundreds of times, so each command imports only what it needs (:func:`run_command`).
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_hpc.errors import BuildFailed, ExitCode, StartFailed
from trtllm_hpc.paths import STAGES, RunPaths
from trtllm_hpc.runtime.node_checks import PARTS

if TYPE_CHECKING:
    from trtllm_hpc.runtime.proxy import ProxyOptions

Option = tuple[str, dict[str, Any]]
"""Arguments of ``add_argument``."""


def _options(names: str, **how: Any) -> list[Option]:
    """Return several options of one kind."""
    return [(name, how) for name in names.split()]


def _needed(names: str, **how: Any) -> list[Option]:
    return _options(names, required=True, **how)


def _numbers(text: str) -> dict[str, list[int]]:
    """Return the lists of ``context:0 generation:1,2``."""
    pairs = (word.partition(":") for word in text.split())
    return {name: [int(number) for number in numbers.split(",")] for name, _, numbers in pairs}


_STAGE = _options("stage", choices=STAGES)
_EXIT_CODE = _options("exit_code", type=int)
_LAST_JOB = [*_needed("--job"), *_options("--state", default="")]
_ADDRESS = [*_options("--interface"), *_options("--loopback", action="store_true")]
_PROXY = [*_options("--program"), *_options("--kinds", default=""), *_ADDRESS]
_PROGRAM = _options("program", nargs=argparse.REMAINDER)

COMMANDS: dict[str, tuple[str, Iterable[Option]]] = {
    # What the batch scripts run before the server starts, and at their end
    "begin": ("record that a stage begins", _STAGE),
    "end": ("record that a stage has ended", [*_STAGE, *_EXIT_CODE]),
    "follow": ("prepare to serve after another job; fails if this job is not to serve", _LAST_JOB),
    "queue-next": ("submit the job that is to serve after this one", []),
    "unwanted": ("print the next job's id if that job is not to serve any more", _EXIT_CODE),
    "exclude": ("keep the next job from nodes at fault; prints what scontrol is to change", _needed("--job")),
    "placed": ("fail if this job has a node that it should not have", []),
    "engine": ("build the engine, or find it in the cache", []),
    "gpus-per-node": (
        "write the GPUs of a node into checkpoints",
        [*_options("gpus", type=int), *_options("checkpoints", type=Path, nargs="+")],
    ),
    "leader": ("print address, three server ports and the rendezvous port", _ADDRESS),
    "preflight": (
        "compare the world of ranks with the plan",
        [
            *_needed("--world-size --ranks-per-node --gpus-per-node", type=int),
            *_options("--component", type=int, default=0),
            *_options("--engine", type=Path, action="append", default=[]),
            *_options("--engine-ranks", type=int, action="append", default=[]),
            *_options("--program", action="append", default=[], dest="programs"),
            *(*_options("--phase --release"), *_options("--tokenizer --model", type=Path)),
            *_options("--without-mpi", action="store_true"),
        ],
    ),
    "network": (
        "try the network between nodes",
        [*_needed("--first --nodes", type=int), *_options("--interface")],
    ),
    "stage-model": (
        "copy the model to this node",
        [*_needed("--source --link", type=Path), *_needed("--days --first", type=int)],
    ),
    "spawns": (
        "fail unless processes can be spawned by MPI; --last: nothing else is tried",
        [*_needed("--launcher"), *_options("--last", action="store_true")],
    ),
    "repository": ("make the model repository from templates", _needed("--all-models", type=Path)),
    "variants": (
        "run the variants of a sweep, one after another",
        [
            *(*_needed("--folder", type=Path), *_needed("--minutes", type=float)),
            *_options("names", nargs="+"),
        ],
    ),
    "gpus-in-use": ("print the GPUs whose memory somebody uses", []),
    # The job of doctor --on-nodes
    "node-check": (
        "one part of doctor --on-nodes; --child: do what may abort the process",
        [*_options("part", choices=PARTS), *_options("--child", action="store_true")],
    ),
    "unattended": ("wait until doctor --on-nodes no longer waits for this job", []),
    # Servers
    "rank": (
        "run one rank's server and watch it",
        [
            *_needed("--rank --world-size --ranks-per-node", type=int),
            *(*_needed("--spec", type=Path), *_options("--launcher"), *_options("--step", default="serve")),
            *(*_needed("--ready-timeout-seconds", type=float), *_options("--hang-seconds", type=float)),
        ],
    ),
    "instances": (
        "open the proxy, run all instances and watch them",
        [
            *(*_needed("--count --minimum --restarts", type=int), *_PROXY),
            *_options("--key --tls", action="store_true"),
            *_needed("--leaders", type=_numbers, help="NODE:INSTANCE,INSTANCE of each node"),
            *_options("--roles", type=_numbers, default={}, help="PHASE:SERVER,SERVER if disaggregated"),
            *_options("--drain-seconds", type=float, default=0.0),
            *_options("--companion-start-seconds --companion-silence-seconds", type=float),
            *_options("--hang-seconds --idle-seconds", type=float),
        ],
    ),
    "proxy": (
        "run the proxy of a further node",
        [*_PROXY, *_needed("--node", type=int), *_options("instances", type=int, nargs="+")],
    ),
    "launched": ("start the server as a launcher's task", _needed("--scratch", type=Path)),
    "alone": ("run a program for which MPI starts alone", _PROGRAM),
    "sweep": ("remove what killed ranks of this job left on this node", _options("instance", nargs="?")),
    "spawn": (
        "start tasks on this machine, as srun does on a cluster",
        [*_needed("--ntasks", type=int), *_needed("--output"), *_PROGRAM],
    ),
    # Beside a companion or a build
    "stop": ("request the server to stop", _needed("--by --reason")),
    "heartbeat": ("show the server that the companion is alive", _needed("--while-pid", type=int)),
    "watch-build": ("note a build that stands still", _needed("--while-pid", type=int)),
}
"""Purpose and options of each command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="runtime", description=__doc__)
    parser.add_argument("--run", type=Path, help="run folder, if it does not contain this file")
    parsers = parser.add_subparsers(required=True, dest="command")
    for name, (purpose, options) in COMMANDS.items():
        of_command = parsers.add_parser(name, help=purpose)
        for flag, how in options:
            of_command.add_argument(flag, **how)
    given = parser.parse_args(arguments)
    # The zipapp lies in the run folder, and its path is the script's name.
    paths = RunPaths(given.run or Path(sys.argv[0]).resolve().parent)
    if given.command in ("engine", "rank", "alone", "node-check"):  # they start programs of the image
        from trtllm_hpc.runtime.caches import use_caches

        use_caches(os.environ)
    try:
        return run_command(given.command, paths, given) or ExitCode.OK
    except (BuildFailed, StartFailed) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: {_out_of_space(error, paths.folder)}", file=sys.stderr, flush=True)
        return ExitCode.START


def _out_of_space(error: OSError, folder: Path) -> str:
    """Return which file system is full; the error of a write names no file, and is then the run folder's."""
    from trtllm_hpc.runtime.node import mount_of

    file = Path(os.fsdecode(error.filename)) if error.filename else folder
    why = "your quota is used up" if error.errno == errno.EDQUOT else "No space left on device"
    return (
        f"{file} cannot be written: {why}, the file system {mount_of(file)}.\n"
        f"  next: free space there (df -h {mount_of(file)}; df -i for the number of files)"
    )


def run_command(name: str, paths: RunPaths, given: Namespace) -> int | None:
    """Run a command; returns its exit code, or ``None`` for 0."""
    match name:
        case "begin":
            from trtllm_hpc.runtime.stage import begin

            return begin(paths, given.stage)
        case "end":
            from trtllm_hpc.runtime.stage import end

            end(paths, given.stage, given.exit_code)
        case "follow":
            from trtllm_hpc.runtime.renewal import may_follow

            return ExitCode.OK if may_follow(paths, given.job, given.state) else ExitCode.CANCELLED
        case "queue-next":
            from trtllm_hpc.runtime.renewal import queue_next

            return ExitCode.OK if queue_next(paths) else ExitCode.SUBMISSION
        case "unwanted":
            from trtllm_hpc.runtime.renewal import unwanted_next

            _print(unwanted_next(paths, given.exit_code))
        case "exclude":
            from trtllm_hpc.runtime.renewal import change_of_next

            _print(change_of_next(paths, given.job, sys.stdin))
        case "placed":
            from trtllm_hpc.runtime.bad_nodes import has_no_excluded_node

            return ExitCode.OK if has_no_excluded_node(paths) else ExitCode.CANCELLED
        case "engine":
            from trtllm_hpc.runtime.engine_cache.build import build_engine

            return build_engine(paths)
        case "gpus-per-node":
            from trtllm_hpc.runtime.engine_config import set_gpus_per_node

            set_gpus_per_node(given.checkpoints, given.gpus)
        case "leader":
            from trtllm_hpc.runtime.node import free_ports

            print(_address(given), *free_ports(4))
        case "preflight":
            from trtllm_hpc.runtime.preflight import Expected, run_preflight

            ranks = given.engine_ranks or [given.world_size] * len(given.engine)
            given.engines = tuple(zip(given.engine, ranks, strict=True))
            return run_preflight(paths, Expected(**_fields(Expected, given)), with_mpi=not given.without_mpi)
        case "network":
            from trtllm_hpc.runtime.network import check_network

            return check_network(paths, given)
        case "stage-model":
            from trtllm_hpc.runtime.staging import stage_model

            stage_model(paths, given.source, given.link, given.days, given.first)
        case "spawns":
            from trtllm_hpc.runtime.mpi_spawn import check_spawn

            return check_spawn(paths, given.launcher, is_last=given.last)
        case "repository":
            from trtllm_hpc.runtime.model_repository.writer import make_repository

            return make_repository(paths, given.all_models)
        case "variants":
            from trtllm_hpc.runtime.variants import run_variants

            return run_variants(given.folder, given.names, given.minutes)
        case "gpus-in-use":
            from trtllm_hpc.runtime.variants import gpus_in_use

            _print(gpus_in_use())
        case "node-check":
            from trtllm_hpc.runtime.node_checks.run import check_node

            return check_node(paths, given.part, is_child=given.child)
        case "unattended":
            from trtllm_hpc.runtime.node_checks.run import wait_until_unattended

            wait_until_unattended(paths)
        case "rank":
            from trtllm_hpc.runtime.node import shm_prefix
            from trtllm_hpc.runtime.rank import RankSupervisor
            from trtllm_hpc.runtime.server_spec import RankOptions, read_spec

            spec = read_spec(given.spec)
            given.spec = replace(spec, launcher=given.launcher or spec.launcher)
            given.prefix = shm_prefix(os.environ["TRTLLM_HPC_INSTANCE"], given.rank)
            return RankSupervisor(paths, RankOptions(**_fields(RankOptions, given))).run()
        case "instances":
            from trtllm_hpc.runtime.instances.instance import SupervisorOptions
            from trtllm_hpc.runtime.instances.supervisor import RunSupervisor

            given.proxy = None if given.program is None else _proxy_options(given)
            given.leaders = {int(node): numbers for node, numbers in given.leaders.items()}
            return RunSupervisor(paths, SupervisorOptions(**_fields(SupervisorOptions, given))).run()
        case "proxy":
            from trtllm_hpc.runtime.proxy import run_node_proxy

            return run_node_proxy(paths, given.node, _proxy_options(given), given.instances)
        case "launched":
            from trtllm_hpc.runtime.launched_server import run_launched

            return run_launched(given.scratch)
        case "alone":
            from trtllm_hpc.runtime.alone import run_alone

            return run_alone(given.program)
        case "sweep":
            from trtllm_hpc.runtime.node import remove_leftovers, remove_of_ended_jobs, shm_prefix

            for file in [*remove_leftovers(shm_prefix(given.instance)), *remove_of_ended_jobs()]:
                print(f"removed what a killed rank left: {file}")
        case "spawn":
            from trtllm_hpc.runtime.local_tasks import run_tasks

            return run_tasks(given.program, given.ntasks, given.output)
        case "stop":
            from trtllm_hpc.runtime.stop import request_stop

            request_stop(paths, by=given.by, reason=given.reason)
        case "heartbeat":
            from trtllm_hpc.runtime.stop import beat_while

            beat_while(paths, given.while_pid)
        case "watch-build":
            from trtllm_hpc.runtime.heartbeat import watch_build

            watch_build(paths, given.while_pid)
        case _:
            raise AssertionError(name)
    return None


def _print(text: str | None) -> None:
    if text:
        print(text)


def _fields(kind: type, given: Namespace) -> dict[str, Any]:
    """Return the options that have the names of a dataclass's fields."""
    return {field.name: getattr(given, field.name) for field in fields(kind)}


def _address(given: Namespace) -> str:
    from trtllm_hpc.runtime.node import own_address

    return "127.0.0.1" if given.loopback else own_address(given.interface)


def _proxy_options(given: Namespace) -> ProxyOptions:
    from trtllm_hpc.runtime.proxy import ProxyOptions

    return ProxyOptions(given.program, tuple(given.kinds.split(",")), _address(given))


if __name__ == "__main__":
    sys.exit(main())
