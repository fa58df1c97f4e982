"""Where the programs in a container keep what they compile or download, and what ``~`` is there.

A container is started without the user's home, and its own files are mostly read only.
Where each name was read, and which caches the nodes can share: ``docs/explanation/decisions/containers.md``.
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
"""Variables of the scripts: the folder as the container sees it, the image, and what the profile sets."""
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
"""Each variable, and its folder."""
SHARED = ("HF_HOME", "TRITON_CACHE_DIR", "TRTLLM_DG_CACHE_DIR", "DG_JIT_CACHE_DIR")
"""Several nodes may write to these at once. Of every other cache, each node has its own."""
OF_HOME = ("XDG_CACHE_HOME", "HF_HOME")
"""A home that can be written has these already."""
KEEPS_KERNELS = "TRTLLM_DG_JIT_DUMP_CUBIN"
"""Without it TensorRT-LLM's DeepGEMM compiles in memory, and leaves ``TRTLLM_DG_CACHE_DIR`` empty."""


def use_caches(environment: MutableMapping[str, str]) -> None:
    """Give each cache a place that can be written, unless it has one; does nothing outside containers."""
    top = Path(environment.get(TOP, "/nowhere"))
    if not top.is_dir():  # the scripts name the folder outside, too
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
            else:  # `runtime sweep` removes it when the job ends
                job = environment["TRTLLM_HPC_JOB_ID"]
                folder = SCRATCH / f"trt{job}_caches" / CACHES[variable]
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if folder.stat().st_uid == os.geteuid():  # in /tmp it may be somebody else's
                    environment[variable] = str(folder)
            except OSError as error:
                print(f"{variable} cannot be {folder}: {error.strerror}", flush=True)
    if "TRTLLM_DG_CACHE_DIR" in environment:
        environment.setdefault(KEEPS_KERNELS, "1")
    os.umask(before)


def _has_place(variable: str, environment: Mapping[str, str]) -> bool:
    """Return whether a variable is the user's choice: the profile sets it, or it can be written to."""
    if variable == "HF_HOME" or variable in environment.get(GIVEN, "").split():
        return variable in environment
    folder = Path(environment.get(variable, "/nowhere"))
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def kept_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the image and of this node's kind of GPU."""
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
