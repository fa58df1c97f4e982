"""The supervisor of a run with a door: opens it, starts every instance, and starts again what dies.

It runs on the job's first node, outside of any container, and alone writes
the endpoint and the events of the stage. Each instance is a child process
(``instance.sh``, which starts the ranks), and tells by a file when it is ready.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trtllm_hpc.errors import ExitCode, StartFailed
from trtllm_hpc.paths import RunPaths, serve_steps, write_json
from trtllm_hpc.runtime.blame import first_to_fail, verdict
from trtllm_hpc.runtime.certificate import fingerprint, make_certificate, take_certificate
from trtllm_hpc.runtime.door import (
    DOOR_RESTARTS,
    SOCKETS_VARIABLE,
    Door,
    DoorOptions,
    DoorRecord,
    write_key,
)
from trtllm_hpc.runtime.ending import rank_name
from trtllm_hpc.runtime.engine_cache.verify import EngineCheck
from trtllm_hpc.runtime.front import Front
from trtllm_hpc.runtime.gateway import Gateway
from trtllm_hpc.runtime.heartbeat import Heartbeat, SilenceWatch, watch_ranks
from trtllm_hpc.runtime.leader import ReadyRecord, phases, tell_ready
from trtllm_hpc.runtime.node import free_ports
from trtllm_hpc.runtime.process import adopt_orphans, descendants, kill_descendants, on_signals, start_bound
from trtllm_hpc.runtime.records import Endpoint, RankRecord, StopRequest, add_event, rank_records
from trtllm_hpc.runtime.renewal import RENEWAL, note_renewed
from trtllm_hpc.runtime.stop import SUPERVISOR, CompanionWatch, request_stop

_TICK_S = 0.2
_DOORS_TIMEOUT_S = 60.0
"""For the doors of the other nodes to open."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
"""Between the death of an instance and its next start; doubled each time."""
_STOP_GRACE_S = 60.0
"""From a stop request to the end of all instances; each rank takes at most 45 s."""
_SIGNAL_GRACE_S = 10.0
"""The same after a signal. Slurm itself kills after KillWait, 30 s unless the site says less."""
_STEP_GRACE_S = 30.0
"""For a step to end after one of its ranks has: more than a worker may outlive the leader. Slurm gives a lost
node minutes."""
_REACH_TIMEOUT_S = 60.0
"""From all instances' being ready to the door's seeing them."""
_SETTLE_S = 1.0
"""For a signal to the job to arrive here, when something else has ended first."""


