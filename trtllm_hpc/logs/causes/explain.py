"""Why a job failed: the matches of all its logs together, the likeliest cause first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_hpc.logs.causes.scan import Match, Scanned
from trtllm_hpc.logs.causes.table import Kind, causes

_OF_RANK = re.compile(r"_(\d+)\.(?:out|log|err)$")


@dataclass(frozen=True)
class Finding:
    """A cause that was found, in words."""

    id: str
    """Its name in the table of causes (`docs/causes.md`)."""
    kind: Kind
    """``root``, or ``consequence`` of something else."""
    sentence: str
    """What has happened."""
    next: str
    """What to do about it."""
    file: str | None
    """The log; ``-`` for the standard input; ``None`` if Slurm told it."""
    line: int | None
    """Where it stands in the log, from 1."""
    rank: int | None
    """Whose log it is, or whose the line says it is."""
    match: str
    """The text, without stamps, cut around what matched."""


def findings(scanned: Scanned, name: str, rank: int | None = None) -> list[Finding]:
    """Return the causes in a log, in its order."""
    of_file = _OF_RANK.search(name)
    rank = int(of_file[1]) if rank is None and of_file else rank
    return [finding(match, name, rank) for match in scanned.matches]


def finding(match: Match, file: str | None, rank: int | None = None) -> Finding:
    """Return a match in words."""
    cause = match.cause
    rank = match.rank if match.rank is not None else rank
    sentence, following = (cause.told(text, match.groups) for text in (cause.sentence, cause.next))
    return Finding(cause.id, cause.kind, sentence, following, file, match.line, rank, match.text)


def ranked(logs: Sequence[Sequence[Finding]]) -> tuple[Finding, ...]:
    """Return the causes of several logs, each once, the likeliest first.

    Root causes come before consequences, causes that end a process before those of single
    requests, precise ones before generic ones. Then the order of the logs decides, the one of the
    rank that died by itself first, and within one log the order of the lines; time decides nothing,
    since a rank that lost another may tell it first.
    """
    found = [(place, one) for place, log in enumerate(logs) for one in log]
    found.sort(key=lambda it: (*_weight(it[1]), it[0], it[1].line or 0))
    return tuple({one.id: one for _, one in reversed(found)}[name] for name in _in_order(found))


def _in_order(found: Sequence[tuple[int, Finding]]) -> list[str]:
    return list(dict.fromkeys(one.id for _, one in found))


def _weight(found: Finding) -> tuple[bool, bool, bool]:
    cause = causes().get(found.id)
    if cause is None:
        return (found.kind is not Kind.ROOT, False, False)
    return (found.kind is not Kind.ROOT, not cause.fatal, cause.generic)
