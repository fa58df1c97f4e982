"""YAML as a tree in which every value has its file and line.

A file is plain YAML 1.2 (core schema): mappings with text keys, lists and scalars. Tags, aliases, directives,
several documents and duplicate keys are refused, so nothing in a file can run code or expand when it is read.
ruamel's round-trip loader knows lines too, but resolves aliases and tags first and stops at the first fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Union

from ruamel.yaml import YAML, events
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner

from trtllm_hpc.config.diagnostics import Path, dotted
from trtllm_hpc.errors import Diagnostic

MAX_DEPTH = 16
MAX_VALUES = 20_000
MAX_DIGITS = 40
"""Far beyond the range of every field, and short enough to be converted quickly."""

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Source:
    """The file (or ``--set``) that a value comes from."""

    file: str
    prefix: str = ""
    """Prefix of the fields there, e.g. ``job_defaults.``."""
    folder: str = "."
    """Folder of the relative paths in this source."""
    from_shell: bool = False
    """Whether a shell may have removed quotes; the text of unquoted scalars is then kept, too."""


# A name in quotes cannot stand in "X | Y" at run time before Python 3.14.
Value = Union[dict[str, "Node"], list["Node"], str, int, float, bool, None]  # noqa: UP007


@dataclass(frozen=True)
class Node:
    """A value with its place."""

    value: Value
    source: Source
    line: int | None = None
    typed: str | None = None
    """The text of an unquoted bool or number that comes from a shell."""

    def child(self, part: str | int) -> Node | None:
        """Return the value at a key or an index; ``None`` if there is none."""
        if isinstance(self.value, dict) and isinstance(part, str):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and part < len(self.value):
            return self.value[part]
        return None

    def plain(self) -> Any:
        """Return the value without places, as plain Python types."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def as_typed(self) -> Node:
        """Return the node with the text that was typed, if that is known."""
        return self if self.typed is None else replace(self, value=self.typed, typed=None)

    def changed(self, path: Path, change: Callable[[Node], Node]) -> Node:
        """Return the tree with ``change`` of the value at ``path``; the tree itself without such a value."""
        if not path:
            return change(self)
        child = self.child(path[0])
        new = None if child is None else child.changed(path[1:], change)
        if new is child:
            return self
        assert isinstance(self.value, (dict, list))
        value: Any = self.value.copy()
        value[path[0]] = new
        return replace(self, value=value)

    def without(self, *keys: str) -> Node:
        """Return a mapping without some keys; anything else as it is."""
        if not isinstance(self.value, dict):
            return self
        return replace(self, value={key: node for key, node in self.value.items() if key not in keys})

    def mapped(self, change: Callable[[Node], Node]) -> Node:
        """Return the tree with ``change`` of each value, the innermost first."""
        value = self.value
        if isinstance(value, dict):
            value = {key: child.mapped(change) for key, child in value.items()}
        elif isinstance(value, list):
            value = [child.mapped(change) for child in value]
        return change(replace(self, value=value))

    def nearest(self, path: Path) -> Node:
        """Return the value at ``path``, or the innermost section that should contain it."""
        node = self
        for part in path:
            child = node.child(part)
            if child is None:
                break
            node = child
        return node

    def placed(self, found: Diagnostic) -> Diagnostic:
        """Return the diagnostic with the file and the line of its field."""
        node = self._at_field(found.field)
        return replace(found, file=node.source.file, field=node.source.prefix + found.field, line=node.line)

    def _at_field(self, field: str, path: Path = ()) -> Node:
        """Return the value that a dotted field names, or the innermost section that should contain it."""
        parts = range(len(self.value)) if isinstance(self.value, list) else self.value
        for part in parts if isinstance(parts, (dict, range)) else ():
            inner = (*path, part)
            section, child = dotted(inner), self.child(part)
            if child is not None and (field == section or field.startswith((f"{section}.", f"{section}["))):
                return child._at_field(field, inner)
        return self

    def diagnostic(self, code: str, path: Path, message: str, **more: Any) -> Diagnostic:
        """Return a diagnostic about the value at ``path`` below this node, with its place."""
        node = self.nearest(path)
        return Diagnostic(
            code=code,
            message=message,
            file=node.source.file,
            field=node.source.prefix + dotted(path),
            line=node.line,
            **more,
        )


