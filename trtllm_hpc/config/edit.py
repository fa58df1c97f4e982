"""Edit single keys of a YAML text; every other character stays, comments among them.

ruamel's round trip would move comments that stand between a removed key and the next one, and reflow lines.
So ruamel only tells where keys and values are, and the text is cut there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from trtllm_hpc.config.dump import flow, scalar

Keys = tuple[str, ...]
"""From the root down."""


@dataclass(frozen=True)
class _Pair:
    key: Node
    value: Node
    parent: MappingNode
    place: int
    """Among the keys of ``parent``."""


class EditedText:
    """A YAML text of mappings, valid and without aliases, with keys taken out, replaced and added."""

    def __init__(self, text: str) -> None:
        self.text = text if text.endswith("\n") else f"{text}\n"

    def has(self, path: Keys) -> bool:
        """Whether the text has a key."""
        return self._find(path) is not None

    def remove(self, path: Keys) -> None:
        """Take a key out, with the comment on its lines; and the section around it, if that is then empty."""
        pair = self._find(path)
        if pair is None:
            return
        if len(pair.parent.value) == 1 and len(path) > 1:
            self.remove(path[:-1])
        elif pair.parent.flow_style:
            self._cut_flow(pair)
        else:
            self._cut_lines(pair.key.start_mark.line, _last_line_of(pair.key, pair.value))

    def put(self, path: Keys, value: Any) -> None:
        """Set a key, on one line; sections above it are made where they are not there."""
        pair = self._find(path)
        if pair is not None:
            if pair.value.end_mark.line != pair.value.start_mark.line:
                self.remove(path)
                self.put(path, value)
                return
            start, end = pair.value.start_mark.index, pair.value.end_mark.index
            if start == end:  # nothing: for ruamel it stands where the next key does
                end = self.text.index(":", pair.key.end_mark.index) + 1
                self._replace(end, end, f" {flow(value)}")
            else:
                self._replace(start, end, flow(value))
            return
        above = self._section(path[:-1])
        if above is None:
            self.put(path[:-1], {path[-1]: value})
        elif above.flow_style:
            end = above.end_mark.index - 1
            comma = ", " if above.value else ""
            self._replace(end, end, f"{comma}{scalar(path[-1])}: {flow(value)}")
        else:
            self._add_line(above, f"{scalar(path[-1])}: {flow(value)}")

    def _root(self) -> Node | None:
        root: Node | None = YAML().compose(self.text)
        return root

    def _find(self, path: Keys) -> _Pair | None:
        node, pair = self._root(), None
        for word in path:
            pair = None
            if isinstance(node, MappingNode):
                for place, (key, value) in enumerate(node.value):
                    if key.value == word:
                        pair = _Pair(key, value, node, place)
            if pair is None:
                return None
            node = pair.value
        return pair

    def _section(self, path: Keys) -> MappingNode | None:
        pair = self._find(path) if path else None
        node = self._root() if not path else pair.value if pair is not None else None
        return node if isinstance(node, MappingNode) else None

    def _replace(self, start: int, end: int, text: str) -> None:
        self.text = self.text[:start] + text + self.text[end:]

    def _cut_flow(self, pair: _Pair) -> None:
        pairs = pair.parent.value
        if pair.place + 1 < len(pairs):
            self._replace(pair.key.start_mark.index, pairs[pair.place + 1][0].start_mark.index, "")
        elif pair.place:
            self._replace(pairs[pair.place - 1][1].end_mark.index, pair.value.end_mark.index, "")
        else:
            self._replace(pair.key.start_mark.index, pair.value.end_mark.index, "")

    def _cut_lines(self, first: int, last: int) -> None:
        lines = self.text.splitlines(keepends=True)
        del lines[first : last + 1]
        # One empty line is enough where there was one on both sides.
        if 0 < first < len(lines) and not lines[first].strip() and not lines[first - 1].strip():
            del lines[first]
        self.text = "".join(lines)

    def _add_line(self, section: MappingNode, text: str) -> None:
        lines = self.text.splitlines(keepends=True)
        column = section.value[0][0].start_mark.column if section.value else 0
        after = _last_line(section) + 1 if section.value else len(lines)
        lines.insert(after, f"{' ' * column}{text}\n")
        self.text = "".join(lines)


def _last_line_of(key: Node, value: Node) -> int:
    """The last line of a key with its value, which may be nothing."""
    is_nothing = value.start_mark.index == value.end_mark.index
    return _last_line(key if is_nothing else value)


def _last_line(node: Node) -> int:
    """The last line with a part of a value: a block ends for ruamel only where the next key begins."""
    if isinstance(node, MappingNode) and not node.flow_style and node.value:
        return _last_line_of(*node.value[-1])
    if isinstance(node, SequenceNode) and not node.flow_style and node.value:
        return _last_line(node.value[-1])
    end: int = node.end_mark.line
    # The mark of a text over several lines is at the beginning of the next one.
    return end if node.end_mark.column or end == node.start_mark.line else end - 1
