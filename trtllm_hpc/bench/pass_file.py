"""The requests of the pass that runs, on the disk while it runs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.bench.load.messages import Reply
from trtllm_hpc.bench.records import UNFINISHED, RequestRecord, append_records, replace_end

_INTERVAL_S = 1.0
"""Between two writes."""
_BATCH = 32
"""Records between two pauses of the writer, which shares the interpreter with the sender."""
_PAUSE_S = 0.001


class PassFile:
    """Appends each request of a pass when it has ended; at the pass's end whole records take their place.

    While the pass runs, its window and the tokens of its answers are not known: what is written
    until then has the phase ``unfinished``, and stays if the measurement is killed.
    A thread writes, because a slow shared file system must not delay the sender.
    """

    def __init__(self, path: Path, level: int, repeat: int) -> None:
        self._path, self._level, self._repeat = path, level, repeat
        self._begin = path.stat().st_size if path.exists() else 0
        self._ended = deque[Reply]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, name="records", daemon=True)

    def __enter__(self) -> PassFile:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def add(self, reply: Reply) -> None:
        """Take note of a request that has ended."""
        self._ended.append(reply)

    def finish(self, records: Sequence[RequestRecord]) -> None:
        """Put the records of the whole pass into the file."""
        self._ended.clear()
        self._stop()
        replace_end(self._path, self._begin, records)

    def _stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        over = False
        while not over:
            over = self._over.wait(_INTERVAL_S)
            with suppress(OSError):  # a full disk must not end the measurement
                self._append_new()

    def _append_new(self) -> None:
        while count := min(len(self._ended), _BATCH):
            ended = [self._ended.popleft() for _ in range(count)]
            append_records(self._path, map(self._record, ended), sync=False)
            time.sleep(_PAUSE_S)

    def _record(self, reply: Reply) -> RequestRecord:
        return RequestRecord(
            index=reply.index,
            level=self._level,
            repeat=self._repeat,
            phase=UNFINISHED,
            scheduled_s=reply.due_s,
            sent_s=reply.sent_s,
            ended_s=reply.ended_s,
            status=reply.status,
            error=reply.error,
        )
