"""The command line of ``runtime.pyz``, which the rendered scripts call."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
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
    _add_check_commands(commands)
    _add_server_commands(commands)
    _add_companion_commands(commands)
    return parser


_WORD: dict[str, Any] = {"required": True}
_NUMBER: dict[str, Any] = {"type": int, "required": True}
_FILE: dict[str, Any] = {"type": Path, "required": True}
_FLAG: dict[str, Any] = {"action": "store_true"}
_MAYBE_WORD: dict[str, Any] = {}
_MAYBE_FILE: dict[str, Any] = {"type": Path}
_MAYBE_SECONDS: dict[str, Any] = {"type": float}


def _add(commands: _Commands, name: str, purpose: str, **options: dict[str, Any]) -> argparse.ArgumentParser:
    """Add a command with its options; where these become a dataclass, its fields say what they mean."""
    command = commands.add_parser(name, help=purpose)
    for option, how in options.items():
        command.add_argument(f"--{option.replace('_', '-')}", **how)
    return command


def _add_stage_commands(commands: _Commands) -> None:
    """Add what the batch scripts run before the server starts."""
    begin = _add(commands, "begin", "record that a stage begins")
    begin.add_argument("stage", choices=STAGES)
    end = _add(commands, "end", "record that a stage has ended")
    end.add_argument("stage", choices=STAGES)
    end.add_argument("exit_code", type=int)
    # The job before this one, and its state in Slurm.
    purpose = "prepare to serve after another job; fails if it is not to"
    _add(commands, "follow", purpose, job=_WORD, state=_WORD)
    _add(commands, "queue-next", "submit the job that is to serve after this one")
    unwanted = _add(commands, "unwanted", "print the next job's id if it is not to serve any more")
    unwanted.add_argument("exit_code", type=int)
    # The job whose server has ended, and its state in Slurm.
    purpose = "keep the next job from nodes at fault; prints what scontrol is to change"
    _add(commands, "exclude", purpose, job=_WORD, state={"default": ""})
    _add(commands, "placed", "fail if this job has a node that it should not have")
    _add(commands, "engine", "build the engine, or find it in the cache")
    checkpoint = _add(commands, "gpus-per-node", "write the GPUs of a node into a checkpoint")
    checkpoint.add_argument("gpus", type=int)
    checkpoint.add_argument("checkpoint", type=Path, nargs="+")
    _add(
        commands,
        "quantize",
        "quantize a checkpoint for the LLM API on PyTorch",
        **dict.fromkeys(("model", "output"), _FILE),
        method=_WORD,
        kv_cache=_MAYBE_WORD,
        calibration_dataset=_MAYBE_FILE,
        calibration_size={"type": int, "default": 512},
        batch_size={"type": int, "default": 1},
    )
    purpose = "print address, three server ports and the rendezvous port"
    _add(commands, "leader", purpose, interface=_MAYBE_WORD, loopback=_FLAG)
    _add(
        commands,
        "preflight",
        "compare the world of ranks with the plan",
        **dict.fromkeys(("world_size", "ranks_per_node", "gpus_per_node"), _NUMBER),
        component={"type": int, "default": 0},
        engine={"type": Path, "action": "append", "default": []},
        engine_ranks={"type": int, "action": "append", "default": []},
        paged_context_for={"dest": "paged_context"},
        program={"action": "append", "default": [], "dest": "programs"},
        **dict.fromkeys(("phase", "release"), _MAYBE_WORD),
        **dict.fromkeys(("tokenizer", "model"), _MAYBE_FILE),
        without_mpi=_FLAG,
    )
    where = {"first": _NUMBER, "interface": _MAYBE_WORD, "minimum": {"type": float}}
    _add(commands, "network", "measure the network between nodes", talking=_WORD, nodes=_NUMBER, **where)
    where |= {
        "worlds": _WORD,
        "address": _WORD,
        **dict.fromkeys(("ranks", "ranks_per_node", "port"), _NUMBER),
    }
    _add(commands, "nccl", "measure NCCL between the ranks of servers", **where)
    paths_of = dict.fromkeys(("source", "link"), _FILE)
    _add(commands, "stage-model", "copy the model to this node", **paths_of, days=_NUMBER, first=_NUMBER)
    spawns = _add(commands, "spawns", "fail unless processes can be spawned by MPI", launcher=_WORD)
    spawns.add_argument("--last", action="store_true", help="nothing else is tried")
    _add(commands, "repository", "make the model repository from templates", all_models=_FILE)
    purpose = "run the variants of a sweep, one after another"
    variants = _add(commands, "variants", purpose, folder=_FILE, minutes={"type": float, "required": True})
    variants.add_argument("names", nargs="+")
    _add(commands, "gpus-in-use", "print the GPUs whose memory somebody uses")


def _add_check_commands(commands: _Commands) -> None:
    """Add what the job of ``doctor --on-nodes`` runs."""
    check = _add(commands, "node-check", "one part of doctor --on-nodes")
    check.add_argument("part", choices=PARTS)
    check.add_argument("--child", action="store_true", help="do what may abort the process")
    _add(commands, "unattended", "wait until doctor --on-nodes no longer waits for this job")


def _add_server_commands(commands: _Commands) -> None:
    """Add what every rank runs, and the cleanup after it."""
    _add(
        commands,
        "rank",
        "run one rank's server and watch it",
        **dict.fromkeys(("rank", "world_size", "ranks_per_node"), _NUMBER),
        prefix=_WORD,
        ready_timeout_seconds={"type": float, "required": True},
        hang_seconds=_MAYBE_SECONDS,
        spec=_FILE,
        launcher=_MAYBE_WORD,
        step={"default": "serve"},
    )
    of_door = {"program": _MAYBE_WORD, "kinds": {"default": ""}, "interface": _MAYBE_WORD, "loopback": _FLAG}
    _add(
        commands,
        "instances",
        "open the door, run all instances and watch them",
        **dict.fromkeys(("count", "minimum", "restarts"), _NUMBER),
        **of_door,
        **dict.fromkeys(("key", "tls"), _FLAG),
        certificate=_MAYBE_FILE,
        leaders={"type": _leaders, "required": True, "help": "NODE:INSTANCE,INSTANCE of each node"},
        roles={"type": _numbers, "default": {}, "help": "PHASE:SERVER,SERVER of a disaggregated run"},
        minimums={"type": _counts, "default": {}, "help": "PHASE:COUNT, how many servers must live"},
        drain_seconds={"type": float, "default": 0.0},
        **dict.fromkeys(("companion_start_seconds", "companion_silence_seconds"), _MAYBE_SECONDS),
        **dict.fromkeys(("hang_seconds", "idle_seconds"), _MAYBE_SECONDS),
    )
    door = _add(commands, "door", "run the door of a further node", node=_NUMBER, **of_door)
    door.add_argument("instances", type=int, nargs="+")
    _add(commands, "launched", "start the server as the task of trtllm-llmapi-launch", scratch=_FILE)
    alone = _add(commands, "alone", "run a program for which MPI starts alone")
    alone.add_argument("program", nargs=argparse.REMAINDER)
    sweep = _add(commands, "sweep", "remove what killed ranks left on this node")
    sweep.add_argument("prefix")
    purpose = "start tasks on this machine, as srun does on a cluster"
    spawn = _add(commands, "spawn", purpose, ntasks=_NUMBER, output=_WORD)
    spawn.add_argument("task", nargs=argparse.REMAINDER)


def _add_companion_commands(commands: _Commands) -> None:
    _add(commands, "stop", "request the server to stop", by=_WORD, reason=_WORD)
    _add(commands, "heartbeat", "show the server that the companion is alive", while_pid=_NUMBER)
    _add(commands, "watch-build", "note a build that stands still", while_pid=_NUMBER)


# Each command imports its own module: `runtime leader` must not pay for the others.


def _run(paths: RunPaths, options: argparse.Namespace) -> int:
    match options.command:
        case "begin":
            from trtllm_hpc.runtime.stage import begin

            return begin(paths, options.stage)
        case "end":
            from trtllm_hpc.runtime.stage import end

            end(paths, options.stage, options.exit_code)
        case "follow" | "queue-next" | "unwanted" | "exclude" | "placed":
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
            expected = Expected(**_values_of(Expected, options))
            return run_preflight(paths, expected, with_mpi=not options.without_mpi)
        case "network":
            from trtllm_hpc.runtime.network import check_network

            return check_network(paths, options)
        case "nccl":
            from trtllm_hpc.runtime.nccl import check_ranks

            return check_ranks(paths, options)
        case "stage-model":
            from trtllm_hpc.runtime.staging import stage_model

            stage_model(paths, options.source, options.link, options.days, options.first)
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
    from trtllm_hpc.runtime.bad_nodes import has_excluded_node
    from trtllm_hpc.runtime.renewal import change_of_next, may_follow, queue_next, unwanted_next

    match options.command:
        case "follow":
            return ExitCode.OK if may_follow(paths, options.job, options.state) else ExitCode.CANCELLED
        case "queue-next":
            return ExitCode.OK if queue_next(paths) else ExitCode.SUBMISSION
        case "unwanted":
            print(unwanted_next(paths, options.exit_code) or "")
        case "exclude":
            if change := change_of_next(paths, options.job, options.state, sys.stdin):
                print(change)
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


def _counts(text: str) -> dict[str, int]:
    return {name: number for name, (number,) in _numbers(text).items()}


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

            spec = read_spec(options.spec)
            options.spec = replace(spec, launcher=options.launcher or spec.launcher)
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
            from trtllm_hpc.runtime.node import remove_leftovers, remove_of_ended_jobs

            for name in [*remove_leftovers(options.prefix), *remove_of_ended_jobs()]:
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
        case "variants":
            from trtllm_hpc.runtime.variants import run_variants

            return run_variants(options.folder, options.names, options.minutes)
        case "gpus-in-use":
            from trtllm_hpc.runtime.variants import gpus_in_use

            for line in gpus_in_use():
                print(line)
        case "watch-build":
            from trtllm_hpc.runtime.heartbeat import watch_build

            watch_build(paths, options.while_pid)
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
