"""What each rank of a model does; as a program, a spawned one (upstream's ``trtllmExecutorWorker``)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ASK, STEP, PART, CACHE, CACHED = range(1, 6)
"""Tags: a request and its answer, a step and a rank's part of it, the KV cache of another model's rank."""


def check_engine(engine: str, rank: int, ranks: int) -> None:
    """Read what upstream reads of an engine.

    Raises:
        RuntimeError: in upstream's words, if it is of another layout, or a file is missing.
    """
    mapping = json.loads((Path(engine) / "config.json").read_text())["pretrained_config"]["mapping"]
    if mapping["world_size"] != ranks:
        tp, pp, cp = (mapping.get(f"{kind}_size", 1) for kind in ("tp", "pp", "cp"))
        raise RuntimeError(f"MPI size {ranks} != TP size {tp} * PP size {pp} * CP Size {cp}")
    file = Path(engine) / f"rank{rank}.engine"
    if not file.is_file():
        raise RuntimeError(f"Error opening engine file: {file}")


def receive(comm: Any, source: int, tag: int) -> Any:
    """Receive without keeping a processor busy, as MPI's own waiting would."""
    while not comm.iprobe(source=source, tag=tag):
        time.sleep(0.001)
    return comm.recv(source=source, tag=tag)


class Rank:
    """One rank of a model.

    Args:
        comm: all processes that can reach each other.
        group: the numbers of the model's ranks there; the first leads.
    """

    def __init__(self, comm: Any, group: Sequence[int]) -> None:
        self._comm, self._group, self._own = comm, tuple(group), comm.Get_rank()
        self._kept: dict[str, list[int]] = {}
        """By request: this rank's part of a prompt, until the model that generates fetches it."""

    def serve(self, asking: Any, source: int) -> None:
        """Answer until told to end: the leader the requests of another process, the others its steps."""
        while True:
            if self._own == self._group[0] and asking.iprobe(source=source, tag=ASK):
                request = asking.recv(source=source, tag=ASK)
                if request is None:
                    self.end()
                    return
                asking.send(self.answer(request), dest=source, tag=ASK)
            elif self._own != self._group[0] and self._comm.iprobe(source=self._group[0], tag=STEP):
                step = self._comm.recv(source=self._group[0], tag=STEP)
                if step is None:
                    return
                self._comm.send(self._compute(step), dest=self._group[0], tag=PART)
            elif (sender := self._wants_cache()) is not None:
                key = self._comm.recv(source=sender, tag=CACHE)
                self._comm.send(self._kept.pop(key), dest=sender, tag=CACHED)
            else:
                time.sleep(0.001)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compute one request with all ranks of the model; only its leader is asked."""
        if request["kind"] == "generation":
            # From every rank that has computed the prompt, whatever the layout of that model is.
            parts = [self._fetch(rank, request["key"]) for rank in request["holders"]]
            request = {**request, "tokens": _merged(parts)}
        for other in self._group[1:]:
            self._comm.send(request, dest=other, tag=STEP)
        own = self._compute(request)
        others = [receive(self._comm, other, PART) for other in self._group[1:]]
        return {"tokens": _merged([own, *others]), "holders": self._group}

    def end(self) -> None:
        """End the model's other ranks."""
        for other in self._group[1:]:
            self._comm.send(None, dest=other, tag=STEP)

    def _compute(self, request: dict[str, Any]) -> list[int]:
        """This rank's tokens of the answer; of a prompt alone, what it keeps of it."""
        tokens, count = request["tokens"], request["count"]
        index, of = self._group.index(self._own), len(self._group)
        if request["kind"] == "context":
            self._kept[request["key"]] = tokens[index::of]
            return [tokens[0]] if index == 0 else []
        return [tokens[place % len(tokens)] for place in range(index, count, of)]

    def _fetch(self, rank: int, key: str) -> list[int]:
        self._comm.send(key, dest=rank, tag=CACHE)
        part: list[int] = receive(self._comm, rank, CACHED)
        return part

    def _wants_cache(self) -> int | None:
        from mpi4py import MPI

        status = MPI.Status()
        waits = self._comm.iprobe(source=MPI.ANY_SOURCE, tag=CACHE, status=status)
        return status.Get_source() if waits else None


def _merged(parts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens in their order, from each rank's own."""
    total = sum(map(len, parts))
    return [parts[place % len(parts)][place // len(parts)] for place in range(total)]


def main() -> None:
    """A spawned rank: tell the parent whether the engine fits, then serve it."""
    from mpi4py import MPI

    comm, parent = MPI.COMM_WORLD, MPI.Comm.Get_parent()
    rank, ranks = comm.Get_rank(), comm.Get_size()
    try:
        check_engine(sys.argv[1], rank, ranks)
        fault = None
    except (RuntimeError, OSError) as error:
        fault = str(error)
    faults = comm.gather(fault, root=0)
    if faults is not None:
        parent.send(next(filter(None, faults), None), dest=0, tag=ASK)
    if not any(comm.bcast(faults, root=0)):
        Rank(comm, range(ranks)).serve(parent, 0)
    parent.Disconnect()


if __name__ == "__main__":
    main()
