"""Which rank failed first, from the ranks' own records."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def first_to_fail(records: Sequence[RankRecord], *, over: bool) -> RankRecord | None:
    """Return the record of the rank of one server that failed first; ``None`` if none has failed.

    First comes the rank that another one found silent or stopped. Then one that recorded no end although the
    step is ``over``: it was killed before the others, which still recorded how they ended. Then ranks that
    died by themselves, and of these the ones that do not only say that they lost another rank, whatever the
    times of their records: those of two nodes cannot be compared to the millisecond.
    """
    judge = verdict(records)
    if judge is not None:
        return next((record for record in records if record.rank == judge.blames), judge)
    silent = [record for record in records if record.ended_at is None]
    if silent and over:
        return silent[0]
    failed = [record for record in records if failed_by_itself(record)]
    own = [record for record in failed if not _blames_another(record)] or failed
    if not own:
        return None
    earliest = min(record.ended_at or 0.0 for record in own)
    together = [record for record in own if (record.ended_at or 0.0) <= earliest + SAME_MOMENT_S]
    # One that was killed gives no reason; those with a reason had time to notice something.
    return min(together, key=lambda record: (record.exit_code == 0, record.reason is not None, record.rank))


def cut_network(records: Sequence[RankRecord]) -> str | None:
    """Return a sentence if every rank failed because it lost another one, though none was killed."""
    hosts = sorted({record.host for record in records})
    losers = [record for record in records if failed_by_itself(record) and _blames_another(record)]
    if len(hosts) < 2 or len(losers) < records[0].world_size:
        return None
    return f"every rank has lost another one, so the network between {' and '.join(hosts[:4])} may be cut"


def _blames_another(record: RankRecord) -> bool:
    return record.reason is not None and _OF_ANOTHER.search(record.reason) is not None
