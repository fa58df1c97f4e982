"""A line of a log without what stands before it, and what it says where no entry of the table knows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice, takewhile

from trtllm_hpc.logs.causes.table import Cause, causes, words
from trtllm_hpc.logs.reading import LONGEST_LINE_BYTES, decode, uncoloured

TRACEBACK = b"Traceback (most recent call last):"
"""Its last line is the error."""
FIRST_ERROR, SUSPECT, FAILED_ELSEWHERE = "first-error", "suspicious-line", "failed-elsewhere"
PYTHON_ERROR, PYTHON_FAULT, MODEL_CONFIG = "python-error", "python-fault", "model-config"
"""Ids of what the table of causes says of lines that no other entry of it knows."""
FATAL, ERROR, HANDLED, SUSPICIOUS, ELSEWHERE = range(5)
"""How likely a line is the root, the likeliest first: it says that the program ends; it is an error; a
program handled it; it may speak of a failure in words that runs which are well use too; it reports another
failure."""

PROPOSAL = "proposal"
"""Group of a match: what the program itself proposes."""
_WRAPPED_FROM = 60
"""A shorter line does not go on in a next line that begins with a small letter."""
_MOST_QUOTED, _ALIKE, _SHOWN = 5, 12, 300
_TRACEBACK_LINES, _LINES_AFTER, _LINES_BEFORE, CHAIN_LINES = 500, 24, 80, 12
"""So far a traceback's end, an error's text, its frames and Python's words that link it to the next are
looked for."""
_NEAR_BYTES = 400
_ANY_DIGIT = bytes.maketrans(b"0123456789", b"0" * 10)
_DIGITS = str.maketrans("0123456789", "0" * 10)
_LEVELS = dict.fromkeys(("I", "INFO", "V", "VERBOSE", "D", "DEBUG", "TRACE"), "info") | {
    **dict.fromkeys(("W", "WARN", "WARNING"), "warning"),
    **dict.fromkeys(("E", "F", "ERROR", "FATAL", "CRITICAL"), "error"),
}
_LEVEL_GROUPS = {"glog", "level", "word", "ucx", "colon", "bare", "dashed"}
_DIRECT, _HANDLED = "The above exception was the direct cause", "During handling of the above exception"
_ROW = re.compile(r"^\|\s*(\S+)\s*\|\s*\d+\s*\|\s?(.*?)\s*\|?\s*$")
_ROW_GOES_ON = re.compile(r"^\|\s+\|(?:\s+\|)?\s?(.*?)\s*\|?\s*$")
_RAISED = re.compile(r"^\s*(?P<name>[A-Za-z_][\w.]*)(?:$|:\s*(?P<text>.*))")
"""The end of a traceback, whatever the exception's name is."""


@dataclass(frozen=True)
class Match:
    """An entry of the table, and where a log tells it."""

    cause: Cause
    groups: dict[str, str]
    line: int | None
    """From 1; ``None`` where it is not known."""
    text: str
    """The line without stamps, cut around what matched; several lines are joined by `` / ``."""
    rank: int | None
    """The rank that the line names itself, as ``srun --label`` writes it."""
    at: int = 0
    """Where the line begins, in bytes."""
    weight: int | None = None
    """How likely it is the root, of a line that no other entry knows."""
    is_direct: bool = False
    """Whether the next exception names it as its direct cause."""
    time: str = ""
    host: str = ""
    is_late: bool = False
    """Whether it stands in the last cluster of errors before the end of its log."""

    @property
    def is_error(self) -> bool:
        """Whether it is an error that no other entry knows, and that no program handled."""
        return self.weight is not None and self.weight <= ERROR


