"""A line of a log without what stands before it, and what it says where no entry of the table knows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import NamedTuple

from trtllm_hpc.logs.causes.table import Cause, Kind, causes, words
from trtllm_hpc.logs.reading import LONGEST_LINE_BYTES, decode, uncoloured

TRACEBACK = b"Traceback (most recent call last):"
"""Its last line is the error."""
FIRST_ERROR, SUSPECT, FAILED_ELSEWHERE = "first-error", "suspicious-line", "failed-elsewhere"
PYTHON_ERROR, PYTHON_FAULT, MODEL_CONFIG = "python-error", "python-fault", "model-config"
"""Entries that stand for lines which no other entry of the table knows."""
FATAL, ERROR, HANDLED, SUSPICIOUS, ELSEWHERE = range(5)
"""Likelihood that a line is the root, the likeliest first: it says that the program ends; it is an error; a
program handled it; it may speak of a failure in words that healthy runs use too; it reports another one."""

PROPOSAL = "proposal"
"""Group of a match: the solution that the program itself proposes."""
_WRAPPED_FROM, _MOST_QUOTED, _ALIKE, _SHOWN = 60, 5, 12, 300
"""Shorter lines are not wrapped; so many lines of an error, its proposal and its beginning are compared."""
_TRACEBACK_LINES, _LINES_AFTER, _LINES_BEFORE = 500, 24, 80
"""Lines searched for a traceback's end, for an error's text, and for the frames of an error."""
_NEAR_BYTES = 400
_ANY_DIGIT = bytes.maketrans(b"0123456789", b"0" * 10)
_DIGITS = str.maketrans("0123456789", "0" * 10)
_LEVELS = dict.fromkeys("IVDT", "info") | {"W": "warning"} | dict.fromkeys("EFC", "error")
"""Levels by the first letter of their name: INFO, VERBOSE, DEBUG, TRACE, WARNING, ERROR, FATAL, CRITICAL."""
_DIRECT, _HANDLED = "The above exception was the direct cause", "During handling of the above exception"


@dataclass(frozen=True)
class Match:
    """An entry of the table, and the line of a log that shows it."""

    cause: Cause
    groups: dict[str, str]
    line: int
    """Number of the line, from 1."""
    text: str
    """The line without stamps, cut around what matched; several lines are joined by `` / ``."""
    rank: int | None = None
    """The rank that the line names itself, as ``srun --label`` writes it."""
    at: int = 0
    """Offset of the line in the log, in bytes."""
    weight: int | None = None
    """Likelihood that a line without an entry is the root."""
    is_direct: bool = False
    """Whether the next exception names it as its direct cause."""
    time: str = ""
    host: str = ""
    suspicion: int = 0
    """How early the line is shown as evidence: 0 is the most suspicious; the last errors come first."""

    @property
    def is_rival(self) -> bool:
        """Whether it may be the root: an entry says so, or it is an error that no program handled."""
        return self.cause.kind is Kind.ROOT if self.weight is None else self.weight <= ERROR


class Stripped(NamedTuple):
    """A line without colours, stamps and labels."""

    text: str
    level: str
    """``info``, ``warning``, ``error`` or empty."""
    rank: int | None
    """The rank that a prefix names."""


class SuspectLine:
    """A line of a block in which the first pass has found a text."""

    def __init__(self, block: bytes, start: int, at: int, number: int) -> None:
        end = block.find(b"\n", start)
        raw = block[start : end if end >= 0 else len(block)]
        self.raw, self.is_cut = raw[:LONGEST_LINE_BYTES], len(raw) > LONGEST_LINE_BYTES
        self.at, self.number = at, number
        self._block, self._start = block, start

    @property
    def plain(self) -> str:
        """The line without colours."""
        return decode(uncoloured(self.raw))

    @property
    def stripped(self) -> Stripped:
        """The line without colours, stamps and labels."""
        return stripped(self.raw)

    @cached_property
    def _below(self) -> list[bytes]:
        return self._block[self._start + len(self.raw) + 1 :].split(b"\n", _TRACEBACK_LINES)

    @cached_property
    def _above(self) -> list[bytes]:
        """The lines before, the nearest first."""
        above = self._block[: max(0, self._start - 1)]
        return above.rsplit(b"\n", _LINES_BEFORE)[-_LINES_BEFORE:][::-1] if above else []

    def after(self, count: int) -> list[str]:
        """Return lines after this one, in the block."""
        return [stripped(raw).text for raw in self._below[:count]]

    def before(self, count: int) -> list[str]:
        """Return lines before this one, in the block, the nearest first."""
        return [stripped(raw).text for raw in self._above[:count]]

    @property
    def is_calm(self) -> bool:
        """Whether the line calls itself information or a warning."""
        return self.stripped.level in ("info", "warning") or " NCCL INFO " in self.stripped.text

    @cached_property
    def texts(self) -> list[str]:
        """The line without the prefixes that are known; and without those that its neighbours have, too."""
        text = self.stripped.text
        if row := words()["row"].match(text):  # of Triton's table of models, wrapped at any character
            more = takewhile(bool, map(words()["row_goes_on"].match, self.after(20)))
            text = f"{row[1]}: {row[2]}{''.join(cell[1] for cell in more if cell)}"
        shorter = _without_shared(text, [*self.before(1), *self.after(1)])
        return [text] if shorter == text else [text, shorter]

    def window(self, text: str, lines: int) -> str:
        """Return a text of the line with as many lines as a pattern spans.

        A single line is returned with those in which it goes on, where it ends with a colon.
        """
        if lines > 1:
            return "\n".join([text, *self.after(lines - 1)])
        return " ".join([text, *_continued(text, self.after(2))]) if text.endswith((":", ",")) else text

    def raised(self) -> SuspectLine | None:
        """Return the end of the traceback that begins here: its first line that is not indented."""
        prefix = self.raw[: self.raw.index(TRACEBACK)].translate(_ANY_DIGIT)
        if not self._below[0].translate(_ANY_DIGIT).startswith(prefix):  # text before it
            prefix = b""
        offset = len(self.raw) + 1
        for count, raw in enumerate(self._below[:_TRACEBACK_LINES], 1):
            rest = raw[len(prefix) :] if raw[: len(prefix)].translate(_ANY_DIGIT) == prefix else b""
            if rest.strip() and not rest[:1].isspace():
                return SuspectLine(self._block, self._start + offset, self.at + offset, self.number + count)
            offset += len(raw) + 1
        return None

    def is_of_process(self, pid: str) -> bool:
        """Return whether lines around name a process as their writer, as ``pid=411`` or ``:411:``."""
        writer = rf"(?m)(?:\bpid[=: ]|^[\w.-]+:|^\[|:\d\d\.\d+ ){pid}(?=[\]\s,):])"
        return bool(pid) and re.search(writer.encode(), self._block) is not None

    def proposal(self) -> str:
        """Return the solution that the program proposes in the lines below; empty if it does not."""
        after = self.after(_LINES_AFTER)
        begin = next((number for number, text in enumerate(after) if words()["proposes"].match(text)), None)
        if begin is None:
            return ""
        block = takewhile(
            lambda text: text.strip() and not words()["other"].match(text), after[begin : begin + 8]
        )
        return " ".join(map(str.strip, block))[:_SHOWN]

    def unknown(self, *, is_raised: bool) -> Match | None:
        """Return what the line says of a failure that no other entry knows; ``is_raised``: it ends a
        traceback."""
        text = self.texts[-1]
        found = words()["exception"].match(text) or (words()["raised"].match(text) if is_raised else None)
        says_error = self.stripped.level == "error" or is_error(self.plain)
        is_sure = is_raised or found is not None or is_error(text) or (says_error and not text[:1].isspace())
        if is_harmless(text) or _frame(text) or not (is_sure or words()["suspect"].search(text)):
            return None
        text = text if found else self.texts[0]  # the prefix that neighbours share may name what failed
        boxed = any(line.startswith("-----") for line in self.before(1))
        parts = [text.rstrip(), *_continued(text, self.after(_LINES_AFTER), boxed=boxed)]
        groups = {"place": "", "caller": "", "package": "", PROPOSAL: self.proposal()}
        link = "" if found is None else _chained(self.after(_LINES_AFTER))
        if found is not None:
            parts += self._raised_at(groups, (found["text"] or "") if len(parts) == 1 else None)
        weight = ERROR if is_sure else SUSPICIOUS
        if words()["elsewhere"].search(text):
            weight = ELSEWHERE
        elif words()["fatal"].search(text):
            weight = FATAL
        elif is_sure and (words()["handled"].match(text) or link == _HANDLED):
            weight = HANDLED
        text = " / ".join(parts)
        groups["text"] = text.strip().rstrip(".")
        cause, rank = causes()[_entry(weight, groups, is_exception(text))], self.stripped.rank
        return Match(cause, groups, self.number, text, rank, self.at, weight, link == _DIRECT)

    def _raised_at(self, groups: dict[str, str], said: str | None) -> list[str]:
        """Fill in where an exception was raised; return the source text if it says more than the
        exception."""
        above = list(takewhile(lambda line: "Traceback (most" not in line, self.before(_LINES_BEFORE)))
        frames = [frame for frame in map(_frame, above) if frame is not None]
        if not frames:
            return []
        own = next((frame for frame in frames if not words()["library"].search(frame["file"])), None)
        packages = (
            (words()["package"].search(frame["file"]), words()["library"].search(frame["file"]))
            for frame in frames
        )
        nearest = next((package for package, library in packages if package or not library), None)
        groups["place"] = _place(frames[0])
        groups["caller"] = _place(own) if own is not None and own is not frames[0] else ""
        groups["package"] = nearest["package"] if nearest else ""
        passed = words()["passed"]
        source = next((line.strip() for line in above if line.strip() and not passed.match(line)), "")
        near = "\n".join(above[:5])  # two frames, with marks below their source text
        groups["config"] = "config" if words()["of_config"].search(near) else ""
        is_bare = said is not None and " " not in said.strip()
        return [source] if is_bare and not words()["raises"].match(source) else []


def _entry(weight: int, groups: dict[str, str], is_raised: bool) -> str:
    if weight == ELSEWHERE:
        return FAILED_ELSEWHERE
    if not groups["place"] and not is_raised:
        return SUSPECT if weight == SUSPICIOUS else FIRST_ERROR
    if not words()["fault"].search(groups["text"].split(":")[0]):
        return PYTHON_ERROR
    reads = groups.get("config") and words()["reads_models"].match(groups["package"])
    return MODEL_CONFIG if reads else PYTHON_FAULT


def likeliest(errors: Iterable[Match]) -> Match | None:
    """Return the error that is the root of the others: an error before its consequences, then the first."""
    weighed: list[Match] = []
    for error in errors:
        follows = weighed and weighed[-1].is_direct and error.groups.get("place")
        weighed.append(replace(error, weight=ELSEWHERE) if follows else error)
    best = min(weighed, key=lambda error: error.weight or 0, default=None)
    if best is None or best.weight != FATAL:
        return best
    # What a program says as it ends, it has mostly explained just before: the first error says most.
    chain = [best]
    for error in reversed([error for error in weighed if error.at < best.at and error.weight == ERROR]):
        if error.at < chain[0].at - _NEAR_BYTES:
            break
        chain.insert(0, error)
    text = " / ".join(dict.fromkeys(part for error in [*chain[:2], best] for part in error.text.split(" / ")))
    return replace(chain[0], text=text, groups=chain[0].groups | {"text": text.strip().rstrip(".")})


@lru_cache(maxsize=512)
def stripped(raw: bytes) -> Stripped:
    """Return a line without colours, stamps and labels."""
    text = decode(uncoloured(raw[:LONGEST_LINE_BYTES]))
    label, stamp = words()["label"], words()["stamp"]
    rank, level = None, ""
    inner = text.lstrip()
    if inner != text and (stamp.match(inner) or inner.startswith("**(")):  # quoted with an indentation
        text = inner
    match = words()["srun_label"].match(text) or label.match(text) or stamp.match(text)
    while match is not None:
        for value in filter(None, match.groups()):
            if not value.isdigit():
                level = level or value
            elif rank is None:
                rank = int(value)
        text = text[match.end() :]
        match = label.match(text) or stamp.match(text)
    if words()["warns"].search(text):
        level = "W"
    return Stripped(text.removesuffix('"') if level else text, _LEVELS.get(level[:1], ""), rank)


def _without_shared(text: str, neighbours: Sequence[str]) -> str:
    """Return a line without the words at its beginning that a neighbouring line has as well, digits aside.

    Only what looks like a prefix goes: words that end with a colon or a bar, and brackets, up to the first
    that speaks of an error.
    """
    start = 0
    while (token := words()["token"].match(text, start)) and not words()["says_error"].search(token[0]):
        shape = text[: token.end()].translate(_DIGITS)
        if not any(other.translate(_DIGITS).startswith(shape) for other in neighbours):
            break
        start = token.end()
    return text[start:]


def _continued(text: str, after: Sequence[str], *, boxed: bool = False) -> list[str]:
    """Return the lines in which the text of an error goes on: those that say most, where there are many.

    ``boxed``: dashed lines are around it.
    """
    said = words()
    lines: list[str] = []
    listed, blank = said["lists"].search(text) is not None, False
    margin = len(text) - len(text.lstrip())
    for line in after:
        if not line.strip():
            blank = True
            continue
        if boxed and line.startswith("-----"):
            break
        if said["passed"].match(line) and not boxed:
            continue
        unfinished = text.rstrip().endswith((":", ",", "(", "[", "{"))
        wrapped = line[:1].islower() and len(text) >= _WRAPPED_FROM
        near = wrapped or said["tells"].search(line) is not None
        near = near and not blank and line[:_ALIKE] != text[:_ALIKE]
        inside = boxed or unfinished or (listed and not blank) or line[margin:][:1].isspace()
        belongs = inside or (near and not said["another"].search(line)) or said["resumed"].search(line)
        if not belongs or said["other"].match(line) or is_exception(line) or _frame(line):
            break
        lines.append(line.strip())
        text, blank = line, False
    if len(lines) <= _MOST_QUOTED:
        return lines
    return lines[:3] + [line for line in lines[3:] if said["tells"].search(line)][-2:]


def _chained(after: Sequence[str]) -> str:
    """Return how Python links the exception before these lines to the next one; empty if it is the last."""
    for line in after:
        if link := next((link for link in (_DIRECT, _HANDLED) if link in line), ""):
            return link
        if is_exception(line) or line.startswith("Traceback"):
            break
    return ""


def _frame(text: str) -> re.Match[str] | None:
    """Return the frame of a traceback of Python that a line names; its source text comes next."""
    return words()["frame"].search(text)


def _place(frame: re.Match[str]) -> str:
    inside = words()["package"].search(frame["file"])
    where = f"{inside['path'] if inside else frame['file']}:{frame['line']}"
    return f"{where} in {frame['function']}" if frame["function"] else where


def is_exception(text: str) -> bool:
    """Return whether a line is the end of a traceback of Python."""
    return words()["exception"].match(text) is not None


def is_error(text: str) -> bool:
    """Return whether a line without colours is an error."""
    return words()["error"].search(text) is not None and not is_harmless(text)


def is_harmless(text: str) -> bool:
    """Return whether a line looks like an error and is none."""
    return not text or words()["harmless"].search(text) is not None
