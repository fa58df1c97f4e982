"""The command line of ``runtime.pyz``, which the rendered scripts call.

A job starts ``runtime.pyz`` hundreds of times, so each command imports only the modules that it needs
(:func:`run_command`).
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import BuildFailed, ExitCode, StartFailed
from trtllm_hpc.paths import STAGES, RunPaths
from trtllm_hpc.runtime.node_checks import PARTS

Option = tuple[str, dict[str, Any]]
"""An option's flag and the keyword arguments of its ``add_argument``."""


def _options(names: str, **settings: Any) -> list[Option]:
    """Return an option with the same settings for each of ``names``, which have spaces between them."""
    return [(name, settings) for name in names.split()]


def _needed(names: str, **settings: Any) -> list[Option]:
    return _options(names, required=True, **settings)


def _numbers(text: str) -> dict[str, list[int]]:
    """Parse ``context:0 generation:1,2`` into a list of numbers by name."""
    pairs = (word.partition(":") for word in text.split())
    return {name: [int(number) for number in numbers.split(",")] for name, _, numbers in pairs}


_STAGE = _options("stage", choices=STAGES)
_EXIT_CODE = _options("exit_code", type=int)
_ADDRESS = [*_options("--interface"), *_options("--loopback", action="store_true")]
_PROXY = [*_options("--program"), *_options("--kinds", default=""), *_ADDRESS]
_PROGRAM = _options("program", nargs=argparse.REMAINDER)

COMMANDS: dict[str, tuple[str, list[Option]]] = {
    # Called by the batch scripts before the server starts, and at their end
    "begin": ("stage.begin", _STAGE),
    "end": ("stage.end", [*_STAGE, *_EXIT_CODE]),
    "follow": ("renewal.may_follow", [*_needed("--job", dest="job_id"), *_options("--state", default="")]),
    "queue-next": ("renewal.queue_next", []),
    "unwanted": ("renewal.unwanted_next", _EXIT_CODE),
    "exclude": ("renewal.change_of_next", _needed("--job", dest="job_id")),
    "placed": ("bad_nodes.refuse_excluded", []),
    "engine": ("engine_cache.build.build_engine", []),
    "gpus-per-node": (
        "engine_config.set_gpus_per_node",
        [*_options("gpus", type=int), *_options("checkpoints", type=Path, nargs="+")],
    ),
    "leader": ("node.print_leader", _ADDRESS),
    "preflight": (
        "preflight.run_preflight",
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
    "network": ("network.check_network", [*_needed("--first --nodes", type=int), *_options("--interface")]),
    "stage-model": (
        "staging.stage_model",
        [*_needed("--source --link", type=Path), *_needed("--days --first", type=int)],
    ),
    "spawns": (
        "preflight.check_spawn",
        [*_needed("--launcher"), *_options("--last", action="store_true", dest="is_last")],
    ),
    "repository": ("model_repository.writer.make_repository", _needed("--all-models", type=Path)),
    "variants": (
        "variants.run_variants",
        [
            *(*_needed("--folder", type=Path), *_needed("--minutes", type=float)),
            *_options("names", nargs="+"),
        ],
    ),
    "gpus-in-use": ("variants.gpus_in_use", []),
    # Called by the job of doctor --on-nodes
    "node-check": (
        "node_checks.steps.check_node",
        [*_options("part", choices=PARTS), *_options("--child", action="store_true", dest="is_child")],
    ),
    "unattended": ("node_checks.exchange.wait_until_unattended", []),
    # Called by the scripts that run servers
    "rank": (
        "rank.run_rank",
        [
            *_needed("--rank --world-size --ranks-per-node", type=int),
            *(*_needed("--spec", type=Path), *_options("--launcher"), *_options("--step", default="serve")),
            *_needed("--ready-timeout-seconds", type=float),
            *(*_options("--hang-seconds", type=float), *_options("--prologue")),
            *_options("--wrapper", action="append", default=[]),
        ],
    ),
    "instances": (
        "instances.supervisor.run_instances",
        [
            *(*_needed("--count --restarts", type=int), *_PROXY),
            *_options("--key --tls", action="store_true"),
            *_needed("--leaders", type=_numbers, help="NODE:INSTANCE,INSTANCE of each node"),
            *_options("--roles", type=_numbers, default={}, help="PHASE:SERVER,SERVER if disaggregated"),
            *_options("--drain-seconds", type=float, default=0.0),
            *_options("--companion-start-seconds --companion-silence-seconds", type=float),
            *_options("--hang-seconds --idle-seconds", type=float),
        ],
    ),
    "proxy": (
        "proxy.run_node_proxy",
        [*_PROXY, *_needed("--node", type=int), *_options("instances", type=int, nargs="+")],
    ),
    "launched": ("launched_server.run_launched", _needed("--scratch", type=Path)),
    "alone": ("launched_server.run_alone", _PROGRAM),
    "sweep": ("node.sweep", _options("instance", nargs="?")),
    "spawn": ("process.run_tasks", [*_needed("--ntasks", type=int), *_needed("--output"), *_PROGRAM]),
    # Called beside a companion or a build
    "stop": ("stop.request_stop", _needed("--by --reason")),
    "heartbeat": ("stop.beat_while", _needed("--while-pid", type=int, dest="pid")),
    "watch-build": ("heartbeat.watch_build", _needed("--while-pid", type=int, dest="pid")),
}
"""Each command's function, relative to this package, and the options passed to the function by name."""

_WITHOUT_RUN = ("gpus-per-node", "leader", "variants", "gpus-in-use", "launched", "alone", "sweep", "spawn")
"""Commands whose functions do not take the run's paths."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(prog="runtime", description=__doc__)
    parser.add_argument("--run", type=Path, help="run folder, if it does not contain this file")
    parsers = parser.add_subparsers(required=True, dest="command")
    for name, (_, options) in COMMANDS.items():
        command_parser = parsers.add_parser(name)
        for flag, settings in options:
            command_parser.add_argument(flag, **settings)
    values = vars(parser.parse_args(arguments))
    # The zipapp is in the run folder, and sys.argv[0] is the zipapp's path.
    paths = RunPaths(values.pop("run") or Path(sys.argv[0]).resolve().parent)
    name = values.pop("command")
    if name in ("engine", "rank", "alone", "node-check"):  # these start programs of the image
        from trtllm_hpc.runtime.caches import use_caches

        use_caches(os.environ)
    try:
        return run_command(name, paths, values)
    except (BuildFailed, StartFailed) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        from trtllm_hpc.runtime.node import mount_of

        # A failed write (unlike a failed open) names no file: assume the run folder's file system.
        file = Path(os.fsdecode(error.filename)) if error.filename else paths.folder
        why = "your quota is used up" if error.errno == errno.EDQUOT else "No space left on device"
        print(
            f"error: {file} cannot be written: {why}, the file system {mount_of(file)}.\n"
            f"  next: free space there (df -h {mount_of(file)}; df -i for the number of files)",
            file=sys.stderr,
            flush=True,
        )
        return ExitCode.START


def run_command(name: str, paths: RunPaths, values: Mapping[str, Any]) -> int:
    """Call a command's function with the option values; return its exit code, or print its text."""
    module, _, function = COMMANDS[name][0].rpartition(".")
    call = getattr(import_module(f"trtllm_hpc.runtime.{module}"), function)
    result = call(**values) if name in _WITHOUT_RUN else call(paths, **values)
    if isinstance(result, str) and result:
        print(result)
    return result if isinstance(result, int) else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
