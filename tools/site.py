"""Hooks of mkdocs: links out of ``docs/``, and anchors as GitHub has them: pages read alike in both."""

from __future__ import annotations

import os
import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")
SOURCE_URL = "TRTLLM_HPC_SOURCE_URL"
"""Variable with the address of the published source, as in setup.py."""


def slug(heading: str, separator: str = "-") -> str:
    """Return a heading's anchor: lower case, punctuation dropped, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def within(markdown: str, page: str, source_url: str | None) -> str:
    """Return a page whose links out of ``docs/`` lead to the published source, or are text.

    Args:
        markdown: the page's text.
        page: its path below ``docs/``.
        source_url: where the source is published.
    """

    def mended(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if path.startswith("docs/") or path == "docs":
            return link[0]
        if source_url is None:
            return text if f"`{path}`" == text or path == text else f"{text} (`{path}` in the source)"
        return f"[{text}]({source_url}/blob/HEAD/{path}{anchor})"

    return _LINK.sub(mended, markdown)


def on_config(config: Any) -> Any:
    """Have headings get the anchors that links in the pages name."""
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mend the links of one page."""
    url = os.environ.get(SOURCE_URL, "").rstrip("/") or None
    return within(markdown, page.file.src_uri, url)
