"""Hooks for mkdocs: links out of ``docs/`` and GitHub's anchors work on the site as they do on GitHub."""

from __future__ import annotations

import os
import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s#]*)(#[^)\s]*)?\)")
SOURCE_URL = "TRTLLM_HPC_SOURCE_URL"
"""Environment variable with the URL of the published source, as in setup.py."""


def slug(heading: str, separator: str = "-") -> str:
    """Return a heading's anchor: lower case, punctuation dropped, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def within(markdown: str, page: str, source_url: str | None) -> str:
    """Return a page whose links out of ``docs/`` lead to the published source.

    Args:
        markdown: the page's text.
        page: the page's path below ``docs/``.
        source_url: URL of the published source; ``None`` replaces the links by their text.
    """

    def replaced(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if path.startswith("docs/") or path == "docs":
            return link[0]
        if source_url is None:
            return text if f"`{path}`" == text or path == text else f"{text} (`{path}` in the source)"
        return f"[{text}]({source_url}/blob/HEAD/{path}{anchor})"

    return _LINK.sub(replaced, markdown)


def on_config(config: Any) -> Any:
    """Give headings the anchors that the pages' links use."""
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the links out of ``docs/`` in one page."""
    url = os.environ.get(SOURCE_URL, "").rstrip("/") or None
    return within(markdown, page.file.src_uri, url)
