"""Why a job failed: the causes from all sources together, the likeliest first."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from trtllm_hpc.logs.causes.lines import PROPOSAL, Match
from trtllm_hpc.logs.causes.table import Cause, Degree, Kind, advice, causes
from trtllm_hpc.logs.reading import escaped
from trtllm_hpc.paths import STEPS

REPORTED = "reported"
"""ID of a finding that is not in the table of causes: the job itself recorded why it ended."""

_MOST_SHOWN = 4  # causes shown on a terminal; JSON has all
_OF_RANK = re.compile(rf"(?:^|/)(?:{'|'.join(STEPS)})(?:\.\d+)?_(\d+)\.(?:out|log|err)$")
"""The log of a rank of ours; a number in the name of another file may be anything."""


@dataclass(frozen=True)
class Finding:
    """A cause that was found, in words."""

    id: str
    """Name of the cause in the table of causes (`docs/reference/causes.md`)."""
    kind: Kind
    """``root``, or ``consequence`` of something else."""
    sentence: str
    """The failure in one sentence."""
    next: str
    """Advice for the next step."""
    file: str | None = None
    """The log; ``-`` for the standard input; ``None`` if no log shows the cause."""
    line: int | None = None
    """Number of the line in the log, from 1; ``None`` if no single line shows the cause."""
    rank: int | None = None
    """Whose log it is, or whose the line says it is."""
    match: str = ""
    """The text, without stamps, cut around what matched."""
    degree: Degree = Degree.KNOWN
    """Certainty of the cause: ``known cause``, ``likely cause`` or ``first error``."""

    @classmethod
    def of(cls, cause: Cause, groups: dict[str, str], rank: int | None = None) -> Finding:
        """Return a cause that no line of a log shows, with groups filled in."""
        return cls(cause.id, cause.kind, *cause.filled(groups), rank=rank)

    def shown(self, quote: Callable[[str], str], run: str = "RUN", job: str | None = None) -> Finding:
        """Return the finding with its texts, which may quote a log, as ``quote`` returns them.

        ``run`` and ``job`` replace RUN and JOB in what to do.
        """
        names = {"RUN": run, "JOB": job or "JOB"}
        following = re.sub(r"\b(RUN|JOB)\b", lambda name: names[name[0]], self.next)
        return replace(self, sentence=quote(self.sentence), next=quote(following), match=quote(self.match))

    @property
    def entry(self) -> Cause | None:
        """Its entry in the table of causes; ``None`` for a reason that the job itself has given."""
        return causes().get(self.id)

    @property
    def is_generic(self) -> bool:
        """Whether it only names the kind of failure."""
        return self.entry is not None and (self.entry.generic or self.entry.first)

    @property
    def ends_a_process(self) -> bool:
        """Whether it is a root cause, and not of a single request."""
        return self.kind is Kind.ROOT and (self.entry is None or self.entry.fatal)


@dataclass(frozen=True)
class SuspiciousLine:
    """One of the lines that speak most of a failure, as evidence beside the causes."""

    file: str
    """The log; ``-`` for the standard input."""
    line: int
    """Number of the line in the log, from 1."""
    at: int
    """Offset of the line in the log, in bytes."""
    rank: int | None
    """Whose log it is, or whose the line says it is."""
    node: str
    """The node on which it was written; empty if neither the line nor a rank's record names it."""
    time: str
    """Time in the line, as it is written there; empty if there is none."""
    text: str
    """The line without stamps, with those in which it goes on, at most 300 characters."""

    @property
    def quotation(self) -> str:
        """Place, rank, node, time and text."""
        place = place_of(self.file, self.line, self.rank)
        who = filter(None, (place, self.node and f"on {self.node}", self.time))
        return f"  {', '.join(who)}: {self.text}"


@dataclass(frozen=True)
class Explanation:
    """Causes of a failure, and the lines that are evidence for them."""

    causes: Sequence[Finding]
    """The likeliest first."""
    suspicious: Sequence[SuspiciousLine]
    """At most five lines that speak most of a failure, in the order of the logs; none without a cause."""


class Certainty(enum.IntEnum):
    """Certainty of a cause by the place where it was found. The most certain place is first."""

    JOB_STATE = 0  # the state of the job in Slurm stands for it
    FULL_DISK = 1  # the disk of the run folder is full: then the jobs could write neither logs nor events
    SLURM_LINE = 2  # Slurm explains, in a log, why it killed a rank that could not record a reason itself
    RANK_KILLED = 3  # a rank was killed from outside, which its own log does not explain
    LINE = 4  # a line of a log names precisely what ends a process
    REPORTED = 5  # the job gave its reason itself, or one of our programs ended with its error
    GENERIC_LINE = 6  # a line names only the kind of failure, e.g. an exit code or an exception of Python
    REQUEST = 7  # a line names what fails single requests
    FIRST_ERROR = 8  # a line is an error, and nothing more is known of it
    CONSEQUENCE = 9  # a line shows that something else had failed before
    END = 10  # a server has ended, and its rank knows no more than that


