"""The machine's GPUs, and how many of them each node of a sandbox gets."""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from pathlib import Path

from trtllm_hpc.errors import SandboxError, SandboxImpossible
from trtllm_hpc.sandbox.layout import MAX_GPUS, Shape

DEVICES = Path("/dev")
"""Folder of the machine's device files."""

_UVM = "nvidia-uvm"
"""CUDA's device file for memory, made when the first program uses CUDA."""


def device_files() -> tuple[str, ...]:
    """The names of the GPUs' device files in ``DEVICES``, such as ``nvidia0``, by number.

    A driver makes one for each GPU; in a container there are only those that it was given, under
    the machine's numbers.
    """
    found = [path.name for path in DEVICES.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    devices = [name for name in found if stat.S_ISCHR((DEVICES / name).stat().st_mode)]
    return tuple(sorted(devices, key=lambda name: int(name.removeprefix("nvidia"))))


def real_shape(nodes: int, gpus_per_node: int | None) -> Shape:
    """The shape of a sandbox with the machine's own GPUs; ``None``: as many as there are for every node.

    Raises SandboxError if no GPU was asked for; SandboxImpossible if the machine has no GPU, or too few.
    """
    if gpus_per_node == 0:
        raise SandboxError(
            "--gpus real and --gpus-per-node 0 contradict each other: no node would get a GPU.",
            hint=f"trtllm-hpc sandbox up --nodes {nodes} --gpus real",
        )
    shape = Shape(nodes, gpus_per_node or 1, real_gpus=True)
    names = device_files()
    _check_driver(names)
    if shape.gpus > len(names):
        files = ", ".join(str(DEVICES / name) for name in names)
        raise SandboxImpossible(
            f"A sandbox of {shape} needs {shape.gpus} GPUs, and this machine has {len(names)}: {files}.",
            hint=f"trtllm-hpc sandbox up --nodes {min(nodes, len(names))} --gpus real",
        )
    if gpus_per_node is None:
        shape = replace(shape, gpus_per_node=min(len(names) // nodes, MAX_GPUS))
    return shape


def _check_driver(names: tuple[str, ...]) -> None:
    claimed = "or trtllm-hpc sandbox up --gpus claimed, for nodes that only claim to have GPUs"
    if not names:
        raise SandboxImpossible(
            f"This machine has no NVIDIA GPU to share out: there is no {DEVICES}/nvidia0.",
            hint=f"nvidia-smi -L as root, which makes that file if there is a GPU; {claimed}",
        )
    if not (DEVICES / _UVM).exists():
        raise SandboxImpossible(
            f"CUDA cannot run on this machine yet: there is no {DEVICES}/{_UVM}.",
            hint=f"nvidia-modprobe -u -c 0 as root (or any CUDA program), which makes that file; {claimed}",
        )
