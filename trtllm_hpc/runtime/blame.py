"""Which rank failed first, and in which words, from the ranks' own records.

The supervisor, ``status``, ``explain`` and the exclusion of nodes share this notion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trtllm_hpc.runtime.process import end_of
from trtllm_hpc.runtime.records import RankRecord

SAME_MOMENT_S = 3.0
"""Ends closer than this are not ordered by time: they come from different clocks and polls."""

_OF_ANOTHER = re.compile(
    r"lost another rank|timed out|timeout|connection (?:closed|reset|refused)|peer", re.IGNORECASE
)
"""Reasons of a rank that only noticed that another one had gone, or did not answer."""


def failed_by_itself(record: RankRecord) -> bool:
    """Return whether a rank failed, and not because it was stopped.

    A server that ends without a request has failed whatever its exit code:
    TensorRT-LLM's workers exit with 0 even when the leader is lost.
    """
    if record.ended_at is None or record.stopped_by is not None:
        return False
    return record.exit_code != 0 or record.step.partition(".")[0] == "serve"


def verdict(records: Sequence[RankRecord]) -> RankRecord | None:
    """Return the record of the rank that has ended its own server, because of another rank or a fault.

    One that names another rank comes before one that names itself.
    """
    judges = [record for record in records if record.blames is not None and record.ended_at is not None]
    return min(judges, key=lambda record: (record.blames == record.rank, record.rank), default=None)


def first_to_fail(records: Sequence[RankRecord]) -> RankRecord | None:
    """Return the record of the rank that failed first of a server that is over; ``None`` if none has failed.

    First comes the rank that another one found silent or stopped. Then one that recorded no end: it was
    killed before the others, which still recorded how they ended. Then ranks that died by themselves, and of
    these the ones that do not only say that they lost another rank, whatever the times of their records:
    those of two nodes cannot be compared to the millisecond.
    """
    if (judge := verdict(records)) is not None:
        return next((record for record in records if record.rank == judge.blames), judge)
    if (silent := next((record for record in records if record.ended_at is None), None)) is not None:
        return silent
    failed = [record for record in records if failed_by_itself(record)]
    own = [record for record in failed if not _OF_ANOTHER.search(record.reason or "")] or failed
    earliest = min((record.ended_at or 0.0 for record in own), default=0.0)
    together = [record for record in own if (record.ended_at or 0.0) <= earliest + SAME_MOMENT_S]
    # One that was killed gives no reason; those with a reason had time to notice something.
    return min(
        together,
        key=lambda record: (record.exit_code == 0, record.reason is not None, record.rank),
        default=None,
    )


def cut_network(records: Sequence[RankRecord]) -> str | None:
    """Return a sentence if every rank failed because it lost another one, though none was killed."""
    hosts = sorted({record.host for record in records})
    losers = [it for it in records if failed_by_itself(it) and _OF_ANOTHER.search(it.reason or "")]
    if len(hosts) < 2 or len(losers) < records[0].world_size:
        return None
    return f"every rank has lost another one, so the network between {' and '.join(hosts[:4])} may be cut"


def how_it_ended(records: Sequence[RankRecord], code: int) -> str:
    """Return how a server has ended in one sentence; ``code`` is the exit code of its step."""
    if not records:
        return f"no rank was started (exit code {code})"
    judge = verdict(records)
    if judge is not None and judge.reason is not None:
        return judge.reason.rstrip(".")
    first = first_to_fail(records) or min(records, key=lambda record: record.stopped_by == "leader")
    if first.ended_at is None:
        return f"rank {first.rank} on {first.host} was killed before it could record its end"
    how = "ended, with an unknown exit code" if first.exit_code is None else end_of(first.exit_code)
    because = f": {first.reason.rstrip('.')}" if first.reason else ""
    network = f"; {cut}" if (cut := cut_network(records)) is not None else ""
    return f"rank {first.rank} on {first.host} {how}{because}{network}"


def rank_name(records: Sequence[RankRecord], step: str, rank: int) -> str:
    """Return how to name a rank of an instance, with its host if it has a record."""
    instance = step.partition(".")[2]
    name = f"rank {rank}{f' of instance {instance}' if instance else ''}"
    host = next((record.host for record in records if record.rank == rank), None)
    return name if host is None else f"{name} on {host}"
