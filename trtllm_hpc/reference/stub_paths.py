"""Paths with letters beyond ASCII, inside Triton's Python stub."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def plain_path(path: str) -> str:
    """A name for ``path`` that this process can open.

    Triton's stub starts Python isolated and without a locale, so that its file
    names are ASCII only whatever the environment says; and the libraries below
    take no escaped bytes. Such a path gets a link with a plain name, in the
    rank's scratch folder, which the job removes.
    """
    if path.isascii() or sys.getfilesystemencoding() == "utf-8":
        return path
    folder = tempfile.mkdtemp(prefix="path-", dir=os.environ.get("TRTLLM_HPC_SCRATCH"))
    link = Path(folder, "link")
    # Decoded the way this process decodes file names, so that it is encoded back to the same bytes.
    link.symlink_to(os.fsdecode(path.encode()))
    return str(link)
