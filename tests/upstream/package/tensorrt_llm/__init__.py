"""A stand-in for the package ``tensorrt_llm``: what importing it does, and the parsers of its server.

Importing it initialises MPI (``_utils.py`` imports ``mpi4py``), needs the driver's library, and has
FlashInfer make its folder (``flashinfer/jit/core.py``); all read at 1.3.0rc3. ``FAKE_IMAGE`` lists faults
that an image can have, separated by spaces.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

FAULTS = os.environ.get("FAKE_IMAGE", "").split()

if "no-driver" in FAULTS:
    raise ImportError("libcuda.so.1: cannot open shared object file: No such file or directory")
if "no-mpi" not in FAULTS:
    import mpi4py.MPI  # noqa: F401

Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home(), ".cache", "flashinfer").mkdir(
    parents=True, exist_ok=True
)

__version__ = metadata.version("tensorrt_llm")
