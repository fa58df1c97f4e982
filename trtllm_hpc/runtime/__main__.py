"""The command line of ``runtime.pyz``, which the rendered scripts call."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trtllm_hpc.errors import BuildFailed, ExitCode, StartFailed
from trtllm_hpc.paths import STAGES, RunPaths
from trtllm_hpc.runtime.node_checks import PARTS

if TYPE_CHECKING:
    from trtllm_hpc.runtime.door import DoorOptions

    _Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    # The zipapp lies in the run folder, and its path is the script's name.
    paths = RunPaths(options.run or Path(sys.argv[0]).resolve().parent)
    if options.command in ("engine", "rank", "alone", "node-check"):  # they start programs of the image
        from trtllm_hpc.runtime.caches import use_caches

        use_caches(os.environ)
    try:
        return _run(paths, options)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runtime", description=__doc__)
    parser.add_argument("--run", type=Path, help="run folder, if it does not contain this file")
    commands = parser.add_subparsers(required=True, dest="command")
    _add_stage_commands(commands)
    _add_preparation_commands(commands)
    _add_check_commands(commands)
    _add_server_commands(commands)
    _add_companion_commands(commands)
    return parser


def _add_stage_commands(commands: _Commands) -> None:
    """Add what the batch scripts run at the begin and end of a stage, and between two jobs that serve."""
    begin = commands.add_parser("begin", help="record that a stage begins")
    begin.add_argument("stage", choices=STAGES)

    end = commands.add_parser("end", help="record that a stage has ended")
    end.add_argument("stage", choices=STAGES)
    end.add_argument("exit_code", type=int)

    follow = commands.add_parser("follow", help="prepare to serve after another job; fails if it is not to")
    follow.add_argument("--job", required=True, help="the job before")
    follow.add_argument("--state", required=True, help="its state in Slurm")

    following = commands.add_parser("next", help="record the job that is to serve after this one")
    following.add_argument("job", help="empty if Slurm refused it")

    unwanted = commands.add_parser("unwanted", help="print the next job's id if it is not to serve any more")
    unwanted.add_argument("exit_code", type=int)

    exclude = commands.add_parser(
        "exclude", help="keep the next job from nodes at fault; prints what scontrol is to change"
    )
    exclude.add_argument("--job", required=True, help="the job whose server has ended")
    exclude.add_argument("--state", default="", help="its state in Slurm")

    commands.add_parser("excluded", help="print sbatch's option that keeps the next job from such nodes")

    commands.add_parser("placed", help="fail if this job has a node that it should not have")


def _add_preparation_commands(commands: _Commands) -> None:
    """Add what the batch scripts run before the server starts."""
    commands.add_parser("engine", help="build the engine, or find it in the cache")

    checkpoint = commands.add_parser("gpus-per-node", help="write the GPUs of a node into a checkpoint")
    checkpoint.add_argument("gpus", type=int)
    checkpoint.add_argument("checkpoint", type=Path, nargs="+")

    quantize = commands.add_parser("quantize", help="quantize a checkpoint for the LLM API on PyTorch")
    quantize.add_argument("--model", type=Path, required=True)
    quantize.add_argument("--output", type=Path, required=True)
    quantize.add_argument("--method", required=True)
    quantize.add_argument("--kv-cache")
    quantize.add_argument("--calibration-dataset", type=Path)
    quantize.add_argument("--calibration-size", type=int, default=512)
    quantize.add_argument("--batch-size", type=int, default=1)

    leader = commands.add_parser("leader", help="print address, three server ports and the rendezvous port")
    leader.add_argument("--interface")
    leader.add_argument("--loopback", action="store_true")

    preflight = commands.add_parser("preflight", help="compare the world of ranks with the plan")
    preflight.add_argument("--world-size", type=int, required=True)
    preflight.add_argument("--ranks-per-node", type=int, required=True)
    preflight.add_argument("--gpus-per-node", type=int, required=True)
    preflight.add_argument("--component", type=int, default=0, help="of a heterogeneous job")
    preflight.add_argument("--phase", help="of disaggregated serving, on the nodes of that component")
    preflight.add_argument(
        "--engine", type=Path, action="append", default=[], help="an engine that is served"
    )
    preflight.add_argument(
        "--engine-ranks", type=int, action="append", default=[], help="each engine's ranks"
    )
    preflight.add_argument("--release", help="TensorRT-LLM that the plan is for")
    preflight.add_argument("--tokenizer", type=Path, help="its folder, if the engine has none")
    preflight.add_argument(
        "--paged-context-for", metavar="KEY", help="key that needs paged context attention"
    )
    preflight.add_argument("--model", type=Path, help="folder of a model that the server loads itself")
    preflight.add_argument(
        "--program", action="append", default=[], help="what must be on PATH for the server to start"
    )
    preflight.add_argument("--without-mpi", action="store_true")

    spawns = commands.add_parser("spawns", help="fail unless processes can be spawned by MPI")
    spawns.add_argument("--launcher", required=True, help="what started this: srun or mpirun")
    spawns.add_argument("--last", action="store_true", help="nothing else is tried")

    repository = commands.add_parser("repository", help="make the model repository from templates")
    repository.add_argument("--all-models", type=Path, required=True)


def _add_check_commands(commands: _Commands) -> None:
    """Add what the job of ``doctor --on-nodes`` runs."""
    check = commands.add_parser("node-check", help="one part of doctor --on-nodes")
    check.add_argument("part", choices=PARTS)
    check.add_argument("--child", action="store_true", help="do what may abort the process")

    commands.add_parser("unattended", help="wait until doctor --on-nodes no longer waits for this job")


def _add_server_commands(commands: _Commands) -> None:
    """Add what every rank runs, and the cleanup after it."""
    rank = commands.add_parser("rank", help="run one rank's server and watch it")
    rank.add_argument("--rank", type=int, required=True)
    rank.add_argument("--world-size", type=int, required=True)
    rank.add_argument("--ranks-per-node", type=int, required=True)
    rank.add_argument("--prefix", required=True)
    rank.add_argument("--ready-timeout-seconds", type=float, required=True)
    rank.add_argument("--hang-seconds", type=float)
    rank.add_argument("--spec", type=Path, required=True, help="how the server is started: server.json")
    rank.add_argument("--launcher", help="in place of the specification's")
    rank.add_argument("--step", default="serve", help="name of its logs and records")

    instances = commands.add_parser("instances", help="open the door, run all instances and watch them")
    instances.add_argument("--count", type=int, required=True)
    instances.add_argument("--minimum", type=int, required=True)
    instances.add_argument("--restarts", type=int, required=True)
    _add_door_options(instances)
    instances.add_argument("--key", action="store_true", help="ask for a key")
    instances.add_argument("--tls", action="store_true", help="encrypt")
    instances.add_argument("--certificate", type=Path, help="a given one with its private key")
    instances.add_argument(
        "--leaders", type=_leaders, required=True, help="NODE:INSTANCE,INSTANCE of each node"
    )
    instances.add_argument(
        "--roles", type=_numbers, default={}, help="PHASE:SERVER,SERVER of a disaggregated run"
    )
    instances.add_argument("--drain-seconds", type=float, default=0.0)
    instances.add_argument("--companion-start-seconds", type=float)
    instances.add_argument("--companion-silence-seconds", type=float)
    instances.add_argument("--hang-seconds", type=float)

    door = commands.add_parser("door", help="run the door of a further node")
    door.add_argument("--node", type=int, required=True)
    _add_door_options(door)
    door.add_argument("instances", type=int, nargs="+")

    launched = commands.add_parser("launched", help="start the server as the task of trtllm-llmapi-launch")
    launched.add_argument("--scratch", type=Path, required=True)

    alone = commands.add_parser("alone", help="run a program for which MPI starts alone")
    alone.add_argument("program", nargs=argparse.REMAINDER)

    sweep = commands.add_parser("sweep", help="remove what killed ranks left on this node")
    sweep.add_argument("prefix")

    spawn = commands.add_parser("spawn", help="start tasks on this machine, as srun does on a cluster")
    spawn.add_argument("--ntasks", type=int, required=True)
    spawn.add_argument("--output", required=True)
    spawn.add_argument("task", nargs=argparse.REMAINDER)


def _add_door_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--program", help="HAProxy; without it there is no door")
    command.add_argument("--kinds", default="", help="what the door listens for, separated by commas")
    command.add_argument("--interface")
    command.add_argument("--loopback", action="store_true")


def _add_companion_commands(commands: _Commands) -> None:
    stop = commands.add_parser("stop", help="request the server to stop")
    stop.add_argument("--by", required=True)
    stop.add_argument("--reason", required=True)

    heartbeat = commands.add_parser("heartbeat", help="show the server that the companion is alive")
    heartbeat.add_argument("--while-pid", type=int, required=True)


# Each command imports its own module: `runtime leader` must not pay for the others.


def _run(paths: RunPaths, options: argparse.Namespace) -> int:
    match options.command:
        case "begin":
            from trtllm_hpc.runtime.stage import begin

            return begin(paths, options.stage)
        case "end":
            from trtllm_hpc.runtime.stage import end

            end(paths, options.stage, options.exit_code)
        case "follow" | "next" | "unwanted" | "exclude" | "excluded" | "placed":
            return _renew(paths, options)
        case "engine":
            from trtllm_hpc.runtime.engine_cache.build import build_engine

            return build_engine(paths)
        case "gpus-per-node":
            from trtllm_hpc.runtime.engine_config import set_gpus_per_node

            set_gpus_per_node(options.checkpoint, options.gpus)
        case "quantize":
            from trtllm_hpc.runtime.quantize import Quantization, quantize

            quantize(Quantization(**_values_of(Quantization, options)))
        case "leader":
            from trtllm_hpc.runtime.node import free_ports

            print(_address(options), *free_ports(4))
        case "preflight":
            from trtllm_hpc.runtime.preflight import Expected, run_preflight

            ranks = options.engine_ranks or [options.world_size] * len(options.engine)
            options.engines = tuple(zip(options.engine, ranks, strict=True))
            options.paged_context = options.paged_context_for
            options.programs = tuple(options.program)
            expected = Expected(**_values_of(Expected, options))
            return run_preflight(paths, expected, with_mpi=not options.without_mpi)
        case "node-check":
            from trtllm_hpc.runtime.node_checks.run import check_node

            return check_node(paths, options.part, is_child=options.child)
        case "unattended":
            from trtllm_hpc.runtime.node_checks.run import wait_until_unattended

            wait_until_unattended(paths)
        case "spawns":
            from trtllm_hpc.runtime.mpi_spawn import check_spawn

            return check_spawn(paths, options.launcher, is_last=options.last)
        case "repository":
            from trtllm_hpc.runtime.model_repository.repository import make_repository

            return make_repository(paths, options.all_models)
        case _:
            return _run_rank_or_companion(paths, options)
    return ExitCode.OK


def _renew(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.bad_nodes import exclude_option, has_excluded_node
    from trtllm_hpc.runtime.renewal import change_of_next, may_follow, note_next, unwanted_next

    match options.command:
        case "follow":
            return ExitCode.OK if may_follow(paths, options.job, options.state) else ExitCode.CANCELLED
        case "next":
            note_next(paths, options.job or None)
        case "unwanted":
            print(unwanted_next(paths, options.exit_code) or "")
        case "exclude":
            if change := change_of_next(paths, options.job, options.state, sys.stdin):
                print(change)
        case "excluded":
            print(exclude_option(paths))
        case "placed":
            return ExitCode.CANCELLED if has_excluded_node(paths) else ExitCode.OK
    return ExitCode.OK


def _values_of(kind: type, options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that have the names of a dataclass's fields."""
    return {field.name: getattr(options, field.name) for field in fields(kind)}