class _Unusable(Exception):
    """Something that makes the whole text unusable."""

    def __init__(self, code: str, message: str, line: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.line, self.hint = code, message, line, hint


def parse(text: str, source: Source) -> tuple[Node | None, list[Diagnostic]]:
    """Parse one YAML document.

    Returns:
        The tree and the diagnostics. Without a tree there is at least one; with a tree there may be some,
        too (duplicate keys).
    """
    reader = _Reader(text, source)
    try:
        return reader.document(), reader.diagnostics
    except _Unusable as error:
        field = source.prefix.rstrip(".")
        fatal = Diagnostic(error.code, error.message, source.file, field, error.line, hint=error.hint)
        return None, [*reader.diagnostics, fatal]


class _PlainScanner(Scanner):
    """Refuses tags, aliases and directives at their first character.

    ruamel reads a tag in time quadratic in its length: a megabyte of '!' would block a command for seconds.
    """

    def fetch_tag(self) -> None:
        self._refuse("a tag ('!...')", "remove it; plain values are read")

    def fetch_alias(self) -> None:
        self._refuse("an alias ('*...')", "write the value out")

    def fetch_directive(self) -> None:
        self._refuse("a directive ('%...')", "remove the line; YAML 1.2 is read")

    def _refuse(self, what: str, hint: str) -> None:
        raise _Unusable("bad-yaml", f"contains {what}", self.reader.line + 1, hint)


def _events(text: str) -> Iterator[events.Event]:
    """Yield ruamel's events, with its errors as ``_Unusable``."""
    yaml = YAML(typ="safe", pure=True, plug_ins=[])
    yaml.Scanner = _PlainScanner
    try:
        yield from yaml.parse(text)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"is not YAML: the character {chr(error.character)!r} is allowed there only as an escape"
        hint = "remove it, or write it as an escape in double quotes"
        raise _Unusable("bad-yaml", message, line, hint) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        hint = "indent with spaces, not with tabs" if r"\t" in problem else "see https://yaml.org/spec/1.2.2"
        raise _Unusable("bad-yaml", f"is not YAML: {problem}", line, hint) from None
    except (YAMLError, ValueError, OverflowError) as error:
        # chr() inside ruamel refuses "\UFFFFFFFF" on its own.
        raise _Unusable("bad-yaml", f"is not YAML: {error}", 1) from None


class _Reader:
    """Builds the tree from events, within the limits above."""

    def __init__(self, text: str, source: Source) -> None:
        self.source = source
        self.diagnostics: list[Diagnostic] = []
        self._stream = _events(text)
        self._values = 0

    def document(self) -> Node | None:
        root: Node | None = None
        documents = 0
        for event in self._stream:
            if isinstance(event, (events.StreamStartEvent, events.StreamEndEvent, events.DocumentEndEvent)):
                continue
            if isinstance(event, events.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    line = event.start_mark.line + 1
                    message = "contains several documents ('---')"
                    raise _Unusable("bad-yaml", message, line, "keep one document in a file")
            else:
                root = self._node(event, ())
        return root if root is not None else Node(None, self.source, 1)

    def _node(self, event: events.Event, path: Path, line: int | None = None) -> Node:
        here: int = event.start_mark.line + 1
        line = here if line is None else line
        self._count(path, here)
        if isinstance(event, events.MappingStartEvent):
            return Node(self._mapping(path), self.source, line)
        if isinstance(event, events.SequenceStartEvent):
            return Node(self._sequence(path), self.source, line)
        assert isinstance(event, events.ScalarEvent)
        value = self._scalar(event, here)
        typed = None
        if self.source.from_shell and value is not None and not isinstance(value, str):
            typed = event.value
        return Node(value, self.source, line, typed)

    def _count(self, path: Path, line: int) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise _Unusable("too-large", f"contains more than {MAX_VALUES} values", line)
        if len(path) > MAX_DEPTH:
            raise _Unusable("too-large", f"is nested more than {MAX_DEPTH} levels deep", line)

    def _mapping(self, path: Path) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for event in self._stream:
            if isinstance(event, events.MappingEndEvent):
                break
            line = event.start_mark.line + 1
            self._count(path, line)
            key = self._key(event, line)
            child = self._node(next(self._stream), (*path, key), line)
            if key in found:
                self._duplicate((*path, key), found[key].line, line)
            else:
                found[key] = child
        return found

    def _key(self, event: events.Event, line: int) -> str:
        if not isinstance(event, events.ScalarEvent):
            raise _Unusable("wrong-type", "a key must be text, not a list or a mapping", line)
        key = self._scalar(event, line)
        if not isinstance(key, str):
            raise _Unusable("wrong-type", f"the key {event.value!r} must be text", line, "write it in quotes")
        return key

    def _duplicate(self, path: Path, first: int | None, line: int) -> None:
        self.diagnostics.append(
            Diagnostic(
                "duplicate-key",
                f"is set twice, first on line {first}",
                self.source.file,
                self.source.prefix + dotted(path),
                line,
                hint="keep one of the two",
            )
        )

    def _sequence(self, path: Path) -> list[Node]:
        found: list[Node] = []
        for event in self._stream:
            if isinstance(event, events.SequenceEndEvent):
                break
            found.append(self._node(event, (*path, len(found))))
        return found

    def _scalar(self, event: events.ScalarEvent, line: int) -> str | int | float | bool | None:
        text: str = event.value
        if _SURROGATE.search(text):
            raise _Unusable("bad-yaml", "contains a lone surrogate, which UTF-8 cannot encode", line)
        return resolve(text, line) if event.style is None else text


def resolve(text: str, line: int = 1) -> str | int | float | bool | None:
    """Convert an unquoted scalar by YAML 1.2's core schema: ``on`` and ``08:00`` stay text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise _Unusable("out-of-range", f"a number of {len(text)} digits is beyond every field", line)
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
    return text
