"""The command line of ``runtime.pyz``, which the rendered scripts call."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trtllm_hpc.errors import BuildFailed, ExitCode, StartFailed
from trtllm_hpc.paths import STAGES, RunPaths
from trtllm_hpc.runtime.node_checks import PARTS

if TYPE_CHECKING:
    from trtllm_hpc.runtime.proxy import ProxyOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="runtime", description=__doc__)
    parser.add_argument("--run", type=Path, help="run folder, if it does not contain this file")
    parsers = parser.add_subparsers(required=True, dest="name")
    for name, command in COMMANDS.items():
        of_command = parsers.add_parser(name, help=command.purpose)
        for option, how in command.options.items():
            of_command.add_argument(option, **how)
    options = parser.parse_args(arguments)
    # The zipapp lies in the run folder, and its path is the script's name.
    paths = RunPaths(options.run or Path(sys.argv[0]).resolve().parent)
    if options.name in ("engine", "rank", "alone", "node-check"):  # they start programs of the image
        from trtllm_hpc.runtime.caches import use_caches

        use_caches(os.environ)
    try:
        return _run(COMMANDS[options.name], paths, options)
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


@dataclass(frozen=True)
class _Command:
    """One command. ``function`` gets its options by name, and ``paths`` or all ``options`` if it has these.

    It returns an exit code, or ``None``, or whether it succeeded; a text is printed, unless it is empty.
    """

    purpose: str
    function: str | Callable[..., Any]
    """``module:name`` below ``runtime``: ``runtime leader`` must not pay for loading the other modules."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failure: ExitCode = ExitCode.START
    """The exit code if ``function`` returns ``False``."""


def _run(command: _Command, paths: RunPaths, options: Namespace) -> int:
    function = command.function
    if isinstance(function, str):
        module, _, name = function.partition(":")
        function = getattr(import_module(f"trtllm_hpc.runtime.{module}"), name)
    values = {name: value for name, value in vars(options).items() if name not in ("name", "run")}
    if "options" in function.__annotations__:
        values = {"options": options}
    if "paths" in function.__annotations__:
        values["paths"] = paths
    result = function(**values)
    if isinstance(result, bool):
        return ExitCode.OK if result else command.failure
    if isinstance(result, str) and result:
        print(result)
    return result if isinstance(result, int) else ExitCode.OK


# Functions that need more than their options ----------------------------------------------


def _values_of(kind: type, options: Namespace) -> dict[str, Any]:
    """Return the options that have the names of a dataclass's fields."""
    return {field.name: getattr(options, field.name) for field in fields(kind)}


def _exclude(paths: RunPaths, job_id: str, state: str) -> str | None:
    from trtllm_hpc.runtime.renewal import change_of_next

    return change_of_next(paths, job_id, state, sys.stdin)


def _quantize(options: Namespace) -> None:
    from trtllm_hpc.runtime.quantize import Quantization, quantize

    quantize(Quantization(**_values_of(Quantization, options)))


def _leader(interface: str | None, loopback: bool) -> str:
    from trtllm_hpc.runtime.node import free_ports

    return " ".join(map(str, (_address(interface, loopback=loopback), *free_ports(4))))


def _preflight(paths: RunPaths, options: Namespace) -> int:
    from trtllm_hpc.runtime.preflight import Expected, run_preflight

    ranks = options.engine_ranks or [options.world_size] * len(options.engine)
    options.engines = tuple(zip(options.engine, ranks, strict=True))
    return run_preflight(paths, Expected(**_values_of(Expected, options)), with_mpi=not options.without_mpi)


def _rank(paths: RunPaths, options: Namespace) -> int:
    from trtllm_hpc.runtime.rank import RankSupervisor
    from trtllm_hpc.runtime.server_spec import RankOptions, read_spec

    spec = read_spec(options.spec)
    options.spec = replace(spec, launcher=options.launcher or spec.launcher)
    return RankSupervisor(paths, RankOptions(**_values_of(RankOptions, options))).run()


def _instances(paths: RunPaths, options: Namespace) -> int:
    from trtllm_hpc.runtime.instances.instance import SupervisorOptions
    from trtllm_hpc.runtime.instances.supervisor import RunSupervisor

    options.proxy = None if options.program is None else _proxy_options(options)
    return RunSupervisor(paths, SupervisorOptions(**_values_of(SupervisorOptions, options))).run()


def _proxy(paths: RunPaths, options: Namespace) -> int:
    from trtllm_hpc.runtime.proxy import run_node_proxy

    return run_node_proxy(paths, options.node, _proxy_options(options), options.instances)


def _proxy_options(options: Namespace) -> ProxyOptions:
    from trtllm_hpc.runtime.proxy import ProxyOptions

    address = _address(options.interface, loopback=options.loopback)
    return ProxyOptions(options.program, tuple(options.kinds.split(",")), address)


