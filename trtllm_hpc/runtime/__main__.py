"""The zipapp's command line: what the rendered scripts call ``runtime``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import STAGES, RunPaths

if TYPE_CHECKING:
    _Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    # The zipapp lies in the run folder, and its path is the script's name.
    paths = RunPaths(options.run or Path(sys.argv[0]).resolve().parent)
    code: int = options.function(paths, options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runtime", description=__doc__)
    parser.add_argument("--run", type=Path, help="run folder, if it is not where this file lies")
    commands = parser.add_subparsers(required=True)
    _stage_commands(commands)
    _server_commands(commands)
    _companion_commands(commands)
    return parser


def _stage_commands(commands: _Commands) -> None:
    """What the batch scripts run before there is a server."""
    begin = commands.add_parser("begin", help="a stage starts")
    begin.add_argument("stage", choices=STAGES)
    begin.set_defaults(function=_begin)

    end = commands.add_parser("end", help="a stage has ended")
    end.add_argument("stage", choices=STAGES)
    end.add_argument("exit_code", type=int)
    end.set_defaults(function=_end)

    engine = commands.add_parser("engine", help="build the engine, or find it in the cache")
    engine.set_defaults(function=_engine)

    checkpoint = commands.add_parser("gpus-per-node", help="tell a checkpoint the GPUs of a node")
    checkpoint.add_argument("gpus", type=int)
    checkpoint.add_argument("checkpoint", type=Path, nargs="+")
    checkpoint.set_defaults(function=_gpus_per_node)

    leader = commands.add_parser("leader", help="print address, three server ports and the rendezvous port")
    leader.add_argument("--interface")
    leader.add_argument("--loopback", action="store_true")
    leader.set_defaults(function=_leader)

    preflight = commands.add_parser("preflight", help="check the world before a server starts")
    preflight.add_argument("--world-size", type=int, required=True)
    preflight.add_argument("--ranks-per-node", type=int, required=True)
    preflight.add_argument("--gpus-per-node", type=int, required=True)
    preflight.add_argument("--engine", type=Path, help="left out where the server loads a model by itself")
    preflight.add_argument("--engine-ranks", type=int, help="ranks of the engine; the world's unless told")
    preflight.add_argument("--release", help="TensorRT-LLM that the plan is for")
    preflight.add_argument("--tokenizer", type=Path, help="its folder, where the engine has none")
    preflight.add_argument("--paged-context-for", metavar="KEY", help="what needs paged context attention")
    preflight.add_argument("--without-mpi", action="store_true")
    preflight.set_defaults(function=_preflight)

    repository = commands.add_parser("repository", help="make the model repository from templates")
    repository.add_argument("--all-models", type=Path, required=True)
    repository.set_defaults(function=_repository)


def _server_commands(commands: _Commands) -> None:
    """What every rank runs, and what it leaves."""
    rank = commands.add_parser("rank", help="run one rank's server and watch it")
    rank.add_argument("--rank", type=int, required=True)
    rank.add_argument("--world-size", type=int, required=True)
    rank.add_argument("--ranks-per-node", type=int, required=True)
    rank.add_argument("--prefix", required=True)
    rank.add_argument("--scratch", type=Path, required=True)
    rank.add_argument("--ready-timeout-seconds", type=float, required=True)
    rank.add_argument("--companion-start-seconds", type=float)
    rank.add_argument("--companion-silence-seconds", type=float)
    rank.add_argument("--server", required=True)
    rank.add_argument("--launcher")
    rank.add_argument("server_arguments", nargs="*")
    rank.set_defaults(function=_rank)

    launched = commands.add_parser("launched", help="what trtllm-llmapi-launch is given to start")
    launched.add_argument("--scratch", type=Path, required=True)
    launched.set_defaults(function=_launched)

    sweep = commands.add_parser("sweep", help="remove what killed ranks left on this node")
    sweep.add_argument("prefix")
    sweep.set_defaults(function=_sweep)

    spawn = commands.add_parser("spawn", help="start tasks on this machine, as srun does on a cluster")
    spawn.add_argument("--ntasks", type=int, required=True)
    spawn.add_argument("--output", required=True)
    spawn.add_argument("command", nargs=argparse.REMAINDER)
    spawn.set_defaults(function=_spawn)


def _companion_commands(commands: _Commands) -> None:
    stop = commands.add_parser("stop", help="ask the server to stop")
    stop.add_argument("--by", required=True)
    stop.add_argument("--reason", required=True)
    stop.set_defaults(function=_stop)

    heartbeat = commands.add_parser("heartbeat", help="tell the server that the companion lives")
    heartbeat.add_argument("--while-pid", type=int, required=True)
    heartbeat.set_defaults(function=_heartbeat)


# Each command imports its own module: `runtime leader` must not pay for the others.


def _begin(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.stage import begin

    return begin(paths, options.stage)


def _end(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.stage import end

    end(paths, options.stage, options.exit_code)
    return ExitCode.OK


def _engine(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.engine_cache.build import build_engine

    return build_engine(paths)


def _gpus_per_node(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.checkpoint import NoCheckpoint, tell_gpus_per_node

    try:
        tell_gpus_per_node(options.checkpoint, options.gpus)
    except NoCheckpoint as error:
        print(f"error: {error}.", file=sys.stderr, flush=True)
        return ExitCode.BUILD
    return ExitCode.OK


def _leader(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.network import free_ports, own_address

    address = "127.0.0.1" if options.loopback else own_address(options.interface)
    print(address, *free_ports(4))
    return ExitCode.OK


def _preflight(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.preflight import run_preflight
    from trtllm_hpc.runtime.verdict import Expected

    expected = Expected(
        options.world_size,
        options.ranks_per_node,
        options.gpus_per_node,
        options.engine,
        options.engine_ranks or options.world_size,
        options.release,
        options.tokenizer,
        options.paged_context_for,
    )
    return run_preflight(paths, expected, with_mpi=not options.without_mpi)


def _repository(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.model_repository.command import make_repository

    return make_repository(paths, options.all_models)


def _rank(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.rank import RankOptions, Supervisor

    values = {name: value for name, value in vars(options).items() if name not in ("run", "function")}
    values["server_arguments"] = tuple(options.server_arguments)
    return Supervisor(paths, RankOptions(**values)).run()


def _launched(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.launched import run_launched

    return run_launched(options.scratch)


def _sweep(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.sweep import sweep

    for name in sweep(options.prefix):
        print(f"removed what a killed rank left: {name}")
    return ExitCode.OK


def _spawn(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.spawn import spawn

    return spawn(options.command, options.ntasks, options.output)


def _stop(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.stop import request_stop

    request_stop(paths, by=options.by, reason=options.reason)
    return ExitCode.OK


def _heartbeat(paths: RunPaths, options: argparse.Namespace) -> int:
    from trtllm_hpc.runtime.stop import beat_while

    beat_while(paths, options.while_pid)
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
