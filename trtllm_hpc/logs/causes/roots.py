"""The lines that may be the root of a failure, where the table of causes knows none of them."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

_EXCEPTION = re.compile(
    r"^\s*(?:\w+\s)?(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Failure|Failed|Expired|Empty|NotFound|Denied|Refused))"
    r"(?:$|:\s*(?P<text>.*))"
)
_WRAPPED_FROM = 60
"""A shorter line does not go on in a next line that begins with a small letter."""
_FATAL = re.compile(r"\b(?:fatal|FATAL|Fatal error|panic)\b")
_TOOL = re.compile(r"(?:find|ls|rm|cp|mv|mkdir|cat|tar|grep|chmod|chown|touch|ln|stty|tput): |Module ERROR")
_NEAR_BYTES = 400
_FAULT = re.compile(
    r"(?:Type|Attribute|Name|Index|Key|UnboundLocal|Assertion|Syntax|ZeroDivision|Recursion)Error\b"
)
"""Exceptions of code that is wrong or does not fit, not of a value that was refused."""
_FRAME = re.compile(r'\bFile "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_PACKAGE = re.compile(r"(?:site|dist)-packages/(?P<path>(?P<package>[^/]+)/.+)$")
FIRST_ERROR, PYTHON_ERROR, PYTHON_FAULT = "first-error", "python-error", "python-fault"
FAILED_ELSEWHERE, SUSPECT = "failed-elsewhere", "suspicious-line"
"""Ids of what the table of causes says of lines that no other entry of it knows."""
_DIRECT, _HANDLED = "The above exception was the direct cause", "During handling of the above exception"
ELSEWHERE = re.compile(
    r"""
      worker\ (?:process(?:es)?\ )?(?:died|failed|exited|crashed|terminated)|workers?\ died
    | \b(?:Rank|Process|Worker|Subprocess|task)\s?\S*\ (?:exited|died|was\ killed|terminated)
    | Engine\ ?[Cc]ore\ (?:\w+\ )?(?:initialization\ failed|died|encountered|failed\ to\ start)
    | EngineDead|Engine\ process\ failed
    | WorkerProc\ (?:initialization\ failed|failed\ to\ start|hit\ an\ exception)
    | initialization\ failed\ due\ to\ an\ exception|See\ (?:root\ cause|stack\ trace)\ above
    | CalledProcessError|ChildFailedError|BrokenProcessPool|RayTaskError|ActorDied|WorkerCrashed
    | returned\ non-zero\ exit\ status|exited\ with\ (?:non-?zero|exit\ code|code\ [1-9])
    | (?:raised|hit|caught|encountered)\ an?\ (?:\w+\ )?exception
    | Caught\ \w+\ in\ (?:DataLoader\ )?(?:pin|worker|replica)
    | subprocess-exited-with-error|Configuring\ incomplete|Failed\ to\ build\ (?:installable|')
    | metadata-generation-failed
    | failed\ with\ (?:error|exit)\ code|MPI_ABORT|\*\*\*\ (?:STEP|JOB)|Aborting\ job|error\ code\ 1$
    | [Ff]ailed\ to\ (?:load\ all\ models|start\ the\ server|launch|initialize\ executor)
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

    FATAL = 0
    """It says that the program ends."""
    ERROR = 1
    HANDLED = 2
    """A program handled it: an exception when another one was raised, what a shell's tool could not do."""
    SUSPECT = 3
    """It may speak of a failure, in words that runs which are well use too."""
    ELSEWHERE = 4
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
        if not is_exception(self.text):
            return SUSPECT if self.weight is Weight.SUSPECT else FIRST_ERROR
        return PYTHON_FAULT if _FAULT.search(self.text.split(":")[0]) else PYTHON_ERROR

    @property
    def groups(self) -> dict[str, str]:
        """What fills in the sentence of that entry."""
        return {"text": self.text.strip().rstrip("."), "place": self.place, "package": self.package}


def root(
    at: int,
    text: str,
    rank: int | None,
    before: Iterable[str],
    after: Sequence[str],
    *,
    is_suspect: bool = False,
) -> Root:
    """Return what a line says; ``before``: the lines before it, the nearest first; ``after``: those after."""
    weight = Weight.ERROR
    if ELSEWHERE.search(text):
        weight = Weight.ELSEWHERE
    elif _FATAL.search(text):
        weight = Weight.FATAL
    elif is_suspect:
        weight = Weight.SUSPECT
    elif _TOOL.match(text):
        weight = Weight.HANDLED
    found = _EXCEPTION.match(text)
    text = " / ".join([text.rstrip(), *continued(text, after)])
    if found is None:
        return Root(at, text, rank, weight)
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


def continued(text: str, after: Sequence[str]) -> Iterator[str]:
    """Yield the lines, two at most, in which the text of an error goes on."""
    for line in after[:2]:
        wrapped = line[:1].islower() and len(text) >= _WRAPPED_FROM
        unfinished = text.rstrip().endswith((":", ",")) or line[:1].isspace() or wrapped
        if not line.strip() or not unfinished or _FRAME.search(line):
            return
        yield line.strip()
        text = line


def is_exception(text: str) -> bool:
    """Return whether a line is the end of a traceback of Python."""
    return _EXCEPTION.match(text) is not None


def is_frame(text: str) -> bool:
    """Return whether a line names a frame of a traceback of Python, whose source text comes next."""
    return _FRAME.search(text) is not None


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
    best = min(weighed, key=lambda one: one.weight, default=None)
    if best is None or best.weight is not Weight.FATAL:
        return best
    # What a program says as it ends, it has mostly explained just before.
    before = [
        one for one in weighed if best.at - _NEAR_BYTES <= one.at < best.at and one.weight is Weight.ERROR
    ]
    texts = [*(one.text for one in before[-2:]), best.text]
    return replace(best, text=" / ".join(texts))
