"""The run's supervisor: runs all instances, and the proxy if there is one, to the end of the run.

It runs on the job's first node, outside any container, and alone writes the endpoint. A child process
(``instance.sh``) starts the ranks of an instance. :mod:`instance` has the rules for what ends an instance or
the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trtllm_hpc.errors import ExitCode, StartFailed
from trtllm_hpc.paths import RunPaths, serve_steps, write_json
from trtllm_hpc.runtime.blame import failed_by_itself, verdict
from trtllm_hpc.runtime.heartbeat import Heartbeat, Troubles, stopped_below
from trtllm_hpc.runtime.instances.clients import ClientWatch, Publisher
from trtllm_hpc.runtime.instances.instance import (
    Instance,
    RunEnd,
    SupervisorOptions,
    after_end,
    early_end,
    lost,
)
from trtllm_hpc.runtime.instances.proxies import Proxies
from trtllm_hpc.runtime.lock import add_findings
from trtllm_hpc.runtime.process import adopt_orphans, descendants, kill_descendants, on_signals, send
from trtllm_hpc.runtime.proxy import ProxyOptions
from trtllm_hpc.runtime.records import IDLE, StopRequest, rank_records, try_event
from trtllm_hpc.runtime.renewal import RENEWAL
from trtllm_hpc.runtime.stop import SUPERVISOR, CompanionWatch, request_stop

_TICK_S = 0.2
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
"""Seconds between the death of an instance and its next start, doubled each time up to the longest."""
_STOP_GRACE_S = 60.0
"""Seconds from a stop request to the end of all instances; each rank takes at most 45 s."""
_SIGNAL_GRACE_S = 10.0
"""Seconds from a signal to the end of all instances. Slurm itself kills after KillWait, 30 s by default."""


def run_instances(
    paths: RunPaths,
    program: str | None,
    kinds: str,
    interface: str | None,
    leaders: Mapping[str, Sequence[int]],
    *,
    loopback: bool,
    **options: Any,
) -> int:
    """Serve until something ends the run; return the exit code.

    ``program`` is HAProxy, or ``None`` for a run without a proxy; ``options`` are further fields of
    SupervisorOptions.
    """
    proxy = None if program is None else ProxyOptions.of(program, kinds, interface, loopback=loopback)
    on_nodes = {int(node): numbers for node, numbers in leaders.items()}
    return RunSupervisor(paths, SupervisorOptions(proxy=proxy, leaders=on_nodes, **options)).run()


class RunSupervisor:
    """Starts the instances, publishes the endpoint, and ends the run."""

    def __init__(self, paths: RunPaths, options: SupervisorOptions) -> None:
        self._paths = paths
        self._options = options
        self._instances: list[Instance] = []
        self._proxies = Proxies(paths, options, lambda: self._signal is not None)
        self._publisher = Publisher(paths, options, self._proxies)
        self._heartbeat = Heartbeat(paths.rank_heartbeat(SUPERVISOR, 0))
        self._companion = CompanionWatch(
            paths, options.companion_start_seconds, options.companion_silence_seconds, self._heartbeat.file
        )
        self._clients = ClientWatch(paths, self._proxies, options.idle_seconds)
        self._troubles = Troubles(paths, "serve", options.hang_seconds)
        self._signal: str | None = None
        self._is_warned = False
        self._draining_since: float | None = None
        self._stopping_since: float | None = None
        self._has_failed = False
        self._code: int = ExitCode.OK

    def run(self) -> int:
        """Serve until something ends the run; return the exit code."""
        on_signals(self._note_signal)
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "_is_warned", True))
        adopt_orphans()
        add_findings(self._paths)
        try:
            folders = self._proxies.open()
            for number, step in enumerate(serve_steps(self._options.count)):
                instance = Instance(number, step, folders.get(number))
                self._instances.append(instance)
                instance.start(self._paths, self._options.hang_seconds, self._heartbeat.file)
            self._write_states()
            while self._tick():
                time.sleep(_TICK_S)
        except StartFailed as error:
            if self._signal is None:
                self._end_run(RunEnd(error.message))
                _print_error(error.message, error.hint)
        except OSError as error:
            sentence = f"the supervisor cannot go on: {error}"
            self._end_run(RunEnd(sentence))
            _print_error(sentence, "look at the file system")
        finally:
            self._publisher.withdraw()
            # After a failure there is a stop request, which the ranks obey without a signal.
            self._wait_for_instances(_STOP_GRACE_S, until_signal=True)
            if any(instance.runs for instance in self._instances):
                self._terminate()
                self._wait_for_instances(_SIGNAL_GRACE_S, until_signal=False)
            self._proxies.close()
            kill_descendants()
            self._write_states()
        return 143 if self._signal is not None and self._code == ExitCode.OK else self._code

    def _note_signal(self, name: str) -> None:
        # A handler must do no more: the interrupted code may hold a lock.
        self._signal = self._signal or name

    def _tick(self) -> bool:
        """Look at everything once; return whether anything is left to do."""
        self._heartbeat.beat()
        if self._signal is not None:
            self._proxies.remove_folder()  # now, because Slurm may kill this process before the usual cleanup
        if self._stopping_since is None:
            if self._is_warned:
                self._drain()
            elif self._proxies.watch(may_restart=self._publisher.is_published):
                self._note_signal("SIGTERM")
            if self._signal or self._has_failed or StopRequest.read(self._paths.stop_request):
                self._stop()
        for instance in self._instances:
            if (child := instance.child) is not None:
                if child.poll() is not None:
                    instance.child = None
                    self._has_ended(instance, child.returncode)
                    self._write_states()
                elif instance.state == "starting" and self._paths.ready_record(instance.step).exists():
                    instance.state, instance.has_served = "ready", True
                    try_event(self._paths, "serve", "instance_ready", instance=instance.number)
                    self._write_states()
                else:
                    self._end_if_lost(instance, child)
            elif instance.state == "restarting" and time.monotonic() > instance.restart_at:
                instance.start(self._paths, self._options.hang_seconds, self._heartbeat.file)
                self._write_states()
        if self._stopping_since is not None:
            grace_s = _STOP_GRACE_S if self._signal is None else _SIGNAL_GRACE_S
            if time.monotonic() - self._stopping_since > grace_s:
                return False
        elif self._draining_since is None:  # a draining run publishes no endpoint, and waits for no companion
            self._publish_or_watch()
        return any(instance.child is not None or instance.lives for instance in self._instances)

    def _publish_or_watch(self) -> None:
        front, gateway = self._proxies.front, self._proxies.gateway
        if front is not None and (why := front.watch()) is not None:
            self._end_run(RunEnd(why))
        if gateway is not None and (why := gateway.tick()) is not None:
            try_event(self._paths, "serve", "gateway_failed", why=why)
            _print_error(why, f"read {self._paths.batch_log('gateway')}")
        if self._troubles.is_due():
            self._handle_troubles()
        if (why := self._clients.tick(serves=self._publisher.is_published)) is not None:
            request_stop(self._paths, by=IDLE, reason=why)
        if self._publisher.is_published:
            if (sentence := self._companion.missing()) is not None:
                self._end_run(RunEnd(sentence, event="companion_missing"))
        elif self._publisher.tick(self._instances):
            self._companion.begin()

    def _handle_troubles(self) -> None:
        """Report stopped processes and missing sockets, and after the limit kill them or end the run.

        A killed process is then restarted, or ends the run, as after any other end.
        """
        instance_pids = {
            pid for instance in self._instances if instance.child for pid in descendants(instance.child.pid)
        }
        all_ready = all(instance.state == "ready" for instance in self._instances)
        faults = stopped_below(os.getpid(), instance_pids)
        faults |= self._proxies.missing_sockets(all_ready=all_ready)
        late = self._troubles.look(faults)
        send([int(part) for part in late if part.isdecimal()], signal.SIGKILL)
        if "sockets" in late:
            self._end_run(RunEnd(late["sockets"]))

    # Instances ----------------------------------------------------------------------

    def _end_if_lost(self, instance: Instance, child: subprocess.Popen[bytes]) -> None:
        """End the step of an instance that is lost; look once a second."""
        now = time.monotonic()
        if now < instance.look_at:
            return
        instance.look_at = now + 1.0
        silent = instance.leader.look().silent if instance.leader is not None else {}
        records = rank_records(self._paths, instance.step)
        has_failed = verdict(records) is not None or any(map(failed_by_itself, records))
        if instance.over_since is None and has_failed:
            instance.over_since = now
        is_stopping = self._stopping_since is not None
        end = early_end(instance, records, self._options, is_stopping=is_stopping)
        if end is not None and self._signal is None and not self._has_failed:
            self._end_run(end)
        over_s = None if instance.over_since is None else now - instance.over_since
        instance.lost = instance.lost or lost(instance, records, silent, over_s)
        if instance.lost is not None:
            send([*descendants(child.pid), child.pid], signal.SIGKILL)

    def _has_ended(self, instance: Instance, returncode: int) -> None:
        if self._stopping_since is not None:
            instance.state = "ended"
            if self._signal is None:
                self._code = self._code or returncode  # a rank failed while the server stopped
            return
        records = rank_records(self._paths, instance.step)
        instance.state, instance.reason, run_end = after_end(instance, records, returncode, self._options)
        if instance.state == "ended":
            self._note_signal("SIGTERM")
            return
        if instance.state == "restarting":
            pause_s = min(_FIRST_PAUSE_S * 2**instance.restarts, _LONGEST_PAUSE_S)
            instance.restart_at = time.monotonic() + pause_s
            instance.restarts += 1
            then = f"it is started again ({instance.restarts} of {self._options.restarts} times)"
        else:
            then = "it is not started again"
        print(f"instance {instance.number} has ended: {instance.reason}; {then}", flush=True)
        # "why" and not "reason", which would be the end of the run: the run may go on.
        number, why = instance.number, instance.reason
        try_event(self._paths, "serve", "instance_end", instance=number, why=why, then=then)
        if run_end is not None:
            self._end_run(run_end)

    def _write_states(self) -> None:
        with suppress(OSError):
            states = [
                {
                    "instance": instance.number,
                    "state": instance.state,
                    "restarts": instance.restarts,
                    "reason": instance.reason,
                }
                for instance in self._instances
            ]
            write_json(self._paths.instances, states)

    # Ending -------------------------------------------------------------------------

    def _end_run(self, end: RunEnd) -> None:
        self._has_failed = True
        self._code = self._code or end.code
        data = {"reason" if end.is_cause else "why": end.sentence}
        try_event(self._paths, "serve", end.event, **data)
        with suppress(OSError):  # the run must end even on a full disk
            request_stop(self._paths, by=SUPERVISOR, reason=end.sentence)

    def _drain(self) -> None:
        """Accept no new requests; stop once the open requests have ended or their time is over."""
        if self._draining_since is None:
            self._draining_since = time.monotonic()
            try_event(self._paths, "serve", "draining")
            self._publisher.withdraw()
            if self._proxies.own is not None:
                self._proxies.own.drain()
        waited_s = time.monotonic() - self._draining_since
        is_open = self._proxies.own is not None and self._proxies.own.is_open()
        if not is_open or waited_s > self._options.drain_seconds:
            request_stop(self._paths, by=RENEWAL, reason="the time limit of its job is near")

    def _stop(self) -> None:
        """Withdraw the endpoint; the ranks obey the stop request, or the signal, on their own."""
        self._stopping_since = time.monotonic()
        self._publisher.withdraw()
        for instance in self._instances:
            if instance.state == "restarting":
                instance.state = "ended"
        if self._signal is not None or StopRequest.read(self._paths.stop_request) is None:
            self._terminate()

    def _terminate(self) -> None:
        """Send SIGTERM to all descendants except the proxies, which close last."""
        self._proxies.remove_folder()
        send(set(descendants(os.getpid())) - self._proxies.pids, signal.SIGTERM)

    def _wait_for_instances(self, timeout_s: float, *, until_signal: bool) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(instance.runs for instance in self._instances):
            if until_signal and self._signal is not None:
                return
            time.sleep(_TICK_S)


def _print_error(sentence: str, hint: str | None) -> None:
    print(f"error: {sentence}.\n  next: {hint}", file=sys.stderr, flush=True)
