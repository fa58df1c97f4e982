"""The engine in a process of its own, as the models' processes see it.

Threads of one Python process take turns. In one process, the threads that send answers to Triton and the
engine would keep each other waiting: a step would begin late, and the answers of the last one would, too. So
the models' processes only read requests and send answers, and exchange the messages of this module with the
engine's process. ``tensorrt_llm`` starts it; the others connect to it.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from trtllm_hpc.errors import StartFailed
from trtllm_hpc.reference.engine_config import EngineInfo, ServeSettings
from trtllm_hpc.reference.generation import EngineLost, GenerationRequest, Load, Outcome, Progress
from trtllm_hpc.reference.world import World

_log = logging.getLogger(__name__)

_SPINS = "120000"
"""GNU OpenMP's ``GOMP_SPINCOUNT`` for an engine on CPUs: some 300 µs.

Its threads spin for milliseconds by default while they wait for each other. If
something else needs the cores, they spin while the one that they wait for
cannot run. Threads that sleep at once take half as long again to wake up.
"""


@dataclass(frozen=True)
class Start:
    """First message to the engine: load."""

    folder: Path
    settings: ServeSettings
    world: World
    server: int
    """Process id of the rank's Triton server."""


@dataclass(frozen=True)
class Submit:
    """Requests that belong together, each with the number that its answer will have."""

    tickets: tuple[int, ...]
    requests: tuple[GenerationRequest, ...]


@dataclass(frozen=True)
class Cancel:
    """End a request; with ``keep`` it gets the tokens generated so far."""

    ticket: int
    keep: bool


@dataclass(frozen=True)
class Stop:
    """Finish what is queued, and end."""


@dataclass(frozen=True)
class Ready:
    """The engine is loaded."""

    info: EngineInfo
    load: Load | None
    """``None`` from ranks above 0."""
    memory: Mapping[str, int]


@dataclass(frozen=True)
class Failed:
    """The engine could not be loaded, or cannot go on."""

    sentence: str


@dataclass
class Answers:
    """What was generated: the tokens of streamed answers, oldest first, and all other outcomes by ticket."""

    tickets: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finals: list[bool] = field(default_factory=list)
    """Whether it is the last token of its answer."""
    others: list[tuple[int, Outcome]] = field(default_factory=list)

    def add(self, ticket: int, outcome: Outcome) -> None:
        """Keep an outcome; a message of plain lists is made and read several times faster."""
        if isinstance(outcome, Progress) and outcome.is_one_token:
            self.tickets.append(ticket)
            self.tokens.append(outcome.tokens[0][0])
            self.log_probs.append(outcome.log_probs[0][0])
            self.finals.append(outcome.is_final)
        else:
            self.others.append((ticket, outcome))

    def __bool__(self) -> bool:
        return bool(self.tickets or self.others)

    def __iter__(self) -> Iterator[tuple[int, Outcome]]:
        rows = zip(self.tickets, self.tokens, self.log_probs, self.finals, strict=True)
        for ticket, token, log_prob, is_final in rows:
            yield ticket, Progress(((token,),), ((log_prob,),), is_final)
        yield from self.others


Lengths = tuple[int, int]
"""Tokens of a prompt and of its answer, over all beams."""


@dataclass(frozen=True)
class Report:
    """What was generated since the last report, and what the engine does."""

    answers: Answers
    load: Load
    memory: Mapping[str, int]
    """Bytes that the engine's process uses, by kind."""
    finished: Sequence[Lengths] = ()
    """Of the sequences that ended for other models, for the model that started the engine."""


@dataclass(frozen=True)
class Ended:
    """The engine has stopped in order."""


Hear = Callable[[Mapping[int, Sequence[Outcome]]], object]
"""Called with all that was generated since it was last called, by ticket and oldest first."""

Observe = Callable[[int, int], object]
"""Called with the tokens of prompt and answer of each sequence that ended without an error."""


