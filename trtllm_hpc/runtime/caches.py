"""Cache folders and ``HOME`` of the programs in a container.

A container starts without the user's home, and most of its own files are read-only. The sources of the
variables, and which caches nodes can share: ``docs/explanation/decisions/containers.md``.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.runtime.node import SCRATCH

TOP, IMAGE, GIVEN = "TRTLLM_HPC_CACHES", "TRTLLM_HPC_IMAGE", "TRTLLM_HPC_GIVEN"
"""Variables that the scripts set: the cache folder as the container sees it, the image's name, and the names
of the variables that the profile sets."""
_GPUS = Path("/proc/driver/nvidia/gpus")
CACHES = {
    "HOME": "home",
    "XDG_CACHE_HOME": "home/.cache",
    "HF_HOME": "huggingface",
    "HF_MODULES_CACHE": "hf_modules",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TRTLLM_DG_CACHE_DIR": "tensorrt_llm",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "CUTE_DSL_CACHE_DIR": "cute_dsl",
    "CUDA_TILE_CACHE_DIR": "cuda_tile",
    "CUDA_CACHE_PATH": "cuda",
}
"""Subfolder of each variable."""
SHARED = ("HF_HOME", "TRITON_CACHE_DIR", "TRTLLM_DG_CACHE_DIR", "DG_JIT_CACHE_DIR")
"""Caches that several nodes may write at once. Every other cache is separate on each node."""
OF_HOME = ("XDG_CACHE_HOME", "HF_HOME")
"""Caches that a writable home contains already."""
KEEPS_KERNELS = "TRTLLM_DG_JIT_DUMP_CUBIN"
"""Without this variable TensorRT-LLM's DeepGEMM compiles in memory, and ``TRTLLM_DG_CACHE_DIR`` stays
empty."""


def use_caches(environment: MutableMapping[str, str]) -> None:
    """Point each cache variable at a writable folder unless it has one; do nothing outside containers."""
    top = Path(environment.get(TOP, "/nowhere"))
    if not top.is_dir():  # outside a container, where the scripts set the variable as well
        return
    has_home = _has_place("HOME", environment)
    before = os.umask(0o077)
    for variable in CACHES:
        if not ((variable in OF_HOME and has_home) or _has_place(variable, environment)):
            if variable == "HF_HOME":
                folder = top / CACHES[variable]
            elif variable in SHARED:
                folder = kept_folder(environment) / CACHES[variable]
            elif can_lock(top):
                folder = kept_folder(environment) / os.uname().nodename / CACHES[variable]
            else:  # a node's own disk; `runtime sweep` removes the folder when the job ends
                job = environment["TRTLLM_HPC_JOB_ID"]
                folder = SCRATCH / f"trt{job}_caches" / CACHES[variable]
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if folder.stat().st_uid == os.geteuid():  # in /tmp another user may have made the folder
                    environment[variable] = str(folder)
            except OSError as error:
                print(f"{variable} is not set: {folder} cannot be made ({error.strerror})", flush=True)
    if "TRTLLM_DG_CACHE_DIR" in environment:
        environment.setdefault(KEEPS_KERNELS, "1")
    os.umask(before)


def _has_place(variable: str, environment: Mapping[str, str]) -> bool:
    """Return whether a variable stays as it is: the profile sets it, or its folder is writable.

    ``HF_HOME`` is never changed if it is set, because it may contain models to be read.
    """
    if variable == "HF_HOME" or variable in environment.get(GIVEN, "").split():
        return variable in environment
    folder = Path(environment.get(variable, "/nowhere"))
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def kept_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of caches for this image and this node's GPU models."""
    texts = [file.read_text(errors="replace") for file in _GPUS.glob("*/information")]
    models = {model for text in texts for model in re.findall(r"^Model:\s*(.+)", text, re.MULTILINE)}
    kind = re.sub(r"\W+", "-", " ".join(sorted(models))).lower() or "no-gpu"
    return Path(environment[TOP], environment[IMAGE], kind)


def can_lock(folder: Path) -> bool:
    """Return whether flock(2) works in a folder; on Lustre it may not."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
