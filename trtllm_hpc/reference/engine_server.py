"""The engine's process: ``python -m trtllm_hpc.reference.engine_server SOCKET OWNER``.

It serves the models' processes with the messages of ``engine_process``, and ends with the process that
started it, however that one ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import itertools
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from trtllm_hpc.reference import stand_in
from trtllm_hpc.reference.engine_config import EngineFolder, ServeSettings
from trtllm_hpc.reference.engine_process import (
    Answers,
    Cancel,
    Ended,
    Failed,
    Lengths,
    Ready,
    Report,
    Start,
    Stop,
    Submit,
    address,
    is_own,
)
from trtllm_hpc.reference.generation import Load, Outcome, Progress
from trtllm_hpc.reference.leader import Engine, Leader, follow
from trtllm_hpc.reference.metrics import memory_used
from trtllm_hpc.reference.shutdown import first_sentence
from trtllm_hpc.reference.world import World

REPORT_PERIOD_S = 0.05
"""Longest time between two reports of a busy engine to its owner, whether or not there are answers."""

_log = logging.getLogger(__name__)


class Client:
    """A model's process: collects its answers of a step, and sends them from a thread of their own.

    So the engine's thread never waits for a model's process.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.unfinished: dict[int, list[int]] = {}
        """Tokens of prompt and answer so far of each open request, by ticket."""
        self._sending = threading.Lock()
        self._answers = Answers()
        self._finished: list[Lengths] = []
        self._queue: queue.SimpleQueue[tuple[Answers, Load, list[Lengths]] | None] = queue.SimpleQueue()
        self._queued_s = 0.0
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._thread.start()

    def hear(self, owner: Client, ticket: int, outcome: Outcome) -> None:
        """Keep an outcome for the end of the step, and the sequence's lengths for the owner of the engine."""
        self._answers.add(ticket, outcome)
        if not isinstance(outcome, Progress):
            self.unfinished.pop(ticket, None)
            return
        lengths = self.unfinished[ticket]
        lengths[1] += sum(map(len, outcome.tokens))
        if outcome.is_final:
            del self.unfinished[ticket]
            if owner is not self:
                owner._finished.append((lengths[0], lengths[1]))

    def end_step(self, load: Load, *, always: bool) -> None:
        """Send what was kept; with ``always`` also what the engine does, from time to time."""
        now = time.monotonic()
        is_due = always and (not load.active or now - self._queued_s > REPORT_PERIOD_S)
        if self._answers or self._finished or is_due:
            self._queued_s = now
            self._queue.put((self._answers, load, self._finished))
            self._answers, self._finished = Answers(), []

    def send(self, message: object) -> None:
        """Send a message at once."""
        with self._sending:
            self.connection.send(message)

    def die(self, sentence: str) -> NoReturn:
        """Send why the engine cannot go on, and end the process."""
        try:
            self.send(Failed(sentence))
        finally:
            os._exit(1)

    def close(self) -> None:
        """Send what is left."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        memory, measured_s = memory_used(), time.monotonic()
        while (item := self._queue.get()) is not None:
            answers, load, finished = item
            if time.monotonic() - measured_s > REPORT_PERIOD_S:
                memory, measured_s = memory_used(), time.monotonic()
            try:
                self.send(Report(answers, load, memory, finished))
            except OSError:
                # It has hung up; the thread that reads its orders knows.
                continue


class Clients:
    """The models' processes that ask the engine; the first one owns it."""

    def __init__(self, owner: Client) -> None:
        self._owner = owner
        self._others: tuple[Client, ...] = ()
        """Replaced under ``_changing``; the engine's thread reads it without."""
        self._changing = threading.Lock()
        self._numbers = itertools.count()

    def end_step(self, load: Load) -> None:
        """Send each its answers."""
        self._owner.end_step(load, always=True)
        for client in self._others:
            client.end_step(load, always=False)

    def obey(self, leader: Leader, client: Client) -> None:
        """Hand a client's orders to the leader, which carries them out in its own thread."""
        number = next(self._numbers)
        while True:
            order = _next_order(client.connection)
            match order:
                case Submit(tickets, requests):
                    for ticket, request in zip(tickets, requests, strict=True):
                        client.unfinished[ticket] = [len(request.prompt), 0]
                    listeners = [partial(client.hear, self._owner, ticket) for ticket in tickets]
                    leader.submit(requests, listeners, [(number, ticket) for ticket in tickets])
                case Cancel(ticket, keep):
                    leader.cancel((number, ticket), keep=keep)
                case Stop():
                    leader.stop()
                    return
                case _:
                    break
        if client is self._owner:
            os._exit(1)
        with self._changing:
            self._others = tuple(other for other in self._others if other is not client)
        for ticket in list(client.unfinished):
            leader.cancel((number, ticket), keep=False)
        client.close()

    def accept(self, listener: socket.socket, leader: Leader, ready: Ready) -> None:
        """Take the connections of other models' processes, of the same user only."""
        while True:
            theirs, _ = listener.accept()
            if not is_own(theirs):
                theirs.close()
                continue
            client = Client(Connection(theirs.detach()))
            try:
                client.send(ready)
            except OSError:
                client.close()
                continue
            with self._changing:
                self._others = (*self._others, client)
            threading.Thread(target=self.obey, args=(leader, client), name="orders", daemon=True).start()

    def end(self) -> None:
        """Send each what is left, and that the engine has stopped."""
        for client in (*self._others, self._owner):
            client.close()
            with suppress(OSError):
                client.send(Ended())


