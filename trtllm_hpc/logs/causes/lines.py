"""A line of a log that may be an error, with the lines around it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import takewhile

from trtllm_hpc.logs.causes.error_texts import TRACEBACK
from trtllm_hpc.logs.causes.table import words
from trtllm_hpc.logs.prefixes import stripped, without_shared

EXCEPTION = re.compile(
    r"^\s*(?:\w+\s)?(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:Error|Exception|Exit|Interrupt|Iteration|Timeout|Fail(?:ure|ed)|Expired|Empty|NotFound|Denied|Refused))"
    r"(?:$|:\s*(?P<text>.*))"
)
FRAME = re.compile(r'\bFile "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_WRAPPED_FROM = 60
"""A shorter line does not go on in a next line that begins with a small letter."""
_MOST_QUOTED, _ALIKE = 5, 12
_TRACEBACK_LINES = 500
"""So far a traceback's end is looked for."""
_ANY_DIGIT = bytes.maketrans(b"0123456789", b"0" * 10)
CHAIN_LINES = 12
"""So far after an exception Python's words that link it to the next one are looked for."""
_ROW_GOES_ON = re.compile(r"^\|\s+\|(?:\s+\|)?\s?(.*?)\s*\|?\s*$")
_ROW = re.compile(r"^\|\s*(\S+)\s*\|\s*\d+\s*\|\s?(.*?)\s*\|?\s*$")


class SuspectLine:
    """A line of a block in which a text of the sieve was found."""

    def __init__(self, block: bytes, start: int, raw: bytes) -> None:
        self.start = start
        self.raw = raw
        self._block = block
        self.line = stripped(raw)
        self.is_calm = self.line.level == "info" or " NCCL INFO " in self.line.text

    @property
    def is_source(self) -> bool:
        """Whether it is the source text of a frame of a traceback."""
        indented = self.line.text[:1].isspace() or self.line.text.startswith(("raise ", "return "))
        return indented and not is_exception(self.line.text) and any(map(is_frame, self.before(1)))

    @cached_property
    def texts(self) -> list[str]:
        """The line without the prefixes that are known; and without those that its neighbours have, too."""
        text = _joined_row(self.line.text, self._block, self.start + len(self.raw))
        shorter = without_shared(text, [*self.before(1), *self.after(1)])
        return [text] if shorter == text else [text, shorter]

    @property
    def loose(self) -> int:
        """How many lines after this one have no prefix, while this one has."""
        if len(self.line.text) == len(self.raw.rstrip()):
            return 0
        raws = _following(self._block, self.start + len(self.raw), CHAIN_LINES)
        return sum(1 for _ in takewhile(lambda raw: len(stripped(raw).text) == len(raw.rstrip()), raws))

    def whole(self, text: str) -> str:
        """Return a text of the line with the lines in which it goes on, where it ends with a colon."""
        return " ".join([text, *continued(text, self.after(2))]) if text.endswith((":", ",")) else text

    def after(self, count: int) -> list[str]:
        """Return lines after this one, in the block."""
        return [stripped(raw).text for raw in _following(self._block, self.start + len(self.raw), count)]

    def before(self, count: int) -> list[str]:
        """Return lines before this one, in the block, the nearest first."""
        lines: list[str] = []
        end = self.start - 1
        while end > 0 and len(lines) < count:
            begin = self._block.rfind(b"\n", 0, end) + 1
            lines.append(stripped(self._block[begin:end]).text)
            end = begin - 1
        return lines

    def raised(self) -> SuspectLine | None:
        """Return the end of the traceback that begins here: its first line that is not indented."""
        prefix = self.raw[: self.raw.index(TRACEBACK)].translate(_ANY_DIGIT)
        frame = next(_following(self._block, self.start + len(self.raw), 1), b"")
        if not frame.translate(_ANY_DIGIT).startswith(prefix):  # text before it, not a prefix
            prefix = b""
        start = self.start + len(self.raw) + 1
        for raw in _following(self._block, start - 1, _TRACEBACK_LINES):
            rest = raw[len(prefix) :] if raw[: len(prefix)].translate(_ANY_DIGIT) == prefix else b""
            if rest.strip() and not rest[:1].isspace():
                return SuspectLine(self._block, start, raw)
            start += len(raw) + 1
        return None


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
        if not belongs or words()["other"].match(line) or is_exception(line) or FRAME.search(line):
            break
        lines.append(line.strip())
        text, blank = line, False
    if len(lines) <= _MOST_QUOTED:
        return lines
    return lines[:3] + [line for line in lines[3:] if words()["tells"].search(line)][-2:]


def is_exception(text: str) -> bool:
    """Return whether a line is the end of a traceback of Python."""
    return EXCEPTION.match(text) is not None


def is_frame(text: str) -> bool:
    """Return whether a line names a frame of a traceback of Python, whose source text comes next."""
    return FRAME.search(text) is not None


def _following(block: bytes, end: int, count: int) -> Iterator[bytes]:
    """Yield the lines after the one that ends at ``end``."""
    for _ in range(count):
        if end < 0 or end + 1 >= len(block):
            return
        after = block.find(b"\n", end + 1)
        yield block[end + 1 : len(block) if after < 0 else after]
        end = after


def _joined_row(text: str, block: bytes, end: int) -> str:
    """Return the last cell of a row of Triton's table of models, which is wrapped at any character."""
    row = _ROW.match(text)
    if row is None:
        return text
    cells = [row[2]]
    for raw in _following(block, end, 20):
        more = _ROW_GOES_ON.match(stripped(raw).text)
        if more is None:
            break
        cells.append(more[1])
    return f"{row[1]}: {''.join(cells)}"
