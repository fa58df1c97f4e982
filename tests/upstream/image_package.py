"""What importing ``tensorrt_llm`` does in an image: ``tensorrt_llm/__init__.py`` of the stand-in there.

Importing it initialises MPI (``_utils.py`` imports ``mpi4py``) and has FlashInfer make its folder
(``flashinfer/jit/core.py``); read at 1.3.0rc3.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import mpi4py.MPI  # noqa: F401

workspace = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home()) / ".cache" / "flashinfer"
workspace.mkdir(parents=True, exist_ok=True)

__version__ = metadata.version("tensorrt_llm")
