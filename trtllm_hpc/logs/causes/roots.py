"""The lines that may be the root of a failure, where the table of causes knows none of them."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

_EXCEPTION = re.compile(
    r"^\s*(?:\w+\s)?(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Failure|Failed|Expired|Empty|NotFound|Denied|Refused))"
    r"(?:$|:\s*(?P<text>.*))"
)
_FRAME = re.compile(r'\bFile "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_PACKAGE = re.compile(r"(?:site|dist)-packages/(?P<path>(?P<package>[^/]+)/.+)$")
FIRST_ERROR, PYTHON_ERROR, FAILED_ELSEWHERE = "first-error", "python-error", "failed-elsewhere"
"""Ids of what the table of causes says of lines that no other entry of it knows."""
_DIRECT, _HANDLED = "The above exception was the direct cause", "During handling of the above exception"
ELSEWHERE = re.compile(
    r"""
      worker\ (?:process(?:es)?\ )?(?:died|failed|exited|crashed|terminated)|workers?\ died
    | \b(?:Rank|Process|Worker|Subprocess|task)\s?\S*\ (?:exited|died|was\ killed|terminated)
    | Engine\ ?[Cc]ore\ (?:\w+\ )?(?:initialization\ failed|died|encountered)
    | EngineDead|Engine\ process\ failed
    | WorkerProc\ (?:initialization\ failed|failed\ to\ start|hit\ an\ exception)
    | initialization\ failed\ due\ to\ an\ exception|See\ (?:root\ cause|stack\ trace)\ above
    | CalledProcessError|ChildFailedError|BrokenProcessPool|RayTaskError|ActorDied|WorkerCrashed
    | returned\ non-zero\ exit\ status|exited\ with\ (?:non-?zero|exit\ code|code\ [1-9])
    | failed\ with\ (?:error|exit)\ code|MPI_ABORT|Aborting\ job|error\ code\ 1$
    | [Ff]ailed\ to\ (?:load\ all\ models|start\ the\ server|launch)
    | [Rr]emote\ (?:peer|process)\ (?:closed|exited)|[Cc]onnection\ (?:reset|closed)\ by\ (?:remote\ )?peer
    | Broken\ ?[Pp]ipe|socket\ closed|EOFError$|IncompleteReadError|ConnectionResetError
    | KeyboardInterrupt|SystemExit|CancelledError|SIGTERM|shut(?:ting)?\ ?down
    | [Ww]atchdog|heartbeat|Executor\ (?:creation|worker)\ (?:failed|died)|terminate\ called
    | Segmentation\ fault|core\ dumped|Fatal\ Python\ error|Aborted|Killed
    | Internal\ Server\ Error|500\ Internal|ASGI|Unhandled\ exception\ in|Task\ exception\ was\ never
    """,
    re.VERBOSE,
)
"""What a process writes because another process, or another line before, has failed."""


class Weight(enum.IntEnum):
    """How likely a line is the root, the likeliest first."""

    ERROR = 0
    HANDLED = 1
    """An exception that a program handled when another exception was raised."""
    ELSEWHERE = 2
    """It reports what has failed elsewhere."""


@dataclass(frozen=True)
class Root:
    """A line that is an error."""

    at: int
    """Where it begins, in bytes from where the search began."""
    text: str
    rank: int | None
    weight: Weight
    place: str = ""
    """Of an exception: the last line of Python before it, as ``FILE:LINE in FUNCTION``."""
    package: str = ""
    """Of an exception: the installed package that this line belongs to."""
    is_cause: bool = False
    """Whether the next exception names it as its direct cause."""

    @property
    def cause(self) -> str:
        """The id of the entry of the table of causes that stands for such lines."""
        if self.weight is Weight.ELSEWHERE:
            return FAILED_ELSEWHERE
        return PYTHON_ERROR if is_exception(self.text) else FIRST_ERROR

    @property
    def groups(self) -> dict[str, str]:
        """What fills in the sentence of that entry."""
        return {"text": self.text.strip().rstrip("."), "place": self.place, "package": self.package}


def root(at: int, text: str, rank: int | None, before: Iterable[str], after: Sequence[str]) -> Root:
    """Return what a line says; ``before``: the lines before it, the nearest first; ``after``: those after."""
    weight = Weight.ELSEWHERE if ELSEWHERE.search(text) else Weight.ERROR
    found = _EXCEPTION.match(text)
    if found is None:
        return Root(at, text, rank, weight)
    if not found["text"] and after:
        text = f"{text} {after[0].strip()}"
    frame = next(filter(None, map(_FRAME.search, before)), None)
    place = package = ""
    if frame is not None:
        inside = _PACKAGE.search(frame["file"])
        package = inside["package"] if inside else ""
        where = f"{inside['path'] if inside else frame['file']}:{frame['line']}"
        place = f"{where} in {frame['function']}" if frame["function"] else where
    link = chained(after)
    if link == _HANDLED and weight is Weight.ERROR:
        weight = Weight.HANDLED
    return Root(at, text, rank, weight, place, package, link == _DIRECT)


def is_exception(text: str) -> bool:
    """Return whether a line is the end of a traceback of Python."""
    return _EXCEPTION.match(text) is not None


def is_handled(after: Sequence[str]) -> bool:
    """Return whether, by the lines after an exception, the program was handling it when another came."""
    return chained(after) == _HANDLED


def chained(after: Sequence[str]) -> str:
    """Return how Python links the exception before these lines to the next one; empty if it is the last."""
    for line in after:
        for link in (_DIRECT, _HANDLED):
            if link in line:
                return link
        if _EXCEPTION.match(line) or line.startswith("Traceback"):
            break
    return ""


def likeliest(roots: Iterable[Root]) -> Root | None:
    """Return the line that is the root of the others: an error before its consequences, then the first."""
    weighed: list[Root] = []
    for one in roots:
        if weighed and weighed[-1].is_cause and one.place:
            one = replace(one, weight=Weight.ELSEWHERE)
        weighed.append(one)
    return min(weighed, key=lambda one: one.weight, default=None)
