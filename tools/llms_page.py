"""Write ``docs/llms.txt``: each page of the site with its first sentence, for programs that read docs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "llms.txt"
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def page(texts: Mapping[Path, str]) -> str:
    """Return the file's text; ``texts`` contains the generated pages by path."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    lines = [f"# {site['site_name']}", "", f"> {site['site_description']}."]
    for entry in site["nav"]:
        [(title, pages)] = entry.items()
        lines += ["", f"## {title}", "", *_lines(pages, texts)]
    return "\n".join(lines) + "\n"


def _lines(pages: Any, texts: Mapping[Path, str]) -> Iterator[str]:
    if isinstance(pages, list):
        for page_or_group in pages:
            yield from _lines(page_or_group, texts)
    elif isinstance(pages, dict):
        for page_or_group in pages.values():
            yield from _lines(page_or_group, texts)
    else:
        path = ROOT / "docs" / pages
        text = texts.get(path) or path.read_text(encoding="utf-8")
        yield f"- [{_title(text)}]({pages.removesuffix('.md')}.html): {_first_sentence(text)}"


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _first_sentence(text: str) -> str:
    """Return the first sentence of a page's first paragraph of prose."""
    without_code = re.sub(r"(?ms)^```.*?^```$", "", text)
    for paragraph in without_code.split("\n\n")[1:]:
        flat = _LINK.sub(r"\1", " ".join(paragraph.split()))
        if re.match(r"[\w`*\"'(]", flat) and not flat.startswith("|"):
            sentence = re.match(r".*?[.:?!](?= [A-Z`]|$)", flat)
            return (sentence[0] if sentence else flat).rstrip(":")
    return _title(text)
