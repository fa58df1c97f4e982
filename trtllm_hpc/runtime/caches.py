"""Where the programs in a container keep what they compile or download, and what ``~`` is there.

A container is started without the user's home, and its own files are mostly read only. ``docs/decisions/
containers.md`` says where each name was read, and which caches the nodes can share.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.runtime.node import SCRATCH

TOP, IMAGE, GIVEN = "TRTLLM_HPC_CACHES", "TRTLLM_HPC_IMAGE", "TRTLLM_HPC_GIVEN"
"""Variables of the scripts: the folder as the container sees it, the image, and what the profile sets."""
_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Cache:
    """One cache. By default each node has its own, for each image and each kind of GPU."""

    variable: str
    folder: str
    shared: bool = False
    """Whether processes of several nodes may write to it at once."""
    of_home: bool = False
    """Whether a home that can be written has it already."""


CACHES = (
    Cache("HOME", "home"),
    Cache("XDG_CACHE_HOME", "home/.cache", of_home=True),
    Cache("HF_HOME", "huggingface", shared=True, of_home=True),
    Cache("HF_MODULES_CACHE", "hf_modules"),
    Cache("FLASHINFER_WORKSPACE_BASE", "flashinfer"),
    Cache("TRITON_CACHE_DIR", "triton", shared=True),
    Cache("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    Cache("TRTLLM_DG_CACHE_DIR", "tensorrt_llm", shared=True),
    Cache("DG_JIT_CACHE_DIR", "deep_gemm", shared=True),
    Cache("CUTE_DSL_CACHE_DIR", "cute_dsl"),
    Cache("CUDA_TILE_CACHE_DIR", "cuda_tile"),
    Cache("CUDA_CACHE_PATH", "cuda"),
)
TUNING = "TLLM_AUTOTUNER_CACHE_PATH"
"""One more, a file: each step has its own (``begin_tuning``)."""


def use_caches(environment: MutableMapping[str, str]) -> None:
    """Give each cache a place that can be written, unless it has one; does nothing outside containers."""
    if TOP not in environment:
        return
    has_home = _has_place("HOME", environment)
    before = os.umask(0o077)
    for cache in CACHES:
        if not ((cache.of_home and has_home) or _has_place(cache.variable, environment)):
            folder = _folder_of(cache, environment)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if folder.stat().st_uid != os.geteuid():
                    raise PermissionError(0, "the folder is another user's")
                environment[cache.variable] = str(folder)
            except OSError as error:
                print(f"{cache.variable} cannot be {folder}: {error.strerror}", flush=True)
    os.umask(before)


def _has_place(variable: str, environment: Mapping[str, str]) -> bool:
    """Return whether a variable is the user's choice: the profile sets it, or it can be written to."""
    if variable not in environment:
        return False
    if variable == "HF_HOME" or variable in environment.get(GIVEN, "").split():
        return True
    folder = Path(environment[variable])
    if variable != "HOME":
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _folder_of(cache: Cache, environment: Mapping[str, str]) -> Path:
    if cache.variable == "HF_HOME":
        return Path(environment[TOP], cache.folder)
    if cache.shared:
        return shared_folder(environment) / cache.folder
    if can_lock(Path(environment[TOP])):
        return shared_folder(environment) / os.uname().nodename / cache.folder
    # `runtime sweep` removes it when the job ends.
    return SCRATCH / f"trt{environment['TRTLLM_HPC_JOB_ID']}_caches" / cache.folder


def shared_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the image and of this node's kind of GPU."""
    texts = [file.read_text(errors="replace") for file in _GPUS.glob("*/information")]
    models = {model for text in texts for model in re.findall(r"^Model:\s*(.+)", text, re.MULTILINE)}
    kind = re.sub(r"\W+", "-", " ".join(sorted(models))).lower() or "no-gpu"
    return Path(environment[TOP], environment[IMAGE], kind)


def can_lock(folder: Path) -> bool:
    """Return whether flock(2) works in a folder; on Lustre it may not."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def begin_tuning(own: Path, ranks: int, environment: MutableMapping[str, str]) -> Path | None:
    """Give the ranks of a step a file of what the autotuner finds; returns where to keep it.

    All ranks must have read the same, since they measure together what is not known yet. So a step has its
    own file, which begins as a copy of what steps of as many ranks have found. ``None``: outside containers,
    if the variable is set, and where the autotuner could not lock its file.
    """
    if TOP not in environment or TUNING in environment or not can_lock(own.parent):
        return None
    kept = shared_folder(environment) / "autotuner" / f"{ranks}.json"
    own.unlink(missing_ok=True)
    copy_tuning(kept, own)
    environment[TUNING] = str(own)
    return kept


def copy_tuning(source: Path, target: Path) -> None:
    """Copy what the autotuner has found, unless a rank that was killed has written only half of it."""
    with suppress(OSError, ValueError):
        text = source.read_text(encoding="utf-8")
        json.loads(text)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{os.uname().nodename}.{os.getpid()}")
        aside.write_text(text, encoding="utf-8")
        aside.replace(target)
