"""The lines that may be the root of a failure, where the table of causes knows none of them."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from trtllm_hpc.logs.causes.table import words

if TYPE_CHECKING:
    from trtllm_hpc.logs.causes.scan import SuspectLine

_EXCEPTION = re.compile(
    r"^\s*(?:\w+\s)?(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Exit|Interrupt|Iteration|Timeout|Fail(?:ure|ed)|Expired|Empty|NotFound|Denied|Refused))"
    r"(?:$|:\s*(?P<text>.*))"
)
_RAISED = re.compile(r"^\s*(?P<name>[A-Za-z_][\w.]*)(?:$|:\s*(?P<text>.*))")
"""The end of a traceback, whatever the exception's name is."""
_WRAPPED_FROM = 60
"""A shorter line does not go on in a next line that begins with a small letter."""
_MOST_QUOTED, _ALIKE = 5, 12
_NEAR_BYTES = 400
_FRAME = re.compile(r'\bFile "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_PACKAGE = re.compile(r"(?:site|dist)-packages[/\\](?P<path>(?P<package>[^/\\]+)[/\\].+)$")
_STANDARD = re.compile(r"/python3[\d.]*/(?!(?:site|dist)-packages)|^<")
_LIBRARY = re.compile(rf"{_PACKAGE.pattern}|{_STANDARD.pattern}")
_LINES_AFTER, _LINES_BEFORE = 24, 80
"""So far an error's text, its frames and Python's words that link it to the next one are looked for."""
FIRST_ERROR, PYTHON_ERROR, PYTHON_FAULT = "first-error", "python-error", "python-fault"
FAILED_ELSEWHERE, SUSPECT = "failed-elsewhere", "suspicious-line"
"""Ids of what the table of causes says of lines that no other entry of it knows."""
_DIRECT, _HANDLED = "The above exception was the direct cause", "During handling of the above exception"


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
    caller: str = ""
    """The last line outside installed packages, if that is another one."""
    package: str = ""
    """Of an exception: the installed package that this line belongs to."""
    is_cause: bool = False
    """Whether the next exception names it as its direct cause."""

    @property
    def cause(self) -> str:
        """The id of the entry of the table of causes that stands for such lines."""
        if self.weight is Weight.ELSEWHERE:
            return FAILED_ELSEWHERE
        if not self.place and not is_exception(self.text):
            return SUSPECT if self.weight is Weight.SUSPECT else FIRST_ERROR
        return PYTHON_FAULT if words()["fault"].search(self.text.split(":")[0]) else PYTHON_ERROR

    @property
    def groups(self) -> dict[str, str]:
        """What fills in the sentence of that entry."""
        text = self.text.strip().rstrip(".")
        return {"text": text, "place": self.place, "caller": self.caller, "package": self.package}


def root(at: int, line: SuspectLine, rank: int | None, *, is_suspect: bool, is_raised: bool) -> Root:
    """Return what a line at ``at`` says; ``is_raised``: it is the end of a traceback."""
    weight, text, after = Weight.ERROR, line.texts[-1], line.after(_LINES_AFTER)
    found = _EXCEPTION.match(text) or (_RAISED.match(text) if is_raised else None)
    text = text if found else line.texts[0]  # what neighbours share may be the name of what failed
    if words()["elsewhere"].search(text):
        weight = Weight.ELSEWHERE
    elif words()["fatal"].search(text):
        weight = Weight.FATAL
    elif is_suspect:
        weight = Weight.SUSPECT
    elif words()["handled"].match(text):
        weight = Weight.HANDLED
    boxed = any(it.startswith("-----") for it in line.before(1))
    parts = [text.rstrip(), *continued(text, after, line.loose, boxed=boxed)]
    if found is None:
        return Root(at, " / ".join(parts), rank, weight)
    above = list(takewhile(lambda it: "Traceback (most" not in it, line.before(_LINES_BEFORE)))
    frames = [frame for frame in map(_FRAME.search, above) if frame is not None]
    source = next((it.strip() for it in above if it.strip() and not words()["passed"].match(it)), "")
    is_bare = len(parts) == 1 and " " not in (found["text"] or "").strip()
    if is_bare and frames and not words()["raises"].match(source):
        parts.append(source)
    own = next((it for it in frames if not _LIBRARY.search(it["file"])), None)
    installed = (_PACKAGE.search(it["file"]) for it in frames if not _STANDARD.search(it["file"]))
    package = next((it["package"] if it else "" for it in installed), "")
    link = chained(after)
    if link == _HANDLED and weight is Weight.ERROR:
        weight = Weight.HANDLED
    places = _place(frames[0]) if frames else "", _place(own) if own and own is not frames[0] else ""
    return Root(at, " / ".join(parts), rank, weight, *places, package, link == _DIRECT)


def _place(frame: re.Match[str]) -> str:
    inside = _PACKAGE.search(frame["file"])
    where = f"{inside['path'] if inside else frame['file']}:{frame['line']}"
    return f"{where} in {frame['function']}" if frame["function"] else where


def continued(text: str, after: Sequence[str], loose: int = 0, *, boxed: bool = False) -> list[str]:
    """Return the lines in which the text of an error goes on: those that say most, where there are many.

    ``loose``: so many lines have no prefix, while the error has one; ``boxed``: dashed lines are around it.
    """
    lines: list[str] = []
    listed, blank = words()["lists"].search(text) is not None, False
    margin = text[: len(text) - len(text.lstrip())]
    for number, line in enumerate(after):
        if not line.strip():
            blank = True
            continue
        if boxed and line.startswith("-----"):
            break
        if words()["passed"].match(line) and not boxed:
            continue
        unfinished = text.rstrip().endswith((":", ",", "(", "[", "{"))
        wrapped = line[:1].islower() and len(text) >= _WRAPPED_FROM
        is_loose = number < min(loose, 2) and " " in line.strip()
        near = wrapped or is_loose or words()["tells"].search(line) is not None
        near = near and not blank and line[:_ALIKE] != text[:_ALIKE]
        inside = boxed or unfinished or (listed and not blank) or line[len(margin) :][:1].isspace()
        belongs = inside or (near and not words()["another"].search(line)) or words()["resumed"].search(line)
        if not belongs or words()["other"].match(line) or is_exception(line) or _FRAME.search(line):
            break
        lines.append(line.strip())
        text, blank = line, False
    if len(lines) <= _MOST_QUOTED:
        return lines
    return lines[:3] + [line for line in lines[3:] if words()["tells"].search(line)][-2:]


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
    # What a program says as it ends, it has mostly explained just before: the first error says most.
    chain = [best]
    for one in reversed([it for it in weighed if it.at < best.at and it.weight is Weight.ERROR]):
        if one.at < chain[0].at - _NEAR_BYTES:
            break
        chain.insert(0, one)
    parts = [part for one in [*chain[:2], best] for part in one.text.split(" / ")]
    return replace(chain[0], text=" / ".join(dict.fromkeys(parts)))