class SuspectLine:
    """A line of a block in which the first pass has found a text."""

    def __init__(self, block: bytes, start: int, raw: bytes, at: int, number: int) -> None:
        self.start, self.raw, self.at, self.number = start, raw, at, number
        self._block = block

    @cached_property
    def stripped(self) -> tuple[str, str, int | None]:
        """The line without colours, stamps and labels, its level, and the rank that a prefix names."""
        return stripped(self.raw)

    @property
    def text(self) -> str:
        """The first of these."""
        return self.stripped[0]

    @property
    def is_calm(self) -> bool:
        """Whether the line calls itself information or a warning."""
        return self.stripped[1] in ("info", "warning") or " NCCL INFO " in self.text

    @property
    def is_source(self) -> bool:
        """Whether it is the source text of a frame of a traceback."""
        indented = self.text[:1].isspace() or self.text.startswith(("raise ", "return "))
        return indented and not is_exception(self.text) and any(map(_frame, self.before(1)))

    @cached_property
    def texts(self) -> list[str]:
        """The line without the prefixes that are known; and without those that its neighbours have, too."""
        text, row = self.text, _ROW.match(self.text)
        if row is not None:  # of Triton's table of models, whose last cell is wrapped at any character
            more = takewhile(bool, map(_ROW_GOES_ON.match, self.after(20)))
            text = f"{row[1]}: {row[2]}{''.join(it[1] for it in more if it)}"
        shorter = _without_shared(text, [*self.before(1), *self.after(1)])
        return [text] if shorter == text else [text, shorter]

    def whole(self, text: str) -> str:
        """Return a text of the line with the lines in which it goes on, where it ends with a colon."""
        return " ".join([text, *_continued(text, self.after(2))]) if text.endswith((":", ",")) else text

    def after(self, count: int) -> list[str]:
        """Return lines after this one, in the block."""
        return [stripped(raw)[0] for raw in islice(self._following(), count)]

    def before(self, count: int) -> list[str]:
        """Return lines before this one, in the block, the nearest first."""
        lines: list[str] = []
        end = self.start - 1
        while end > 0 and len(lines) < count:
            begin = self._block.rfind(b"\n", 0, end) + 1
            lines.append(stripped(self._block[begin:end])[0])
            end = begin - 1
        return lines

    def raised(self) -> SuspectLine | None:
        """Return the end of the traceback that begins here: its first line that is not indented."""
        prefix = self.raw[: self.raw.index(TRACEBACK)].translate(_ANY_DIGIT)
        if not next(self._following(), b"").translate(_ANY_DIGIT).startswith(prefix):  # text before it
            prefix = b""
        start = self.start + len(self.raw) + 1
        for count, raw in enumerate(islice(self._following(), _TRACEBACK_LINES), 1):
            rest = raw[len(prefix) :] if raw[: len(prefix)].translate(_ANY_DIGIT) == prefix else b""
            if rest.strip() and not rest[:1].isspace():
                return SuspectLine(self._block, start, raw, self.at + start - self.start, self.number + count)
            start += len(raw) + 1
        return None

    def is_of_process(self, pid: str) -> bool:
        """Return whether lines around name a process as the one that writes them, as ``pid=411`` or
        ``:411:``."""
        writer = rf"(?m)(?:\bpid[=: ]|^[\w.-]+:|^\[|:\d\d\.\d+ ){pid}(?=[\]\s,):])"
        return bool(pid) and re.search(writer.encode(), self._block) is not None

    def is_handled(self) -> bool:
        """Return whether Python was handling this exception when another one came."""
        return _chained(self.after(CHAIN_LINES)) == _HANDLED

    def proposal(self) -> str:
        """Return what the program itself proposes in the lines below; empty if it does not."""
        after = self.after(_LINES_AFTER)
        begin = next((at for at, it in enumerate(after) if words()["proposes"].match(it)), None)
        if begin is None:
            return ""
        block = takewhile(lambda it: it.strip() and not words()["other"].match(it), after[begin : begin + 8])
        return " ".join(line.strip() for line in block)[:_SHOWN]

    def _following(self) -> Iterator[bytes]:
        end = self.start + len(self.raw)
        while end >= 0 and end + 1 < len(self._block):
            after = self._block.find(b"\n", end + 1)
            yield self._block[end + 1 : len(self._block) if after < 0 else after]
            end = after

    def unknown(self, *, is_raised: bool) -> Match | None:
        """Return what the line says of a failure, as no other entry knows it; ``is_raised``: it ends a
        traceback."""
        text = self.texts[-1]
        found = words()["exception"].match(text) or (_RAISED.match(text) if is_raised else None)
        says_error = self.stripped[1] == "error" or is_error(decode(uncoloured(self.raw)))
        is_sure = is_raised or found is not None or is_error(text) or (says_error and not text[:1].isspace())
        if is_harmless(text) or _frame(text) or not (is_sure or words()["suspect"].search(text)):
            return None
        text = text if found else self.texts[0]  # what neighbours share may be the name of what failed
        weight = ERROR if is_sure else SUSPICIOUS
        if words()["elsewhere"].search(text):
            weight = ELSEWHERE
        elif words()["fatal"].search(text):
            weight = FATAL
        elif is_sure and words()["handled"].match(text):
            weight = HANDLED
        after = self.after(_LINES_AFTER)
        boxed = any(it.startswith("-----") for it in self.before(1))
        loose = 0  # so many lines after this one have no prefix, while this one has
        if len(self.text) != len(self.raw.rstrip()):
            bare = (
                len(stripped(raw)[0]) == len(raw.rstrip()) for raw in islice(self._following(), CHAIN_LINES)
            )
            loose = sum(1 for _ in takewhile(bool, bare))
        parts = [text.rstrip(), *_continued(text, after, loose, boxed=boxed)]
        groups, is_direct = {"place": "", "caller": "", "package": "", PROPOSAL: self.proposal()}, False
        if found is not None:
            link = _chained(after)
            is_direct = link == _DIRECT
            weight = HANDLED if link == _HANDLED and weight == ERROR else weight
            parts += self._raised_at(groups, (found["text"] or "") if len(parts) == 1 else None)
        text = " / ".join(parts)
        groups["text"] = text.strip().rstrip(".")
        cause = causes()[_entry(weight, groups, is_exception(text))]
        return Match(cause, groups, self.number, text, self.stripped[2], self.at, weight, is_direct)

    def _raised_at(self, groups: dict[str, str], said: str | None) -> list[str]:
        """Fill in where an exception was raised; return the source text if it says more than the
        exception."""
        above = list(takewhile(lambda it: "Traceback (most" not in it, self.before(_LINES_BEFORE)))
        frames = [frame for frame in map(_frame, above) if frame is not None]
        if not frames:
            return []
        installed = [words()["package"].search(it["file"]) for it in frames]
        own = next((it for it in frames if not words()["library"].search(it["file"])), None)
        places = zip(installed, frames, strict=True)
        nearest = next((it for it, at in places if it or not words()["library"].search(at["file"])), None)
        groups["place"] = _place(frames[0])
        groups["caller"] = _place(own) if own is not None and own is not frames[0] else ""
        groups["package"] = nearest["package"] if nearest else ""
        source = next((it.strip() for it in above if it.strip() and not words()["passed"].match(it)), "")
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
    for one in errors:
        if weighed and weighed[-1].is_direct and one.groups.get("place"):
            one = replace(one, weight=ELSEWHERE)
        weighed.append(one)
    best = min(weighed, key=lambda one: one.weight or 0, default=None)
    if best is None or best.weight != FATAL:
        return best
    # What a program says as it ends, it has mostly explained just before: the first error says most.
    chain = [best]
    for one in reversed([it for it in weighed if it.at < best.at and it.weight == ERROR]):
        if one.at < chain[0].at - _NEAR_BYTES:
            break
        chain.insert(0, one)
    parts = dict.fromkeys(part for one in [*chain[:2], best] for part in one.text.split(" / "))
    text = " / ".join(parts)
    return replace(chain[0], text=text, groups=chain[0].groups | {"text": text.strip().rstrip(".")})


