"""The command line of ``runtime.pyz``, which the rendered scripts call.

A job starts it hundreds of times, so each command imports only what it needs (:func:`run_command`).
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
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

COMMANDS: dict[str, list[Option]] = {
    # What the batch scripts run before the server starts, and at their end
    "begin": _STAGE,
    "end": [*_STAGE, *_EXIT_CODE],
    "follow": _LAST_JOB,
    "queue-next": [],
    "unwanted": _EXIT_CODE,
    "exclude": _needed("--job"),
    "placed": [],
    "engine": [],
    "gpus-per-node": [*_options("gpus", type=int), *_options("checkpoints", type=Path, nargs="+")],
    "leader": _ADDRESS,
    "preflight": [
        *_needed("--world-size --ranks-per-node --gpus-per-node", type=int),
        *_options("--component", type=int, default=0),
        *_options("--engine", type=Path, action="append", default=[]),
        *_options("--engine-ranks", type=int, action="append", default=[]),
        *_options("--program", action="append", default=[], dest="programs"),
        *(*_options("--phase --release"), *_options("--tokenizer --model", type=Path)),
        *_options("--without-mpi", action="store_true"),
    ],
    "network": [*_needed("--first --nodes", type=int), *_options("--interface")],
    "stage-model": [*_needed("--source --link", type=Path), *_needed("--days --first", type=int)],
    "spawns": [*_needed("--launcher"), *_options("--last", action="store_true")],
    "repository": _needed("--all-models", type=Path),
    "variants": [
        *(*_needed("--folder", type=Path), *_needed("--minutes", type=float)),
        *_options("names", nargs="+"),
    ],
    "gpus-in-use": [],
    # The job of doctor --on-nodes
    "node-check": [*_options("part", choices=PARTS), *_options("--child", action="store_true")],
    "unattended": [],
    # Servers
    "rank": [
        *_needed("--rank --world-size --ranks-per-node", type=int),
        *(*_needed("--spec", type=Path), *_options("--launcher"), *_options("--step", default="serve")),
        *(*_needed("--ready-timeout-seconds", type=float), *_options("--hang-seconds", type=float)),
    ],
    "instances": [
        *(*_needed("--count --restarts", type=int), *_PROXY),
        *_options("--key --tls", action="store_true"),
        *_needed("--leaders", type=_numbers, help="NODE:INSTANCE,INSTANCE of each node"),
        *_options("--roles", type=_numbers, default={}, help="PHASE:SERVER,SERVER if disaggregated"),
        *_options("--drain-seconds", type=float, default=0.0),
        *_options("--companion-start-seconds --companion-silence-seconds", type=float),
        *_options("--hang-seconds --idle-seconds", type=float),
    ],
    "proxy": [*_PROXY, *_needed("--node", type=int), *_options("instances", type=int, nargs="+")],
    "launched": _needed("--scratch", type=Path),
    "alone": _PROGRAM,
    "sweep": _options("instance", nargs="?"),
    "spawn": [*_needed("--ntasks", type=int), *_needed("--output"), *_PROGRAM],
    # Beside a companion or a build
    "stop": _needed("--by --reason"),
    "heartbeat": _needed("--while-pid", type=int),
    "watch-build": _needed("--while-pid", type=int),
}
"""Options of each command; what it does is the docstring of what :func:`run_command` calls."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="runtime", description=__doc__)
    parser.add_argument("--run", type=Path, help="run folder, if it does not contain this file")
    parsers = parser.add_subparsers(required=True, dest="command")
    for name, options in COMMANDS.items():
        of_command = parsers.add_parser(name)
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