@dataclass(frozen=True)
class SupervisorOptions:
    """The options that ``serve.sbatch`` passes."""

    count: int
    minimum: int
    """Fewest instances that must live."""
    restarts: int
    """Of each instance that has served."""
    door: DoorOptions
    key: bool
    tls: bool
    certificate: Path | None
    """A given one, with its private key; ``None``: one is made."""
    leaders: Mapping[int, Sequence[int]]
    """The instances whose leaders are on each node, by the node's number within the job."""
    companion_start_seconds: float | None
    companion_silence_seconds: float | None
    drain_seconds: float
    """Bound on open requests once the time limit is near."""
    hang_seconds: float | None = None
    """How long an instance's leader may give no sign of life; ``None``: for ever."""
    roles: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The instances of each phase of a disaggregated run, which have a front."""


@dataclass
class Instance:
    """One instance, as the supervisor sees it."""

    number: int
    step: str
    sockets: Path
    state: str = "starting"
    """``starting``, ``ready``, ``restarting``, ``failed`` or ``ended``."""
    restarts: int = 0
    reason: str | None = None
    """How it ended the last time."""
    has_served: bool = False
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    restart_at: float = 0.0
    lost: str | None = None
    """Why it cannot be started again: its node may be lost."""
    leader: SilenceWatch | None = field(default=None, repr=False)
    look_at: float = 0.0
    """When to look for that again."""
    over_since: float | None = None
    """When a rank was first seen to have ended because of a fault, while the step goes on."""

    @property
    def lives(self) -> bool:
        """Whether it serves, or may come to."""
        return self.state in ("starting", "ready", "restarting")

    def as_json(self) -> dict[str, object]:
        """What ``status`` shows."""
        return {
            "instance": self.number,
            "state": self.state,
            "restarts": self.restarts,
            "reason": self.reason,
        }


class Supervisor:
    """Runs all instances and their door to the end of the run."""

    def __init__(self, paths: RunPaths, options: SupervisorOptions) -> None:
        self._paths = paths
        self._options = options
        self._instances: list[Instance] = []
        kinds = options.door.kinds
        self._ports = dict(zip(kinds, free_ports(len(kinds)), strict=True))
        self._node_doors: list[subprocess.Popen[bytes]] = []
        self._door: Door | None = None
        self._front: Front | None = None
        self._gateway: Gateway | None = None
        self._door_restarts = 0
        self._certificate_name: str | None = None
        self._companion = CompanionWatch(
            paths, options.companion_start_seconds, options.companion_silence_seconds
        )
        self._engine = EngineCheck(paths)
        self._own_heartbeat = paths.rank_heartbeat(SUPERVISOR, 0)
        self._heartbeat = Heartbeat(self._own_heartbeat)
        self._signal: str | None = None
        self._is_warned = False
        self._draining_since: float | None = None
        self._stopping_since: float | None = None
        self._published = False
        self._ready_since: float | None = None
        self._has_failed = False
        self._code: int = ExitCode.OK

    def run(self) -> int:
        """Serve until the run is told to stop, or too few instances live; returns the exit code."""
        on_signals(self._note_signal)
        signal.signal(signal.SIGUSR1, self._note_warning)
        adopt_orphans()
        try:
            self._open_doors()
            for instance in self._instances:
                self._start(instance)
            self._note()
            while self._tick():
                time.sleep(_TICK_S)
        except StartFailed as error:
            if self._signal is None:
                self._fail(error.message, ExitCode.START)
                print(f"error: {error.message}.\n  next: {error.hint}", file=sys.stderr, flush=True)
        except OSError as error:
            sentence = f"the supervisor cannot go on: {error}"
            self._fail(sentence, ExitCode.START)
            print(f"error: {sentence}.\n  next: look at the file system", file=sys.stderr, flush=True)
        finally:
            self._withdraw()
            self._close()
        return 143 if self._signal is not None and self._code == ExitCode.OK else self._code

    # The door -----------------------------------------------------------------------

    def _open_doors(self) -> None:
        options = self._options
        if options.key:
            write_key(self._paths.key)
        if options.roles:
            write_key(self._paths.servers_key)
        if options.certificate is not None:
            self._certificate_name = take_certificate(self._paths, options.certificate)
        elif options.tls:
            make_certificate(self._paths, options.door.address)
        for node, instances in options.leaders.items():
            if node != 0:
                self._paths.door_ports(node).unlink(missing_ok=True)
                words = [str(self._paths.script("door")), str(node), *map(str, instances)]
                self._node_doors.append(start_bound(["bash", *words], os.environ))
        records = {node: self._record_of(node) for node in options.leaders if node != 0}
        further = {
            name: f"{record.address}:{port}"
            for record in records.values()
            for name, port in record.ports.items()
        }
        local = options.leaders.get(0, ())
        self._door = Door(self._paths, 0, options.door, self._ports, local, further)
        folders = {instance: self._door.sockets(instance) for instance in local}
        for node, record in records.items():
            folders |= {instance: Path(record.folder) / str(instance) for instance in options.leaders[node]}
        if "openai" in self._ports and "http" in self._ports:
            self._gateway = Gateway(self._paths, self._door.gateway)
        if options.roles:
            self._front = Front(self._paths, options.roles, self._door.port(0), options.hang_seconds)
        self._instances = [
            Instance(number, step, folders.get(number, self._door.sockets(number)))
            for number, step in enumerate(serve_steps(options.count))
        ]

    def _record_of(self, node: int) -> DoorRecord:
        """Where the door of another node is, once it is open."""
        deadline = time.monotonic() + _DOORS_TIMEOUT_S
        while (record := DoorRecord.read(self._paths.door_ports(node))) is None:
            ended = any(door.poll() is not None for door in self._node_doors)
            if ended or self._signal is not None or time.monotonic() > deadline:
                raise StartFailed(
                    f"the door of node {node} of the job did not open",
                    hint=f"read {self._paths.batch_log('door')}",
                )
            time.sleep(_TICK_S)
        return record

    def _watch_door(self) -> None:
        """Open the door again if it has ended, unless the job is being ended."""
        assert self._door is not None
        hint = f"read {self._paths.batch_log('door')}"
        ended = [door for door in self._node_doors if door.poll() is not None]
        if self._door.is_open() and not ended:
            return
        time.sleep(_SETTLE_S)
        if any(door.returncode == 0 for door in ended):
            # A door ends well only when it is told to: Slurm ends the job's steps.
            self._signal = self._signal or "SIGTERM"
        if self._signal is not None:
            return
        if ended:
            raise StartFailed("the door of another node has ended", hint=hint)
        sentence = f"the door (HAProxy) ended by itself, with exit code {self._door.returncode}"
        if self._door_restarts >= DOOR_RESTARTS or not self._published:
            raise StartFailed(sentence, hint=hint)
        self._door_restarts += 1
        self._tell_event("door_restarted", why=sentence)
        self._door.restart()

    # Instances ----------------------------------------------------------------------

    def _start(self, instance: Instance) -> None:
        self._paths.ready_record(instance.step).unlink(missing_ok=True)
        for record in self._paths.ranks.glob(f"{instance.step}_*.json"):
            record.unlink(missing_ok=True)
        instance.state, instance.over_since = "starting", None
        instance.leader = watch_ranks(
            self._paths, instance.step, range(1), self._options.hang_seconds, self._own_heartbeat
        )
        self._tell_event("server_start", instance=instance.number)
        command = ["bash", str(self._paths.script("instance")), str(instance.number)]
        instance.child = start_bound(command, {**os.environ, SOCKETS_VARIABLE: str(instance.sockets)})

    def _tick(self) -> bool:
        """Look at everything once; returns whether anything is left to do."""
        self._heartbeat.beat()
        if self._signal is not None and self._door is not None:
            self._door.remove_folder()  # after KillWait Slurm kills this process, whatever is left to do
        if self._stopping_since is None:
            if self._engine.fault is not None and not self._has_failed:
                self._fail(self._engine.fault, ExitCode.START)
            if self._is_warned:
                self._drain()
            else:
                self._watch_door()
            if self._signal or self._has_failed or StopRequest.read(self._paths.stop_request):
                self._stop()
        for instance in self._instances:
            if instance.child is not None:
                self._look_at(instance, instance.child)
            elif instance.state == "restarting" and time.monotonic() > instance.restart_at:
                self._start(instance)
                self._note()
        if self._stopping_since is None:
            self._publish_or_watch()
        elif self._is_overdue():
            return False
        return any(instance.child is not None or instance.lives for instance in self._instances)

    def _look_at(self, instance: Instance, child: subprocess.Popen[bytes]) -> None:
        if child.poll() is not None:
            instance.child = None
            self._has_ended(instance, child.returncode)
            self._note()
        elif instance.state == "starting" and self._paths.ready_record(instance.step).exists():
            instance.state, instance.has_served = "ready", True
            self._tell_event("instance_ready", instance=instance.number)
            self._note()
        else:
            self._end_if_lost(instance, child)

    def _end_if_lost(self, instance: Instance, child: subprocess.Popen[bytes]) -> None:
        """End the step of an instance that is lost: Slurm waits minutes for a node that does not answer."""
        if time.monotonic() < instance.look_at:
            return
        instance.look_at = time.monotonic() + 1.0
        silent = instance.leader.silent() if instance.leader is not None else {}
        records = rank_records(self._paths, instance.step)
        if instance.over_since is None and verdict(records) is not None:
            instance.over_since = time.monotonic()
            self._give_up_early(instance, _how_it_ended(records, ExitCode.START))
        elif silent and not any(record.rank == 0 and record.ended_at is not None for record in records):
            instance.lost = f"{rank_name(records, instance.step, 0)}: {silent[0]}"
        overdue = instance.over_since is not None and time.monotonic() - instance.over_since > _STEP_GRACE_S
        if overdue:
            instance.lost = instance.lost or _how_it_ended(records, ExitCode.START)
        if instance.lost is not None:
            for pid in [*descendants(child.pid), child.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _give_up_early(self, instance: Instance, reason: str) -> None:
        """End the run as soon as a rank has told of a fault, if too few instances are left.

        Also while they end: a companion that got no answers has asked for it, and does not know why.
        """
        if self._signal is not None or self._has_failed:
            return
        others = sum(each.lives for each in self._instances if each is not instance)
        will_restart = instance.has_served and instance.restarts < self._options.restarts
        is_ending = self._stopping_since is not None
        if is_ending or (not will_restart and others < self._options.minimum):
            self._fail(reason, ExitCode.START)

    def _has_ended(self, instance: Instance, code: int) -> None:
        records = rank_records(self._paths, instance.step)
        if self._stopping_since is not None:
            instance.state = "ended"
            if self._signal is None:
                self._code = self._code or code  # one that had to be killed
            return
        if records and len(records) == records[0].world_size and all(map(_was_signalled, records)):
            # Slurm ends the ranks of a cancelled job before this process hears of it.
            instance.state = "ended"
            self._signal = self._signal or "SIGTERM"
            return
        instance.reason = instance.lost or _how_it_ended(records, code)
        if instance.lost is None and instance.has_served and instance.restarts < self._options.restarts:
            pause_s = min(_FIRST_PAUSE_S * 2**instance.restarts, _LONGEST_PAUSE_S)
            instance.state, instance.restart_at = "restarting", time.monotonic() + pause_s
            instance.restarts += 1
        else:
            instance.state = "failed"
        self._tell(instance)
        living = sum(each.lives for each in self._instances)
        if living < self._options.minimum:
            self._end_with(instance, living, code if 0 < code < 128 else ExitCode.START)

    def _tell(self, instance: Instance) -> None:
        if instance.state == "failed":
            then = "it is not started again"
        else:
            then = f"it is started again ({instance.restarts} of {self._options.restarts} times)"
        print(f"instance {instance.number} has ended: {instance.reason}; {then}", flush=True)
        # Not as "reason": the run may go on.
        self._tell_event("instance_end", instance=instance.number, why=instance.reason, then=then)

    def _end_with(self, instance: Instance, living: int, code: int) -> None:
        """End the run: too few instances live."""
        if self._options.roles:
            role = next(name for name, numbers in self._options.roles.items() if instance.number in numbers)
            sentence = f"the {role} server {instance.number} has ended: {instance.reason}"
            self._fail(sentence, code, is_cause=instance.lost is not None)
            return
        if self._options.count == 1:
            # Records and logs of its ranks tell more of the cause than this, unless its node is lost.
            sentence = instance.reason or "the server has ended"
            self._fail(sentence, code, is_cause=instance.lost is not None)
            return
        sentence = (
            f"{living} of {self._options.count} instances live, and serve.minimum_instances is "
            f"{self._options.minimum}; instance {instance.number}: {instance.reason}"
        )
        self._fail(sentence, code)

    # The endpoint -------------------------------------------------------------------

    def _publish_or_watch(self) -> None:
        fault = None if self._front is None else self._front.fault
        if fault is not None:
            self._fail(fault, ExitCode.START)
        if self._gateway is not None and (why := self._gateway.tick()) is not None:
            self._tell_event("gateway_failed", why=why)
            print(
                f"error: {why}.\n  next: read {self._paths.batch_log('gateway')}", file=sys.stderr, flush=True
            )
        if self._published:
            if (sentence := self._companion.missing()) is not None:
                self._fail(sentence, ExitCode.START, event="companion_missing")
            return
        assert self._door is not None
        living = [instance for instance in self._instances if instance.lives]
        if not living or any(instance.state != "ready" for instance in living):
            self._ready_since = None
            return
        if self._front is not None and not self._front_is_ready(self._front, living):
            return
        self._ready_since = self._ready_since or time.monotonic()
        seen = self._door.servers_up()
        wanted = len(living) if self._front is None else 1
        if seen >= wanted:
            self._publish(living)
        elif time.monotonic() - self._ready_since > _REACH_TIMEOUT_S:
            raise StartFailed(
                f"the door sees {seen} of {wanted} instances, though all are ready",
                hint=f"read {self._paths.batch_log('door')}; a container must share the host's /dev/shm",
            )

    def _front_is_ready(self, front: Front, instances: Sequence[Instance]) -> bool:
        records = {it.number: ReadyRecord.read(self._paths.ready_record(it.step)) for it in instances}
        places = {number: record.place for number, record in records.items() if record is not None}
        known = {number: place for number, place in places.items() if place is not None}
        if len(known) < len(instances):
            return False  # one has just ended
        models = next(record.models for record in records.values() if record is not None)
        front.start(known, models)
        return front.is_ready()

    def _publish(self, instances: Sequence[Instance]) -> None:
        records = [ReadyRecord.read(self._paths.ready_record(instance.step)) for instance in instances]
        known = [record for record in records if record is not None]
        if len(known) < len(instances):
            return  # one has just ended
        ready_at, options = time.time(), self._options
        endpoint = Endpoint(
            job_id=os.environ.get("TRTLLM_HPC_JOB_ID", ""),
            host=socket.gethostname(),
            address=options.door.address,
            http_port=self._ports.get("http", 0),
            grpc_port=self._ports.get("grpc", 0),
            metrics_port=self._ports.get("metrics", 0),
            models=sorted(set.intersection(*(set(record.models) for record in known))),
            ready_at=ready_at,
            phases_s=phases(self._paths, max(record.started_at for record in known), ready_at),
            key_file=str(self._paths.key) if options.key else None,
            certificate_file=str(self._paths.certificate) if options.tls else None,
            fingerprint=fingerprint(self._paths.certificate) if options.tls else None,
            certificate_name=self._certificate_name,
            instances=1 if options.roles else options.count,
            openai_url=self._openai_url(),
        )
        endpoint.write(self._paths.endpoint)
        self._published = True
        self._companion.begin()
        self._note_renewed(ready_at)
        self._tell_event("ready", **asdict(endpoint))
        tell_ready(self._paths, endpoint)

    def _openai_url(self) -> str | None:
        if "openai" not in self._ports:
            return None
        scheme = "https" if self._options.tls else "http"
        return f"{scheme}://{self._options.door.address}:{self._ports['openai']}/v1"

    def _note_renewed(self, ready_at: float) -> None:
        with suppress(OSError):
            note_renewed(self._paths, ready_at)

    def _withdraw(self) -> None:
        with suppress(OSError):  # on a full disk the servers must stop all the same
            if self._published:
                self._paths.endpoint.unlink(missing_ok=True)
                add_event(self._paths, "serve", "server_stop")
        self._published = False

    # Ending -------------------------------------------------------------------------

    def _note_warning(self, _number: int, _frame: object) -> None:
        self._is_warned = True

    def _drain(self) -> None:
        """Let nothing new in; once the open requests have ended, or the time for them is over, stop."""
        assert self._door is not None
        if self._draining_since is None:
            self._draining_since = time.monotonic()
            self._tell_event("draining")
            self._withdraw()
            self._door.drain()
        waited_s = time.monotonic() - self._draining_since
        if not self._door.is_open() or waited_s > self._options.drain_seconds:
            request_stop(self._paths, by=RENEWAL, reason="the time limit of its job is near")

    def _note_signal(self, name: str) -> None:
        # Nothing else in a handler: the code that it interrupts may hold a lock.
        self._signal = self._signal or name

    def _fail(self, sentence: str, code: int, *, event: str = "failed", is_cause: bool = True) -> None:
        self._has_failed = True
        self._code = self._code or code
        self._tell_event(event, **{"reason" if is_cause else "why": sentence})
        with suppress(OSError):  # on a full disk the run must end all the same
            request_stop(self._paths, by=SUPERVISOR, reason=sentence)

    def _tell_event(self, name: str, **data: object) -> None:
        with suppress(OSError):  # a full disk is no reason to end what serves
            add_event(self._paths, "serve", name, **data)

    def _stop(self) -> None:
        """Withdraw the endpoint; the ranks obey the stop request, or the signal, by themselves."""
        self._stopping_since = time.monotonic()
        self._withdraw()
        for instance in self._instances:
            if instance.state == "restarting":
                instance.state = "ended"
        if self._signal is not None or StopRequest.read(self._paths.stop_request) is None:
            self._terminate()

    def _is_overdue(self) -> bool:
        assert self._stopping_since is not None
        grace_s = _STOP_GRACE_S if self._signal is None else _SIGNAL_GRACE_S
        return time.monotonic() - self._stopping_since > grace_s

    def _terminate(self) -> None:
        """Signal everything below this process but the doors, which close last."""
        if self._door is not None:
            self._door.remove_folder()
        doors = {child.pid for child in self._node_doors}
        for pid in descendants(os.getpid()):
            if pid not in doors and (self._door is None or pid != self._door.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    def _close(self) -> None:
        # After a failure there is a stop request, which the ranks obey by themselves.
        self._wait_for_instances(_STOP_GRACE_S, until_signal=True)
        if any(self._running()):
            self._terminate()
            self._wait_for_instances(_SIGNAL_GRACE_S, until_signal=False)
        if self._front is not None:
            self._front.close()
        if self._gateway is not None:
            self._gateway.close()
        if self._door is not None:
            self._door.close()
        for door in self._node_doors:
            door.terminate()
        for door in self._node_doors:
            with suppress(subprocess.TimeoutExpired):
                door.wait(_SIGNAL_GRACE_S)
        kill_descendants()
        self._note()

    def _wait_for_instances(self, timeout_s: float, *, until_signal: bool) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(self._running()):
            if until_signal and self._signal is not None:
                return
            time.sleep(_TICK_S)

    def _running(self) -> Iterator[bool]:
        for instance in self._instances:
            yield instance.child is not None and instance.child.poll() is None

    def _note(self) -> None:
        with suppress(OSError):
            write_json(self._paths.instances, [instance.as_json() for instance in self._instances])


def _was_signalled(record: RankRecord) -> bool:
    return (record.stopped_by or "").startswith("SIG")


def _how_it_ended(records: Sequence[RankRecord], code: int) -> str:
    """Return one sentence, from the records of an instance's ranks."""
    if not records:
        return f"no rank was started (exit code {code})"
    judge = verdict(records)
    if judge is not None and judge.reason is not None:
        return judge.reason.rstrip(".")
    first = first_to_fail(records, over=True) or min(
        records, key=lambda record: record.stopped_by == "leader"
    )
    if first.ended_at is None:
        return f"rank {first.rank} on {first.host} was killed before it could record its end"
    if first.exit_code is not None and first.exit_code < 0:
        how = f"was killed by signal {-first.exit_code}"
    else:
        how = f"ended with exit code {first.exit_code}"
    because = f": {first.reason.rstrip('.')}" if first.reason else ""
    return f"rank {first.rank} on {first.host} {how}{because}"
