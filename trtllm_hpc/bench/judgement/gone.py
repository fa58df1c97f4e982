"""Whether the server went away while it was measured."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from trtllm_hpc.bench.records import NO_CONNECTION, RequestRecord

ENDED_EARLY = "The measurement ended before its time: the server was gone."


def unanswered_end(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The requests from which on the server was gone, the last one first; none if it was not.

    Those that it had begun when it went are among them.
    """
    in_order = sorted(records, key=lambda record: record.sent_s)
    last = list(takewhile(lambda record: record.status == "UNAVAILABLE", reversed(in_order)))
    return last if last and (last[0].error or "").startswith(NO_CONNECTION) else []


def gone(records: Iterable[RequestRecord]) -> list[str]:
    """A sentence if the server was gone at the end."""
    last = unanswered_end(records)
    if not last:
        return []
    which = "request" if len(last) == 1 else f"{len(last)} requests"
    return [f"The server was gone at the end: the last {which} lost it or found no connection."]