class EngineClient:
    """A connection to an engine's process. Raises StartFailed if the engine could not be loaded."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._reader: threading.Thread | None = None
        ready = self._receive()
        if isinstance(ready, Failed):
            raise StartFailed(ready.sentence)
        assert isinstance(ready, Ready)
        self.info = ready.info
        self._load = ready.load
        self.memory = ready.memory
        """Bytes that the engine's process used when it was last heard of, by kind."""

    def serve(
        self,
        hear: Hear,
        lost: Callable[[str], object],
        observe: Observe = lambda prompt, answer: None,
    ) -> None:
        """Pass on reports from now on, in a thread of its own.

        ``lost`` is called with a sentence if the engine fails, or its process ends; ``observe`` for the
        sequences of other models.
        """

        def read() -> None:
            try:
                end = self._pass_on(hear, observe)
            except Exception as error:  # noqa: BLE001 - without reports every request would wait forever
                end = Failed(f"The engine's reports could not be read: {type(error).__name__}: {error}")
            if isinstance(end, Failed):
                lost(end.sentence)

        self._reader = threading.Thread(target=read, name="reports", daemon=True)
        self._reader.start()

    def submit(self, tickets: Sequence[int], requests: Sequence[GenerationRequest]) -> None:
        """Queue requests that belong together, all or none."""
        self._send(Submit(tuple(tickets), tuple(requests)))

    def cancel(self, ticket: int, *, keep: bool) -> None:
        """End a request and free its slot; does nothing for an unknown or finished one.

        With ``keep`` the tokens generated so far are reported as the final ones, otherwise a failure.
        """
        self._send(Cancel(ticket, keep))

    def load(self) -> Load:
        """What the engine did when it was last heard of."""
        assert self._load is not None, "only rank 0 reports"
        return self._load

    def _pass_on(self, hear: Hear, observe: Observe) -> Ready | Failed | Ended:
        """Pass on reports until another message comes; return that one."""
        while True:
            outcomes: dict[int, list[Outcome]] = {}
            while isinstance(message := self._receive(), Report):
                self._load, self.memory = message.load, message.memory
                for lengths in message.finished:
                    observe(*lengths)
                for ticket, outcome in message.answers:
                    outcomes.setdefault(ticket, []).append(outcome)
                # Reports that came while ``hear`` was at work are passed on together.
                if not self._connection.poll():
                    break
            hear(outcomes)
            if not isinstance(message, Report):
                return message

    def _send(self, message: object) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            # Its process has ended: the reader finds the reason, or the end of the connection.
            return

    def _receive(self) -> Ready | Failed | Report | Ended:
        try:
            # pickle is safe here: the other end is a process of this user.
            message: Ready | Failed | Report | Ended = self._connection.recv()
        except (EOFError, OSError):
            return Failed("The engine's process was killed or crashed.")
        return message


class EngineProcess(EngineClient):
    """An engine's process, which ends with this one. Raises StartFailed if the engine could not be loaded."""

    def __init__(self, start: Start) -> None:
        ours, theirs = socket.socketpair()
        # As for the stub itself, the first python3 on PATH decides the environment.
        python = shutil.which("python3") or "python3"
        module = "trtllm_hpc.reference.engine_server"
        # Isolated, as the stub is, unless a path for packages is given.
        isolated = [] if "PYTHONPATH" in os.environ else ["-I"]
        command = [python, *isolated, "-m", module, str(theirs.fileno()), str(os.getpid())]
        environment = dict(os.environ)
        # What the environment says of OpenMP's threads stays.
        if "OMP_WAIT_POLICY" not in environment:
            environment.setdefault("GOMP_SPINCOUNT", _SPINS)
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment
            )
        connection = Connection(ours.detach())
        connection.send(start)
        try:
            super().__init__(connection)
        except StartFailed:
            self._process.wait()
            raise

    def stop(self) -> None:
        """Finish what is queued, stop the other ranks' engines and return."""
        self._send(Stop())
        if self._reader is not None:
            self._reader.join()
        self._process.wait()

    def wait_ended(self, lost: Callable[[str], object]) -> None:
        """Ranks above 0: wait until the leader has stopped the engine."""
        message = self._receive()
        if isinstance(message, Failed):
            lost(message.sentence)
        self._process.wait()


def address(server: int) -> str:
    """The abstract name (unix(7)) of the engine's socket, by its Triton server's process id."""
    # Containers may share a network, where the names are, and count processes by themselves.
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"\0trtllm-hpc-engine-{namespace}-{server}"


def connect() -> EngineClient:
    """Connect to the engine of this process's server. Raises EngineLost if there is none."""
    ours = socket.socket(socket.AF_UNIX)
    try:
        ours.connect(address(os.getppid()))
        if is_own(ours):
            return EngineClient(Connection(ours.detach()))
    except (OSError, StartFailed) as error:
        _log.warning("no connection to the engine: %s", error)
    ours.close()
    raise EngineLost("The model tensorrt_llm is not loaded.")


def is_own(connection: socket.socket) -> bool:
    """Whether the other end of a connection is a process of this user."""
    # ucred of unix(7): process, user and group.
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())
