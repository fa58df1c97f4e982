"""One rank of the server: start it, watch it, and leave nothing behind.

The supervisor is the task that srun starts. It ends when the server ends, with the server's
exit code; on rank 0 it also publishes the endpoint, obeys stop requests and notices when the
companion's heartbeat stops.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trtllm_hpc.errors import FAIL, ExitCode, StartFailed
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.alone import host_variables
from trtllm_hpc.runtime.caches import begin_tuning, copy_tuning
from trtllm_hpc.runtime.checks import step_world
from trtllm_hpc.runtime.door import SOCKETS_VARIABLE, remove_abandoned
from trtllm_hpc.runtime.heartbeat import Heartbeat, watch_ranks
from trtllm_hpc.runtime.launched_server import LaunchedServer
from trtllm_hpc.runtime.leader import make_leader, rank_name
from trtllm_hpc.runtime.model_processes import ModelProcesses
from trtllm_hpc.runtime.node import (
    SCRATCH,
    interface_towards,
    make_private,
    remove_leftovers,
    step_tasks,
)
from trtllm_hpc.runtime.process import (
    adopt_orphans,
    allow_large_requests,
    kill_descendants,
    on_signals,
    start_bound,
    step_daemon,
)
from trtllm_hpc.runtime.python_environment import PythonEnvironment
from trtllm_hpc.runtime.records import RankRecord, StopRequest, leader_has_ended, rank_records
from trtllm_hpc.runtime.server_spec import RankOptions
from trtllm_hpc.runtime.servers import driver_of

Child = subprocess.Popen[bytes] | LaunchedServer
_TICK_S = 0.2
_SIGNAL_GRACE_S = 4.0
"""From a signal to SIGKILL. Slurm itself kills after KillWait, 30 s unless the site says less."""
_STOP_GRACE_S = 45.0
"""From a stop request to SIGKILL: requests in flight may finish first (Triton's exit timeout is 30 s)."""
_FAULT_GRACE_S = 5.0
"""The same when the server serves nobody any more."""
_AFTER_LEADER_S = 20.0
"""How long a worker may outlive the leader."""


class Supervisor:
    """Runs one rank's server to its end."""

    def __init__(self, paths: RunPaths, options: RankOptions) -> None:
        self._paths = paths
        self._options = options
        self._record = RankRecord(
            step=options.step,
            rank=options.rank,
            world_size=options.world_size,
            job_id=os.environ.get("TRTLLM_HPC_JOB_ID", ""),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=time.time(),
        )
        self._failure_file = paths.failure_reason(options.step, options.rank)
        self._signal: str | None = None
        self._stopped_by: str | None = None
        self._reason: str | None = None
        self._kill_at: float | None = None
        self._outlives_leader = False
        self._killed = False
        self._failed: ExitCode | None = None
        self._blames: int | None = None
        self._kept_tuning: Path | None = None
        own = paths.rank_heartbeat(options.step, options.rank)
        self._heartbeat = Heartbeat(own)
        self._step_daemon = step_daemon()
        self._models = ModelProcesses()
        self._leader_watch = watch_ranks(paths, options.step, range(1), options.hang_seconds, own)
        self._server = driver_of(paths, options)
        self._leader = None
        if options.rank == 0:
            self._leader = make_leader(paths, options, self._server, self._record.job_id)

    def run(self) -> int:
        """Start the server, watch it to its end; returns the rank's exit code."""
        on_signals(self._note_signal)
        adopt_orphans()
        self._failure_file.unlink(missing_ok=True)
        self._record.write(self._paths.rank_record(self._options.step, self._options.rank))
        try:
            scratch = self._make_scratch()
            environment = PythonEnvironment(scratch)
            child = self._start(scratch)
        except StartFailed as error:
            return self._not_started(error.message, error.hint)
        except OSError as error:
            sentence = f"{self._options.spec.leader[0]} cannot be started: {error.strerror}"
            return self._not_started(sentence, "look at triton.server in the cluster profile")
        try:
            environment.begin()
            self._watch(child)
            code = self._exit_code(child.returncode)
        finally:
            environment.end()
            if self._leader is not None:
                self._leader.withdraw()
            kill_descendants()
            if self._kept_tuning is not None:
                copy_tuning(self._paths.tuning(self._options.step), self._kept_tuning)
            remove_leftovers(self._options.prefix)
            if self._options.instance is not None:
                remove_abandoned(Path(os.environ[SOCKETS_VARIABLE]))
        self._write_end(child.returncode)
        self._report(child.returncode, code)
        return code

    # Starting -----------------------------------------------------------------------

    def _make_scratch(self) -> Path:
        """Make this rank's own folder; not in ``rank.sh``: from now on no signal leaves it behind."""
        return Path(tempfile.mkdtemp(prefix=self._options.prefix, dir=SCRATCH))

    def _start(self, scratch: Path) -> Child:
        tasks = step_world(step_tasks(), self._options.world_size)
        if tasks.state == FAIL:
            raise StartFailed(tasks.message, hint=tasks.hint)
        spec, server = self._options.spec, self._server.command(scratch)
        launcher = self._options.launcher or spec.launcher
        environment = {**os.environ, **server.environment, **self._interface_variables()}
        environment |= host_variables(environment, self._record.host)
        ranks, own_file = self._options.world_size, self._paths.tuning(self._options.step)
        self._kept_tuning = begin_tuning(own_file, self._options.rank, ranks, environment)
        environment["TRTLLM_HPC_RANK_FAILURE"] = str(self._failure_file)
        environment["TRTLLM_HPC_SCRATCH"] = str(scratch)
        for name, value in spec.environment.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        shown = [launcher, *server.words] if launcher is not None else server.words
        print(f"rank {self._options.rank} on {self._record.host}: {' '.join(shown)}", flush=True)
        allow_large_requests()
        if launcher is None:
            return start_bound(server.words, environment)
        return LaunchedServer(
            launcher,
            server.words,
            environment,
            scratch,
            self._paths.runtime,
            chooses_port=self._options.rank == 0 and Path(launcher).name == "trtllm-llmapi-launch",
        )

    def _not_started(self, sentence: str, hint: str | None) -> int:
        """Record the end too: a record without one looks like a rank that was killed."""
        remove_leftovers(self._options.prefix)
        self._reason = sentence
        self._write_end(ExitCode.START)
        print(f"error: {sentence}.\n  next: {hint}", file=sys.stderr, flush=True)
        return ExitCode.START

    def _interface_variables(self) -> dict[str, str]:
        """Return the variables that make gloo and NCCL use the interface towards rank 0."""
        interface = interface_towards(os.environ.get("MASTER_ADDR", "127.0.0.1"))
        if interface is None:
            return {}
        variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        return {variable: os.environ.get(variable, interface) for variable in variables}

    # Watching -----------------------------------------------------------------------

    def _note_signal(self, name: str) -> None:
        # Nothing else in a handler: the code that it interrupts may hold a lock.
        self._signal = self._signal or name

    def _watch(self, child: Child) -> None:
        while child.poll() is None:
            make_private(self._options.prefix)
            self._obey_signal(child)
            self._obey_stop_request(child)
            self._obey_own_fault(child)
            self._heartbeat.beat()
            if self._leader is not None:
                self._lead(child)
            else:
                self._follow(child)
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self._killed = True
                child.kill()
            time.sleep(_TICK_S)
        self._note_suspect()
        if self._signal is not None and self._stopped_by is None:
            # Slurm signals the server as well, which may have ended before the next tick.
            self._stopped_by, self._reason = self._signal, f"got {self._signal}"

    def _obey_signal(self, child: Child) -> None:
        if self._signal is not None and self._stopped_by != self._signal:
            self._stop(child, self._signal, f"got {self._signal}", _SIGNAL_GRACE_S)

    def _obey_stop_request(self, child: Child) -> None:
        """Limit the time that the server may take. A worker ends by itself after the leader."""
        if self._stopped_by is None:
            request = StopRequest.read(self._paths.stop_request)
            if request is not None:
                self._stop(child, request.by, request.reason, _STOP_GRACE_S)
        if (
            self._leader is None
            and not self._outlives_leader
            and leader_has_ended(self._paths, self._options.step)
        ):
            self._outlives_leader = True
            if self._stopped_by is None:
                self._stop(child, "leader", "rank 0 has ended", _AFTER_LEADER_S)
            elif self._kill_at is not None:
                self._kill_at = min(self._kill_at, time.monotonic() + _AFTER_LEADER_S)

    def _obey_own_fault(self, child: Child) -> None:
        """End the server for what neither Slurm nor Triton notices."""
        if self._stopped_by is not None:
            return
        if self._step_daemon is not None and os.getppid() != self._step_daemon:
            by, what = "slurmstepd", "its slurmstepd was killed: Slurm can no longer see or end this rank"
        elif (model := self._models.dead()) is not None and not self._others_ended():
            by, what = "model process", f"the Python process of model {model} was killed or crashed"
        else:
            return
        self._failed, self._blames = ExitCode.START, self._options.rank
        name = rank_name(self._paths, self._options.step, self._options.rank)
        self._stop(child, by, f"{name}: {what}", _FAULT_GRACE_S)

    def _lead(self, child: Child) -> None:
        assert self._leader is not None
        if self._blames is not None:
            return
        # Who asks a hanging server to stop, such as a companion without answers, need not know why it hangs.
        stop = self._leader.tick() if self._stopped_by is None else self._leader.suspect(has_died=False)
        if stop is not None:
            self._failed, self._blames = stop.exit_code, stop.blames
            grace_s = _STOP_GRACE_S if stop.blames is None else _FAULT_GRACE_S
            self._stop(child, stop.by, stop.sentence, grace_s)

    def _follow(self, child: Child) -> None:
        """End the server, and take back the endpoint, if the leader is silent: its node may be lost."""
        silent = self._leader_watch.silent()
        if not silent or self._blames is not None or self._outlives_leader:
            return
        self._failed, self._blames = ExitCode.START, 0
        name = rank_name(self._paths, self._options.step, 0)
        self._stop(child, "heartbeat", f"{name}: {silent[0]}", _FAULT_GRACE_S)
        if self._options.instance is None:
            with suppress(OSError):
                self._paths.endpoint.unlink(missing_ok=True)

    def _stop(self, child: Child, by: str, reason: str, grace_s: float) -> None:
        self._stopped_by, self._reason = by, reason
        kill_at = time.monotonic() + grace_s
        # After a signal Slurm does not wait for longer because the cause has been found.
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        print(f"rank {self._options.rank} stops: requested by {by}, {reason}", flush=True)
        if self._leader is not None:
            self._leader.withdraw()
        if self._leader is not None or self._blames is not None:
            child.terminate()

    def _note_suspect(self) -> None:
        """Blame the rank at fault if this one's server has died by itself: that says only which it lost."""
        if self._stopped_by is not None or self._signal is not None:
            return
        if self._leader is not None:
            stop = self._leader.suspect(has_died=True)
            if stop is not None and stop.blames != self._options.rank:
                self._failed, self._blames, self._reason = stop.exit_code, stop.blames, stop.sentence
        elif (why := self._leader_watch.suspects().get(0)) and not self._others_ended():
            name = rank_name(self._paths, self._options.step, 0)
            self._failed, self._blames, self._reason = ExitCode.START, 0, f"{name}: {why}"

    # Ending -------------------------------------------------------------------------

    def _exit_code(self, returncode: int) -> int:
        if self._failed is not None:
            return self._failed
        if self._signal is not None:
            return self._signalled_code()
        if self._stopped_by is not None:
            # It was told to end, so its code does not matter: while models load, SIGTERM just kills Triton.
            return ExitCode.START if self._killed and self._leader is not None else ExitCode.OK
        if returncode < 0:
            return 128 - returncode
        if returncode == 0:
            return self._unrequested_end()
        return returncode

    def _signalled_code(self) -> int:
        """Return 0 if another rank ended before this one: the step's exit code must be the first one's."""
        return ExitCode.OK if self._others_ended() else 143

    def _others_ended(self) -> bool:
        """Return whether another rank has ended."""
        records = rank_records(self._paths, self._options.step)
        return any(record.ended_at for record in records if record.rank != self._options.rank)

    def _unrequested_end(self) -> int:
        """Return the code for a server that exits with 0 without a request to stop.

        TensorRT-LLM's workers exit with 0 whatever happened (they call ``exit(0)``
        once the leader is gone, ``model_instance_state.cc``), so 0 proves nothing.
        """
        deadline = time.monotonic() + _AFTER_LEADER_S / 2
        while self._leader is None and time.monotonic() < deadline and self._signal is None:
            if StopRequest.read(self._paths.stop_request) is not None or leader_has_ended(
                self._paths, self._options.step
            ):
                self._stopped_by, self._reason = "leader", "the leader is ending"
                return ExitCode.OK
            time.sleep(_TICK_S)
        if self._signal is not None:
            self._stopped_by = self._signal
            return self._signalled_code()
        self._reason = "the server ended by itself, without a request to stop"
        return ExitCode.START

    def _write_end(self, returncode: int) -> None:
        with suppress(FileNotFoundError):
            told = self._failure_file.read_text(encoding="utf-8").strip()
            # What its server says after it was told to end explains nothing.
            self._reason = self._reason if self._blames is not None else told or self._reason
        replace(
            self._record,
            ended_at=time.time(),
            exit_code=returncode,
            stopped_by=self._stopped_by,
            reason=self._reason,
            blames=self._blames,
        ).write(self._paths.rank_record(self._options.step, self._options.rank))

    def _report(self, returncode: int, code: int) -> None:
        how = f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
        # The companion's reason ends with its own exit code, which is usually the same.
        reason = (self._reason or "").removesuffix(f" ({how})")
        because = f": {reason}" if reason else ""
        stream = sys.stdout if code == ExitCode.OK else sys.stderr
        word = "" if code == ExitCode.OK else "error: "
        print(f"{word}rank {self._options.rank} ended ({how}){because}", file=stream, flush=True)
