"""The part of the metadata that setup.cfg cannot state: what depends on where the source is published.

A package index shows README.md alone, so its relative links would lead nowhere there. With the address of the
published source in ``TRTLLM_HPC_SOURCE_URL`` (docs/how-to/releasing.md) they become absolute and the package
gets project URLs; without it each link becomes its text and the path in the source.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import setuptools

_RELATIVE_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?![a-z]+:|#)([^)\s]+)\)")


def description(readme: str, source_url: str | None) -> str:
    """The README as a package index can show it."""
    if source_url is None:
        return _RELATIVE_LINK.sub(r"\2 (`\3` in the source)", readme)
    return _RELATIVE_LINK.sub(rf"\1[\2]({source_url}/blob/HEAD/\3)", readme)


def project_urls(source_url: str | None) -> dict[str, str]:
    """Links of the project's page on a package index."""
    if source_url is None:
        return {}
    return {
        "Source": source_url,
        "Documentation": f"{source_url}/tree/HEAD/docs",
        "Changelog": f"{source_url}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{source_url}/issues",
    }


if __name__ == "__main__":
    _SOURCE_URL = os.environ.get("TRTLLM_HPC_SOURCE_URL", "").rstrip("/") or None
    _README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setuptools.setup(
        long_description=description(_README, _SOURCE_URL), project_urls=project_urls(_SOURCE_URL)
    )