@lru_cache(maxsize=512)
def stripped(raw: bytes) -> tuple[str, str, int | None]:
    """Return a line without colours, stamps and labels; its level if it names one, and the rank that a
    prefix names.

    The level is ``info``, ``warning``, ``error`` or empty.
    """
    text = uncoloured(raw[:LONGEST_LINE_BYTES]).decode("utf-8", errors="replace").rstrip("\r\n")
    label, stamp = words()["label"], words()["stamp"]
    rank, level = None, ""
    inner = text.lstrip()
    if inner != text and (stamp.match(inner) or inner.startswith("**(")):  # quoted with an indentation
        text = inner
    match = words()["srun_label"].match(text) or label.match(text) or stamp.match(text)
    while match is not None:
        for name, value in match.groupdict().items():
            if value is not None and name in _LEVEL_GROUPS:
                level = level or value
            elif value is not None and rank is None:
                rank = int(value)
        text = text[match.end() :]
        match = label.match(text) or stamp.match(text)
    if words()["warns"].search(text):
        level = "W"
    return text.removesuffix('"') if level else text, _LEVELS.get(level, ""), rank


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


def _continued(text: str, after: Sequence[str], loose: int = 0, *, boxed: bool = False) -> list[str]:
    """Return the lines in which the text of an error goes on: those that say most, where there are many.

    ``loose``: so many lines have no prefix, while the error has one; ``boxed``: dashed lines are around it.
    """
    said = words()
    lines: list[str] = []
    listed, blank = said["lists"].search(text) is not None, False
    margin = len(text) - len(text.lstrip())
    for number, line in enumerate(after):
        if not line.strip():
            blank = True
            continue
        if boxed and line.startswith("-----"):
            break
        if said["passed"].match(line) and not boxed:
            continue
        unfinished = text.rstrip().endswith((":", ",", "(", "[", "{"))
        wrapped = line[:1].islower() and len(text) >= _WRAPPED_FROM
        is_loose = number < min(loose, 2) and " " in line.strip()
        near = wrapped or is_loose or said["tells"].search(line) is not None
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
        for link in (_DIRECT, _HANDLED):
            if link in line:
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


def suspicious(lines: Sequence[bytes], most: int = 5, *, only: bool = False) -> list[str]:
    """Return the last lines that may speak of a failure; without any, the last ones, unless ``only``."""
    texts = [decode(uncoloured(line)).strip() for line in lines]
    spoken = (it for it in reversed(texts) if words()["suspicious"].search(it) and not is_harmless(it))
    found = list(islice((it for it in spoken if not (only and words()["unsaid"].search(it))), most))
    if not found and not only:
        found = [it for it in reversed(texts) if it][:most]
    return [it if len(it) <= _SHOWN else f"{it[: _SHOWN - 1]}…" for it in reversed(found)]
