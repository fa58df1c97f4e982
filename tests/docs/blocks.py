"""The commands and the YAML in the README and the pages of the site."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^( *)```(.*)\n((?:.*\n)*?) *```$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    """Of its first line of text."""
    kind: str
    text: str

    def commands(self) -> Iterator[str]:
        """Yield what a reader types: after ``$`` or root's ``#``, with continued lines joined."""
        for command in re.findall(r"^[$#] ((?:.*\\\n)*.*)$", self.text, re.MULTILINE):
            yield re.sub(r"\\\n\s*", "", command)


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(3)) + 1
        body = textwrap.dedent(found[3])
        yield Block(str(page.relative_to(ROOT)), line, found[2], body)


def all_blocks(kind: str) -> list[Block]:
    """Return the blocks of one kind on all pages."""
    return [block for page in PAGES for block in blocks(page) if block.kind == kind]