def _address(interface: str | None, *, loopback: bool) -> str:
    from trtllm_hpc.runtime.node import own_address

    return "127.0.0.1" if loopback else own_address(interface)


def _sweep(prefix: str) -> None:
    from trtllm_hpc.runtime.node import remove_leftovers, remove_of_ended_jobs

    for name in [*remove_leftovers(prefix), *remove_of_ended_jobs()]:
        print(f"removed what a killed rank left: {name}")


# Options: where they become a dataclass, its fields say what they mean ---------------------

_Options: TypeAlias = dict[str, dict[str, Any]]

_TEXT: dict[str, Any] = {"required": True}
_NUMBER = {"type": int, "required": True}
_SECONDS = {"type": float, "required": True}
_FILE = {"type": Path, "required": True}
_MAYBE_TEXT: dict[str, Any] = {}
_MAYBE_FILE = {"type": Path}
_MAYBE_SECONDS = {"type": float}
_FLAG = {"action": "store_true"}


def _of(how: dict[str, Any], *names: str) -> _Options:
    """Return options of one kind."""
    return dict.fromkeys(names, how)


_STAGE: _Options = {"stage": {"choices": STAGES}}
_EXIT_CODE: _Options = {"exit_code": {"type": int}}
_PID: _Options = {"--while-pid": {**_NUMBER, "dest": "pid"}}
_LAST_JOB: _Options = {"--job": {**_TEXT, "dest": "job_id"}, "--state": {"default": ""}}
"""The job before this one, and its state in Slurm."""
_ADDRESS = {"--interface": _MAYBE_TEXT, "--loopback": _FLAG}
_PROXY = {"--program": _MAYBE_TEXT, "--kinds": {"default": ""}, **_ADDRESS}
_NETWORK = {"--first": _NUMBER, "--interface": _MAYBE_TEXT, "--minimum": _MAYBE_SECONDS}
_PROGRAM: _Options = {"command": {"nargs": argparse.REMAINDER}}


def _numbers(text: str) -> dict[str, list[int]]:
    """Return the lists of ``context:0 generation:1,2``."""
    pairs = (word.partition(":") for word in text.split())
    return {name: [int(number) for number in numbers.split(",")] for name, _, numbers in pairs}


def _counts(text: str) -> dict[str, int]:
    return {name: number for name, (number,) in _numbers(text).items()}


def _leaders(text: str) -> dict[int, list[int]]:
    return {int(node): numbers for node, numbers in _numbers(text).items()}


