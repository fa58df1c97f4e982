"""Whether the figures may be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.tokens import BY_REQUEST

MAX_ERROR_SHARE = 0.01
MAX_LATE_SHARE = 0.01
_LATE_S = 0.001
_LATE_SHARE_OF_GAP = 0.01


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a measurement, in sentences."""

    findings: list[str]
    """Each makes the figures useless."""
    warnings: list[str]
    """Each must be known to whoever reads the figures."""
    late_share: float
    """Share of requests that the client sent late."""


def judge(records: Sequence[RequestRecord], rate_per_s: float) -> Verdict:
    """Judge a measurement by its records.

    A send is late by more than 1 ms plus 1 % of the mean gap.
    """
    findings, warnings = [], []
    failed = [record for record in records if not record.ok]
    if len(failed) == len(records):
        findings.append("No request was answered.")
    elif len(failed) > MAX_ERROR_SHARE * len(records):
        findings.append(f"{len(failed)} of {len(records)} requests failed; at most 1 % may.")
    allowed_s = _LATE_S + _LATE_SHARE_OF_GAP / rate_per_s
    delays_s = [record.sent_s - record.scheduled_s for record in records]
    late = sum(delay_s > allowed_s for delay_s in delays_s)
    if late > MAX_LATE_SHARE * len(records):
        warnings.append(
            f"{late} of {len(records)} requests were sent more than {allowed_s * 1e3:.1f} ms late, at worst "
            f"{max(delays_s) * 1e3:.1f} ms: that much of their latency is the client's own."
        )
    if any(record.tokens_by == BY_REQUEST for record in records):
        warnings.append("Output tokens were not counted; the number asked for was taken instead.")
    return Verdict(findings, warnings, late / len(records) if records else 0.0)