def loader(folder: EngineFolder) -> Callable[[EngineFolder, ServeSettings, World], Engine]:
    """Return what loads the engine in a folder; imports the libraries that it needs."""
    if stand_in.is_stand_in(folder):
        return stand_in.load
    from trtllm_hpc.reference import engine

    return engine.load


def serve(connection: Connection, start: Start) -> None:
    """Load the engine that the owner's first message names, and serve until the owner says stop."""
    folder = EngineFolder(start.folder)
    try:
        # Before the client's thread runs, which asks torch for the GPU's memory once torch is there.
        load = loader(folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, the owner reports it
        _log.exception("the engine's libraries cannot be imported")
        connection.send(Failed(f"The engine's libraries cannot be imported: {first_sentence(error)}"))
        os._exit(1)
    owner = Client(connection)
    try:
        engine = load(folder, start.settings, start.world)
        listener = socket.socket(socket.AF_UNIX)
        if start.world.is_leader:
            # Other models' processes connect to it.
            listener.bind(address(start.server))
            listener.listen()
        gc.freeze()
        gc.enable()
    except Exception as error:  # noqa: BLE001 - as above
        _log.exception("the engine could not be loaded")
        owner.die(first_sentence(error))
    if start.world.is_leader:
        clients = Clients(owner)
        leader = Leader(engine, start.settings, owner.die, on_step=clients.end_step)
        ready = Ready(engine.info, leader.load(), memory_used())
        for target, arguments in (
            (clients.obey, (leader, owner)),
            (clients.accept, (listener, leader, ready)),
        ):
            threading.Thread(target=target, args=arguments, daemon=True).start()
        owner.send(ready)
        leader.run()
        clients.end()
    else:
        owner.send(Ready(engine.info, None, memory_used()))
        threading.Thread(target=_end_with_owner, args=(owner,), daemon=True).start()
        follow(engine, owner.die, start.world.rank)
        owner.close()
        owner.send(Ended())


def _end_with_owner(owner: Client) -> None:
    _next_order(owner.connection)
    os._exit(1)


def _next_order(connection: Connection) -> Any:
    """The next order of a model's process; ``None`` if it has hung up or ended."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


_PR_SET_PDEATHSIG = 1
"""``prctl``: the kernel sends a signal when the parent ends."""


def main() -> None:
    """Load the engine as the first message says, and serve until its owner says stop."""
    faulthandler.enable()
    # A signal to the whole job must not end the engine before the requests that it answers.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        # The owner ended before the signal was asked for.
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    # What is imported stays; looking through it again and again for garbage takes a fifth of the start.
    gc.disable()
    connection = Connection(int(sys.argv[1]))
    start: Start = connection.recv()
    serve(connection, start)
    logging.shutdown()
    # Now and then a thread of gloo outlives its group, and the interpreter's end aborts (std::terminate).
    os._exit(0)


if __name__ == "__main__":
    main()
