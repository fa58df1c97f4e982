"""Totals over the measured requests of a measurement: tokens, and what went wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from trtllm_hpc.bench.records import RequestRecord

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def token_totals(records: Iterable[RequestRecord]) -> dict[str, Any]:
    """Tokens of all measured answers and of their prompts, and who counted them.

    A total of which any part is unknown is ``None``.
    """
    answered = [record for record in records if record.measured and record.ok]
    return {
        "input": _total([record.input_tokens for record in answered]),
        "output": _total([record.output_tokens for record in answered]),
        "input_by": _counters(record.input_by for record in answered),
        "output_by": _counters(record.output_by for record in answered),
        "chunks_by": _counters(record.chunks_by for record in answered),
    }


def kinds_of_errors(records: Iterable[RequestRecord]) -> dict[str, int]:
    """Each kind of error with its number of measured requests.

    Where only numbers differ it is one kind, told in the words that came first.
    """
    kinds: dict[str, Counter[str]] = {}
    for record in records:
        if record.measured and not record.ok:
            words = (record.error or "").strip() or record.status
            kinds.setdefault(_NUMBER.sub("N", words), Counter())[words] += 1
    return {_told(words): words.total() for words in kinds.values()}


def _told(words: Counter[str]) -> str:
    first, others = next(iter(words)), len(words) - 1
    return f"{first} (and {others} more that differ in numbers only)" if others else first


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _counters(names: Iterable[str | None]) -> list[str]:
    return sorted({name for name in names if name is not None})
