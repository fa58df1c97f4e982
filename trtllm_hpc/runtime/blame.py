"""Find the rank that failed first, from the ranks' records, and describe its end in a sentence.

The supervisor, ``status``, ``explain`` and the exclusion of nodes all use this module, so they agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trtllm_hpc.runtime.process import end_of
from trtllm_hpc.runtime.records import RankRecord

SAME_MOMENT_S = 3.0
"""Ends closer than this have no known order: their times come from different clocks and polls."""

_LOST_PEER = re.compile(
    r"lost another rank|timed out|timeout|connection (?:closed|reset|refused)|peer", re.IGNORECASE
)
"""Reasons of a rank that only noticed that another rank had gone, or did not answer."""


def failed_by_itself(record: RankRecord) -> bool:
    """Return whether a rank ended with a failure that no stop request or signal explains.

    A server that ends without a request has failed whatever its exit code:
    TensorRT-LLM's workers exit with 0 even when the leader is lost.
    """
    if record.ended_at is None or record.stopped_by is not None:
        return False
    return record.exit_code != 0 or record.step.partition(".")[0] == "serve"


def verdict(records: Sequence[RankRecord]) -> RankRecord | None:
    """Return the record of a rank that ended its own server because it found a rank at fault.

    A record that blames another rank is preferred to one that blames its own.
    """
    judges = [record for record in records if record.blames is not None and record.ended_at is not None]
    return min(judges, key=lambda record: (record.blames == record.rank, record.rank), default=None)


def first_to_fail(records: Sequence[RankRecord]) -> RankRecord | None:
    """Return the record of the rank of an ended server that failed first; ``None`` if no rank failed.

    In this order:

    1. a rank that another rank found silent or stopped;
    2. a rank without a recorded end: it was killed before the others, which could still record theirs;
    3. a rank that died by itself, if possible one that does not merely report a lost peer. Its time counts
       only roughly, because the clocks of two nodes differ.
    """
    if (judge := verdict(records)) is not None:
        return next((record for record in records if record.rank == judge.blames), judge)
    if (silent := next((record for record in records if record.ended_at is None), None)) is not None:
        return silent
    failed = [record for record in records if failed_by_itself(record)]
    own = [record for record in failed if not _LOST_PEER.search(record.reason or "")] or failed
    earliest = min((record.ended_at or 0.0 for record in own), default=0.0)
    together = [record for record in own if (record.ended_at or 0.0) <= earliest + SAME_MOMENT_S]
    # A killed rank gives no reason; a rank with a reason lived long enough to notice another's failure.
    return min(
        together,
        key=lambda record: (record.exit_code == 0, record.reason is not None, record.rank),
        default=None,
    )


def cut_network(records: Sequence[RankRecord]) -> str | None:
    """Return a sentence if every rank failed because it lost another rank, and no rank was killed."""
    hosts = sorted({record.host for record in records})
    losers = [
        record for record in records if failed_by_itself(record) and _LOST_PEER.search(record.reason or "")
    ]
    if len(hosts) < 2 or len(losers) < records[0].world_size:
        return None
    return f"every rank has lost another one, so the network between {' and '.join(hosts[:4])} may be cut"


def how_it_ended(records: Sequence[RankRecord], code: int) -> str:
    """Return one sentence about how a server ended; ``code`` is the exit code of its step."""
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
    """Return a rank's name for messages, e.g. ``rank 1 of instance 0 on node3``; no host without a record."""
    instance = step.partition(".")[2]
    name = f"rank {rank}{f' of instance {instance}' if instance else ''}"
    host = next((record.host for record in records if record.rank == rank), None)
    return name if host is None else f"{name} on {host}"
