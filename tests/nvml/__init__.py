"""A stand-in for the library of the GPU's driver, compiled here: see ``stand_in.c``."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.sharing import made_once
from trtllm_hpc.runtime.gpus import LIBRARY

_SOURCE = Path(__file__).parent / "stand_in.c"


def library(*, old: bool = False) -> Path:
    """The folder of the library; ``old``: of a driver that lacks functions."""

    def make(folder: Path) -> None:
        folder.mkdir(mode=0o755)
        options = ["-std=gnu11", "-O1", "-Wall", "-Werror", "-fPIC", "-shared", *["-DOLD"] * old]
        subprocess.run(["cc", *options, "-o", folder / LIBRARY, _SOURCE, "-lm"], check=True)

    return made_once("nvml-old" if old else "nvml", make)


@dataclass
class StandIn:
    """The GPUs that the stand-in has, in a file that may change."""

    file: Path

    def has(self, *gpus: str) -> None:
        """Change the GPUs, each a line as ``stand_in.c`` reads it."""
        aside = self.file.with_suffix(".new")
        aside.write_text("".join(f"{gpu}\n" for gpu in gpus))
        aside.chmod(0o644)
        aside.replace(self.file)


def gpu(
    number: int = 0, watts: int = 500, *, swing: int = 0, reasons: int = 0, xid: int = 0, is_: str = "ok"
) -> str:
    """A GPU's line."""
    uuid = f"{'MIG' if is_ == 'mig' else 'GPU'}-{number:08x}-aaaa"
    return f"{uuid} 00000000:{number + 1:02X}:00.0 {watts * 1000} {swing * 1000} {reasons:x} {xid} {is_}"
