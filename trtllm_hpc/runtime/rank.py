"""The supervisor of one rank: starts the rank's server, watches it, and cleans up after it.

srun starts one supervisor as the task of each rank. :mod:`ending` has the rules for what ends the server and
for the task's exit code.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import ExitCode, StartFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.checks import step_world
from trtllm_hpc.runtime.ending import AFTER_LEADER_S, NO_SUPERVISOR, End, Observed, conclude, decide
from trtllm_hpc.runtime.gpus import GpuWatch
from trtllm_hpc.runtime.heartbeat import Heartbeat, watch_ranks
from trtllm_hpc.runtime.launched_server import LaunchedServer, host_variables
from trtllm_hpc.runtime.leader import Leader
from trtllm_hpc.runtime.node import (
    interface_towards,
    make_owned,
    make_private,
    remove_leftovers,
    remove_turns,
    shm_prefix,
    step_tasks,
)
from trtllm_hpc.runtime.process import (
    adopt_orphans,
    allow_large_requests,
    kill_descendants,
    name_of,
    on_signals,
    start_bound,
)
from trtllm_hpc.runtime.proxy import SOCKETS_VARIABLE, remove_abandoned
from trtllm_hpc.runtime.records import RankRecord, StopRequest, rank_records
from trtllm_hpc.runtime.server_spec import RankOptions, read_spec
from trtllm_hpc.runtime.servers import start_command
from trtllm_hpc.runtime.servers.triton import ModelProcesses

Child = subprocess.Popen[bytes] | LaunchedServer
_TICK_S = 0.2
_CAUSE_S = AFTER_LEADER_S / 2
"""Seconds that a worker whose server has ended waits for the cause."""


def run_rank(paths: RunPaths, rank: int, spec: Path, launcher: str | None, **options: Any) -> int:
    """Run one rank of the server that the file ``spec`` describes; return the rank's exit code.

    ``launcher`` replaces the file's launcher; ``options`` are further fields of RankOptions. Raises
    StartFailed if the file is damaged.
    """
    server, prefix = read_spec(spec), shm_prefix(os.environ["TRTLLM_HPC_INSTANCE"], rank)
    server = replace(server, launcher=launcher or server.launcher)
    return RankSupervisor(paths, RankOptions(rank=rank, prefix=prefix, spec=server, **options)).run()


class RankSupervisor:
    """Runs one rank's server to its end."""

    def __init__(self, paths: RunPaths, options: RankOptions) -> None:
        self._paths = paths
        self._options = options
        self._record = RankRecord.begun(options.step, options.rank, options.world_size)
        self._record_file = paths.rank_record(options.step, options.rank)
        self._failure_file = paths.failure_reason(options.step, options.rank)
        self._signal: str | None = None
        self._decided: End | None = None
        self._kill_at: float | None = None
        own = paths.rank_heartbeat(options.step, options.rank)
        self._heartbeat = Heartbeat(own)
        parent = os.getppid()
        # Not slurmstepd: another launcher has started this process, and there is no step daemon to watch.
        self._step_daemon = parent if name_of(parent) == "slurmstepd" else None
        self._models = ModelProcesses()
        self._gpus = GpuWatch.of_rank(paths, options)
        watched = range(options.world_size if options.rank == 0 else 1)
        self._ranks = watch_ranks(paths, options.step, watched, options.hang_seconds, own)
        self._leader = Leader(paths, options) if options.rank == 0 else None

    def run(self) -> int:
        """Start the server and watch it to its end; return the rank's exit code."""
        on_signals(self._note_signal)
        adopt_orphans()
        self._failure_file.unlink(missing_ok=True)
        self._record.write(self._record_file)
        try:
            # The folder is made here and not in rank.sh, which a signal could end before it removes the
            # folder.
            scratch, _ = make_owned(self._options.prefix)
            child = self._start(scratch)
        except StartFailed as error:
            return self._not_started(error.message, error.hint)
        except OSError as error:
            sentence = f"{self._options.spec.leader[0]} cannot be started: {error.strerror}"
            return self._not_started(sentence, "look at triton.server in the cluster profile")
        try:
            self._gpus.begin()
            self._watch(child)
            end, deadline = None, time.monotonic() + _CAUSE_S
            while end is None:
                seen, is_over = self._observe(has_ended=True), time.monotonic() > deadline
                end = conclude(seen, self._decided, child.returncode, is_over=is_over)
                if end is None:
                    time.sleep(_TICK_S)
        finally:
            self._gpus.end()
            if self._leader is not None:
                self._leader.withdraw()
            kill_descendants()
            remove_leftovers(self._options.prefix)
            remove_turns()
            if SOCKETS_VARIABLE in os.environ:
                remove_abandoned(Path(os.environ[SOCKETS_VARIABLE]))
        code, end = child.returncode, self._write_end(child.returncode, end)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        # A companion's reason ends with its own exit code, usually the same: do not print it twice.
        reason = (end.reason or "").removesuffix(f" ({how})")
        stream, word = (sys.stderr, "error: ") if end.exit_code else (sys.stdout, "")
        because = f": {reason}" if reason else ""
        print(f"{word}rank {self._options.rank} ended ({how}){because}", file=stream, flush=True)
        if self._leader is not None and end.stopped_by == NO_SUPERVISOR:
            self._leader.give_up_supervisor()
        return end.exit_code

    # Starting -----------------------------------------------------------------------

    def _start(self, scratch: Path) -> Child:
        tasks = step_world(step_tasks(), self._options.world_size)
        if tasks is not None:
            raise StartFailed(tasks.message, hint=tasks.hint)
        spec = self._options.spec
        words, own_variables = start_command(self._paths, self._options, scratch)
        environment = {**os.environ, **own_variables}
        towards = interface_towards(os.environ.get("MASTER_ADDR", "127.0.0.1"))
        if (interface := os.environ.get("TRTLLM_HPC_INTERFACES", towards)) is not None:
            # The profile's interfaces, or the interface towards rank 0.
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                environment.setdefault(name, interface)
        environment |= host_variables(environment, self._record.host)
        environment["TRTLLM_HPC_RANK_FAILURE"] = str(self._failure_file)
        environment["TRTLLM_HPC_SCRATCH"] = str(scratch)
        for name, value in spec.environment.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        before = [*self._options.before_server(), *shlex.split(spec.launcher or "")]
        print(f"rank {self._options.rank} on {self._record.host}: {' '.join([*before, *words])}", flush=True)
        allow_large_requests()
        if spec.launcher is None:
            return start_bound([*before, *words], environment)
        chooses = self._options.rank == 0 and Path(spec.launcher).name == "trtllm-llmapi-launch"
        return LaunchedServer(
            before,
            words,
            environment,
            scratch,
            self._paths.runtime,
            chooses_port=chooses,
            later=self._options.prologue is not None,
        )

    def _not_started(self, sentence: str, hint: str | None) -> int:
        """Print and record why the server was not started; return the exit code."""
        # The end is recorded, too, because a record without an end looks like that of a killed rank.
        remove_leftovers(self._options.prefix)
        self._write_end(ExitCode.START, End(reason=sentence, exit_code=ExitCode.START))
        print(f"error: {sentence}.\n  next: {hint}", file=sys.stderr, flush=True)
        return ExitCode.START

    # Watching -----------------------------------------------------------------------

    def _note_signal(self, name: str) -> None:
        # A handler must do no more: the interrupted code may hold a lock.
        self._signal = self._signal or name

    def _watch(self, child: Child) -> None:
        while child.poll() is None:
            make_private(self._options.prefix)
            self._heartbeat.beat()
            if seen := self._gpus.look():
                self._record = replace(self._record, **seen)
                with suppress(OSError):  # the server goes on even on a full disk
                    self._record.write(self._record_file)
            end = decide(self._observe(), self._decided)
            if end is not None and end != self._decided:
                self._obey(end, child)
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self._kill_at = None
                print(f"rank {self._options.rank} has not ended in time: it is killed", flush=True)
                child.kill()
            time.sleep(_TICK_S)

    def _observe(self, *, has_ended: bool = False) -> Observed:
        """Observe everything that the rules need; ``has_ended``: this rank's server has ended."""
        step, rank = self._options.step, self._options.rank
        is_serving = self._decided is None and not has_ended
        leader = None if rank == 0 else RankRecord.read(self._paths.rank_record(step, 0))
        seen = Observed(
            step,
            rank,
            self._options.world_size,
            self._signal,
            StopRequest.read(self._paths.stop_request),
            leader_ended=leader is not None and leader.ended_at is not None,
            step_daemon_lost=self._step_daemon is not None and os.getppid() != self._step_daemon,
            dead_model=self._models.dead() if is_serving else None,
            ranks=self._ranks.look(),
        )
        seen = self._with_records(seen, has_ended=has_ended)
        if self._leader is None or not is_serving or seen.running(seen.ranks.silent):
            return seen
        return self._with_records(self._leader.tick(seen))

    def _with_records(self, seen: Observed, *, has_ended: bool = False) -> Observed:
        """Add the records of all ranks only if a rule may need them: there may be thousands of files."""
        if seen.records or (seen.is_quiet and not has_ended):
            return seen
        return replace(seen, records=rank_records(self._paths, seen.step))

    def _obey(self, end: End, child: Child) -> None:
        before, self._decided = self._decided, end
        kill_at = time.monotonic() + end.grace_s
        # Never later than decided before: after a signal, Slurm waits no longer because a cause was found.
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        if before is not None and before.stopped_by == end.stopped_by:
            return
        rank = self._options.rank
        print(f"rank {rank} stops: requested by {end.stopped_by}, {end.reason}", flush=True)
        if self._leader is not None:
            self._leader.withdraw()
        # A worker's server ends by itself after the leader's server, unless a rank is at fault.
        if self._leader is not None or end.blames is not None:
            child.terminate()

    # Ending -------------------------------------------------------------------------

    def _write_end(self, returncode: int, end: End) -> End:
        """Record the end, with the server's own reason unless a rank is blamed; return the recorded end."""
        with suppress(FileNotFoundError):
            reason = self._failure_file.read_text(encoding="utf-8").strip()
            end = end if end.blames is not None else replace(end, reason=reason or end.reason)
        replace(
            self._record,
            ended_at=time.time(),
            exit_code=returncode,
            task_exit_code=end.exit_code,
            stopped_by=end.stopped_by,
            reason=end.reason,
            blames=end.blames,
            gpus=self._gpus.last,
        ).write(self._record_file)
        return end