@dataclass(frozen=True)
class Candidate:
    """A finding that may be the cause of a failure."""

    finding: Finding
    certainty: Certainty
    log: int = 0
    """Place of its log among the job's: the log of the rank that failed by itself is the first."""


def likeliest_first(candidates: Iterable[Candidate]) -> tuple[Finding, ...]:
    """Return each cause once, the likeliest first.

    Certainty decides, then precision, then the order of the logs, then that of the lines. Time decides
    nothing: a rank that lost another rank may log that before the other one logs why it failed.
    """

    def order(candidate: Candidate) -> tuple[Certainty, bool, int, int]:
        finding = candidate.finding
        return candidate.certainty, finding.is_generic, candidate.log, finding.line or 0

    by_id: dict[str, Finding] = {}
    for candidate in sorted(candidates, key=order):
        by_id.setdefault(candidate.finding.id, candidate.finding)
    return tuple(by_id.values())


def of_lines(logs: Sequence[Sequence[Finding]]) -> list[Candidate]:
    """Return the causes that the lines of several logs show; the logs are in the order of their weight.

    An entry that follows others is a consequence where another stands before it, or in another log.
    """
    placed = [(place, finding, finding.entry) for place, log in enumerate(logs) for finding in log]
    shown = {finding.id for _, finding, _ in placed}
    reasons = [
        (place, finding.line or 0)
        for place, finding, entry in placed
        if finding.kind is Kind.ROOT and entry is not None and not (entry.follows or entry.first)
    ]
    candidates = []
    for place, finding, entry in placed:
        line = finding.line or 0
        if entry and (
            not shown.isdisjoint(entry.after)
            or (entry.follows and any(log != place or before < line for log, before in reasons))
        ):
            finding = replace(finding, kind=Kind.CONSEQUENCE, degree=Degree.FIRST_ERROR)
        candidates.append(Candidate(finding, _certainty(finding), place))
    return candidates


def _certainty(finding: Finding) -> Certainty:
    """Return how sure a cause is that a line shows."""
    if finding.kind is not Kind.ROOT:
        return Certainty.CONSEQUENCE
    if finding.degree is Degree.FIRST_ERROR:
        return Certainty.FIRST_ERROR
    if not finding.ends_a_process:
        return Certainty.REQUEST
    return Certainty.GENERIC_LINE if finding.is_generic else Certainty.LINE


def findings(matches: Iterable[Match], name: str, rivals: Sequence[Match]) -> list[Finding]:
    """Return what matches in a log of that name mean, in their order.

    A cause is only likely where another error, one of ``rivals``, stands before it.
    """
    found = []
    for match in matches:
        cause = match.cause
        sentence, following = cause.filled(match.groups)
        if cause.first and not cause.patterns:
            following = advice(match.groups.get("text", ""), match.groups) or following
        if proposal := match.groups.get(PROPOSAL):
            following = f"The program itself says: {proposal.rstrip('.')}. {following}"
        rank = match.rank if match.rank is not None else rank_of(name)
        place = (name, match.line, rank, match.text)
        has_rival = any(rival.at < match.at and rival.cause.id != cause.id for rival in rivals)
        degree = Degree.LIKELY if has_rival and cause.degree is Degree.KNOWN else cause.degree
        found.append(Finding(cause.id, cause.kind, sentence, following, *place, degree))
    return found


def rank_of(name: str) -> int | None:
    """Return the rank whose log a file is, by its name."""
    of_file = _OF_RANK.search(name)
    return int(of_file[1]) if of_file else None


def capitalised(text: str) -> str:
    """Return a text as a sentence: with a full stop, and a capital letter unless a host or path begins it."""
    first = text[:1].upper() if re.match(r"[a-z]+[ ,:]", text) else text[:1]
    return first + text[1:].rstrip(".") + "."


def cause_lines(found: Sequence[Finding], *, places: bool = False) -> list[str]:
    """Return the likeliest cause with what to do, and the others; ``places``: with the line of which log."""
    lines = []
    for number, finding in enumerate(found[:_MOST_SHOWN]):
        label = "also" if finding.kind is Kind.ROOT else "then"
        if number == 0:
            label = "cause" if finding.degree is Degree.KNOWN else finding.degree.value
        lines.append(f"{label}: {finding.sentence}")
        if number == 0:
            lines.append(f"next: {finding.next}")
        if places and finding.file is not None:
            lines.append(f"  {place_of(finding.file, finding.line, finding.rank)}: {finding.match}")
        elif finding.line is None:
            lines += [f"  | {line}" for line in finding.match.splitlines()]
    if len(found) > _MOST_SHOWN:
        lines.append(f"and {len(found) - _MOST_SHOWN} more (--json shows all)")
    return [escaped(line) for line in lines]


def place_of(file: str, line: int | None, rank: int | None) -> str:
    """Return where a line stands: its log, with its number and rank if they are known."""
    return f"{file}{f':{line}' if line else ''}{'' if rank is None else f', rank {rank}'}"