COMMANDS = {
    # What the batch scripts run before the server starts, and at their end
    "begin": _Command("record that a stage begins", "stage:begin", _STAGE),
    "end": _Command("record that a stage has ended", "stage:end", _STAGE | _EXIT_CODE),
    "follow": _Command(
        "prepare to serve after another job; fails if it is not to",
        "renewal:may_follow",
        _LAST_JOB,
        failure=ExitCode.CANCELLED,
    ),
    "queue-next": _Command(
        "submit the job that is to serve after this one", "renewal:queue_next", failure=ExitCode.SUBMISSION
    ),
    "unwanted": _Command(
        "print the next job's id if it is not to serve any more", "renewal:unwanted_next", _EXIT_CODE
    ),
    "exclude": _Command(
        "keep the next job from nodes at fault; prints what scontrol is to change", _exclude, _LAST_JOB
    ),
    "placed": _Command(
        "fail if this job has a node that it should not have",
        "bad_nodes:has_no_excluded_node",
        failure=ExitCode.CANCELLED,
    ),
    "engine": _Command("build the engine, or find it in the cache", "engine_cache.build:build_engine"),
    "gpus-per-node": _Command(
        "write the GPUs of a node into checkpoints",
        "engine_config:set_gpus_per_node",
        {"gpus": {"type": int}, "checkpoints": {"type": Path, "nargs": "+"}},
    ),
    "quantize": _Command(
        "quantize a checkpoint for the LLM API on PyTorch",
        _quantize,
        _of(_FILE, "--model", "--output")
        | {"--method": _TEXT, "--kv-cache": _MAYBE_TEXT, "--calibration-dataset": _MAYBE_FILE}
        | {"--calibration-size": {"type": int, "default": 512}, "--batch-size": {"type": int, "default": 1}},
    ),
    "leader": _Command("print address, three server ports and the rendezvous port", _leader, _ADDRESS),
    "preflight": _Command(
        "compare the world of ranks with the plan",
        _preflight,
        _of(_NUMBER, "--world-size", "--ranks-per-node", "--gpus-per-node")
        | {"--component": {"type": int, "default": 0}}
        | {"--engine": {"type": Path, "action": "append", "default": []}}
        | {"--engine-ranks": {"type": int, "action": "append", "default": []}}
        | {"--paged-context-for": {"dest": "paged_context"}}
        | {"--program": {"action": "append", "default": [], "dest": "programs"}}
        | _of(_MAYBE_TEXT, "--phase", "--release")
        | _of(_MAYBE_FILE, "--tokenizer", "--model")
        | {"--without-mpi": _FLAG},
    ),
    "network": _Command(
        "measure the network between nodes",
        "network:check_network",
        _NETWORK | {"--talking": _TEXT, "--nodes": _NUMBER},
    ),
    "nccl": _Command(
        "measure NCCL between the ranks of servers",
        "nccl:check_ranks",
        _NETWORK
        | _of(_TEXT, "--worlds", "--address")
        | _of(_NUMBER, "--ranks", "--ranks-per-node", "--port"),
    ),
    "stage-model": _Command(
        "copy the model to this node",
        "staging:stage_model",
        _of(_FILE, "--source", "--link") | _of(_NUMBER, "--days", "--first"),
    ),
    "spawns": _Command(
        "fail unless processes can be spawned by MPI; --last: nothing else is tried",
        "mpi_spawn:check_spawn",
        {"--launcher": _TEXT, "--last": {**_FLAG, "dest": "is_last"}},
    ),
    "repository": _Command(
        "make the model repository from templates",
        "model_repository.repository:make_repository",
        {"--all-models": _FILE},
    ),
    "variants": _Command(
        "run the variants of a sweep, one after another",
        "variants:run_variants",
        {"--folder": _FILE, "--minutes": _SECONDS, "names": {"nargs": "+"}},
    ),
    "gpus-in-use": _Command("print the GPUs whose memory somebody uses", "variants:gpus_in_use"),
    # The job of doctor --on-nodes
    "node-check": _Command(
        "one part of doctor --on-nodes; --child: do what may abort the process",
        "node_checks.run:check_node",
        {"part": {"choices": PARTS}, "--child": {**_FLAG, "dest": "is_child"}},
    ),
    "unattended": _Command(
        "wait until doctor --on-nodes no longer waits for this job", "node_checks.run:wait_until_unattended"
    ),
    # Servers
    "rank": _Command(
        "run one rank's server and watch it",
        _rank,
        _of(_NUMBER, "--rank", "--world-size", "--ranks-per-node")
        | {"--prefix": _TEXT, "--spec": _FILE, "--launcher": _MAYBE_TEXT, "--step": {"default": "serve"}}
        | {"--ready-timeout-seconds": _SECONDS, "--hang-seconds": _MAYBE_SECONDS},
    ),
    "instances": _Command(
        "open the proxy, run all instances and watch them",
        _instances,
        _of(_NUMBER, "--count", "--minimum", "--restarts")
        | _PROXY
        | _of(_FLAG, "--key", "--tls")
        | {"--leaders": {"type": _leaders, "required": True, "help": "NODE:INSTANCE,INSTANCE of each node"}}
        | {"--roles": {"type": _numbers, "default": {}, "help": "PHASE:SERVER,SERVER if disaggregated"}}
        | {"--minimums": {"type": _counts, "default": {}, "help": "PHASE:COUNT, how many servers must live"}}
        | {"--drain-seconds": {"type": float, "default": 0.0}}
        | _of(_MAYBE_SECONDS, "--companion-start-seconds", "--companion-silence-seconds")
        | _of(_MAYBE_SECONDS, "--hang-seconds", "--idle-seconds"),
    ),
    "proxy": _Command(
        "run the proxy of a further node",
        _proxy,
        _PROXY | {"--node": _NUMBER, "instances": {"type": int, "nargs": "+"}},
    ),
    "launched": _Command(
        "start the server as the task of trtllm-llmapi-launch",
        "launched_server:run_launched",
        {"--scratch": _FILE},
    ),
    "alone": _Command("run a program for which MPI starts alone", "alone:run_alone", _PROGRAM),
    "sweep": _Command("remove what killed ranks left on this node", _sweep, {"prefix": {}}),
    "spawn": _Command(
        "start tasks on this machine, as srun does on a cluster",
        "local_tasks:run_tasks",
        {"--ntasks": _NUMBER, "--output": _TEXT} | _PROGRAM,
    ),
    # Beside a companion or a build
    "stop": _Command("request the server to stop", "stop:request_stop", _of(_TEXT, "--by", "--reason")),
    "heartbeat": _Command("show the server that the companion is alive", "stop:beat_while", _PID),
    "watch-build": _Command("note a build that stands still", "heartbeat:watch_build", _PID),
}


if __name__ == "__main__":
    sys.exit(main())
