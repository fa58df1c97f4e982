"""LoRA adapters as requests send them, read from the folders that ``hf_lora_convert.py`` writes.

The first request with an adapter sends its weights and their configuration, later ones only its number
(tensorrtllm_backend, docs/lora.md). A server that does not know the number, or not any more, says so:
:func:`is_unknown_adapter`.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.wire.served_model import CONFIG_INPUT, WEIGHTS_INPUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

WEIGHTS_FILE = "model.lora_weights.npy"
CONFIG_FILES = ("model.lora_config.npy", "model.lora_keys.npy")
"""Old releases wrote the second; upstream's client takes the first that is there."""

_HINT = (
    "convert the adapter: python3 hf_lora_convert.py -i ADAPTER -o FOLDER --storage-type float16; "
    "the build does it for those in engine.lora.adapters"
)
_UNKNOWN = re.compile(r"LoRA task \d+ not found in cache")
"""In cpp/tensorrt_llm/batch_manager/peftCacheManager.cpp (addRequestPeft), with various words before it."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that fits the inputs ``lora_weights`` and ``lora_config``."""

    task_id: int
    """By which requests name it."""
    weights: NDArray[np.float16]
    """Of shape [1, modules, values]: a row for each module of each layer."""
    config: NDArray[np.int32]
    """Of shape [1, modules, 3]: number of the module, layer, and rank."""

    @property
    def inputs(self) -> dict[str, NDArray[Any]]:
        """What a request sends with it, as a batch of one."""
        return {WEIGHTS_INPUT: self.weights, CONFIG_INPUT: self.config}

    @property
    def rank(self) -> int:
        """The highest rank among its modules."""
        return int(self.config[..., 2].max())


def is_unknown_adapter(error: str) -> bool:
    """Return whether a server's error says that it does not know the adapter, or not any more.

    The same request with the adapter's weights then makes it known.
    """
    return _UNKNOWN.search(error) is not None


def read_adapter(folder: Path, task_id: int | None = None) -> Adapter:
    """Read an adapter; without ``task_id`` its number follows from the adapter.

    A server that knows a number does not look at the weights that come with it, so another adapter must not
    have the same. Raises RequestFailed if the folder lacks a file, or a file holds something that the server
    would refuse without a reason, or would crash of.
    """
    weights = _load(folder, (WEIGHTS_FILE,), np.float16)
    config = _load(folder, CONFIG_FILES, np.int32)
    # New releases write a fourth column, which the input lacks: 1 for a module with DoRA scales.
    if config.shape[2] == 4 and not config[..., 3].any():
        config = np.ascontiguousarray(config[..., :3])
    why = None
    if config.shape[2] != 3:
        why = "the configuration must have module, layer and rank for each module, and no DoRA scales"
    elif weights.shape[1] != config.shape[1]:
        why = f"it has weights of {weights.shape[1]} modules and a configuration of {config.shape[1]}"
    elif (config[0].min(axis=0) < (0, 0, 1)).any():
        why = "the configuration has a row with a negative module or layer, or a rank below 1"
    elif not np.isfinite(weights).all():
        why = "a weight is a NaN or infinite: float16 holds at most 65,504"
    if why is not None:
        raise RequestFailed(f"{folder} is not a LoRA adapter that a request can carry: {why}.", hint=_HINT)
    if task_id is None:
        task_id = zlib.crc32(
            np.ascontiguousarray(config).data, zlib.crc32(np.ascontiguousarray(weights).data)
        )
    return Adapter(task_id, weights, config)


def _load(folder: Path, names: tuple[str, ...], kind: type[np.generic]) -> NDArray[Any]:
    """Return the array in the first of these files, as a batch of one, which the file may leave out."""
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        message = f"{folder} holds no converted LoRA adapter: it has no {' or '.join(names)}."
        raise RequestFailed(message, hint=_HINT)
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RequestFailed(f"{path} cannot be read as a NumPy file: {error}", hint=_HINT) from None
    array: NDArray[Any] = loaded[np.newaxis] if loaded.ndim == 2 else loaded
    if array.dtype != kind or array.ndim != 3 or array.shape[0] != 1 or not array.size:
        raise RequestFailed(
            f"{path} holds {array.dtype} of shape {list(array.shape)}; it must be {kind.__name__} of "
            "shape [1, modules, values].",
            hint=_HINT,
        )
    return array
