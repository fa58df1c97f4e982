"""One instance of the server as its supervisor sees it, and the options of the supervisor."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.heartbeat import SilenceWatch, watch_ranks
from trtllm_hpc.runtime.process import start_bound, start_ticks
from trtllm_hpc.runtime.proxy import SOCKETS_VARIABLE, ProxyOptions
from trtllm_hpc.runtime.records import try_event
from trtllm_hpc.runtime.stop import SUPERVISOR_VARIABLE


@dataclass(frozen=True)
class SupervisorOptions:
    """The options that ``serve.sbatch`` passes."""

    count: int
    minimum: int
    """Fewest instances that must live."""
    restarts: int
    """Of each instance that has served."""
    proxy: ProxyOptions | None
    """``None``: the single server listens on the network itself."""
    key: bool
    tls: bool
    leaders: Mapping[int, Sequence[int]]
    """The instances whose leaders are on each node, by the node's number within the job."""
    companion_start_seconds: float | None
    companion_silence_seconds: float | None
    drain_seconds: float
    """Bound on open requests once the time limit is near."""
    idle_seconds: float | None = None
    """How long nobody may ask before the server ends; ``None``: for ever."""
    hang_seconds: float | None = None
    """How long an instance's leader may give no sign of life; ``None``: for ever."""
    roles: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The instances of each phase of a disaggregated run, which have a front."""

    def role(self, instance: int) -> str | None:
        """Return the phase of an instance, if the run is disaggregated."""
        return next((role for role, numbers in self.roles.items() if instance in numbers), None)


@dataclass
class Instance:
    """One instance, as the supervisor sees it."""

    number: int
    step: str
    sockets: Path | None = None
    """Folder of its sockets behind a proxy."""
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
    """When a rank was first seen to have failed, while the step goes on."""

    def start(self, paths: RunPaths, hang_seconds: float | None, own: Path) -> None:
        """Start its ranks; ``own`` is the supervisor's heartbeat."""
        paths.ready_record(self.step).unlink(missing_ok=True)
        for record in paths.ranks.glob(f"{self.step}_*.json"):
            record.unlink(missing_ok=True)
        self.state, self.over_since = "starting", None
        self.leader = watch_ranks(paths, self.step, range(1), hang_seconds, own)
        try_event(paths, "serve", "server_start", instance=self.number)
        command = ["bash", str(paths.script("instance")), str(self.number)]
        sockets = {} if self.sockets is None else {SOCKETS_VARIABLE: str(self.sockets)}
        supervisor = {SUPERVISOR_VARIABLE: f"{os.getpid()} {start_ticks(os.getpid())}"}
        self.child = start_bound(command, {**os.environ, **sockets, **supervisor})

    @property
    def lives(self) -> bool:
        """Whether it serves, or may come to."""
        return self.state in ("starting", "ready", "restarting")

    @property
    def runs(self) -> bool:
        """Whether its process runs."""
        return self.child is not None and self.child.poll() is None

    def as_json(self) -> dict[str, object]:
        """Return what ``status`` shows."""
        state = {"state": self.state, "restarts": self.restarts, "reason": self.reason}
        return {"instance": self.number, **state}
