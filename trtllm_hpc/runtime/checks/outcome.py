"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL, UNKNOWN = "ok", "warn", "fail", "unknown"
STATES = (OK, WARN, FAIL, UNKNOWN)


@dataclass(frozen=True)
class Outcome:
    """One finding: a state, a sentence, and what to do."""

    state: str
    """``ok``; ``warn``: works, but not as somebody may expect; ``fail``: cannot work; ``unknown``: cannot
    be judged here."""
    sentence: str
    """Without a full stop, so that a log line can carry it."""
    remedy: str | None = None


def ok(sentence: str) -> Outcome:
    """All is well."""
    return Outcome(OK, sentence)


def warn(sentence: str, remedy: str) -> Outcome:
    """Works, but."""
    return Outcome(WARN, sentence, remedy)


def fail(sentence: str, remedy: str) -> Outcome:
    """Cannot work."""
    return Outcome(FAIL, sentence, remedy)


def unknown(sentence: str, remedy: str | None = None) -> Outcome:
    """Cannot be judged here."""
    return Outcome(UNKNOWN, sentence, remedy)