def _numbers(text: str) -> dict[str, list[int]]:
    """Return the lists of ``context:0 generation:1,2``."""
    pairs = (word.partition(":") for word in text.split())
    return {name: [int(number) for number in numbers.split(",")] for name, _, numbers in pairs}


def _leaders(text: str) -> dict[int, list[int]]:
    return {int(node): numbers for node, numbers in _numbers(text).items()}


def _address(options: argparse.Namespace) -> str:
    from trtllm_hpc.runtime.node import own_address

    return "127.0.0.1" if options.loopback else own_address(options.interface)


def _door_options(options: argparse.Namespace) -> DoorOptions:
    from trtllm_hpc.runtime.door import DoorOptions

    return DoorOptions(options.program, tuple(options.kinds.split(",")), _address(options))


def _run_rank_or_companion(paths: RunPaths, options: argparse.Namespace) -> int:
    match options.command:
        case "rank":
            from trtllm_hpc.runtime.rank import RankSupervisor
            from trtllm_hpc.runtime.server_spec import RankOptions, read_spec

            options.spec = read_spec(options.spec)
            return RankSupervisor(paths, RankOptions(**_values_of(RankOptions, options))).run()
        case "instances":
            from trtllm_hpc.runtime.instances.instance import SupervisorOptions
            from trtllm_hpc.runtime.instances.supervisor import RunSupervisor

            options.door = None if options.program is None else _door_options(options)
            return RunSupervisor(paths, SupervisorOptions(**_values_of(SupervisorOptions, options))).run()
        case "door":
            from trtllm_hpc.runtime.door import run_node_door

            return run_node_door(paths, options.node, _door_options(options), options.instances)
        case "launched":
            from trtllm_hpc.runtime.launched_server import run_launched

            return run_launched(options.scratch)
        case "alone":
            from trtllm_hpc.runtime.alone import run_alone

            return run_alone(options.program)
        case "sweep":
            from trtllm_hpc.runtime.node import remove_leftovers

            for name in remove_leftovers(options.prefix):
                print(f"removed what a killed rank left: {name}")
        case "spawn":
            from trtllm_hpc.runtime.local_tasks import run_tasks

            return run_tasks(options.task, options.ntasks, options.output)
        case "stop":
            from trtllm_hpc.runtime.stop import request_stop

            request_stop(paths, by=options.by, reason=options.reason)
        case "heartbeat":
            from trtllm_hpc.runtime.stop import beat_while

            beat_while(paths, options.while_pid)
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
