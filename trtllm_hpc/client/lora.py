"""Read LoRA adapters from the folders of ``hf_lora_convert.py``, for requests.

The first request of an adapter sends its weights and configuration, later requests only its task ID
(tensorrtllm_backend, docs/lora.md). If the server does not know the task ID, or has evicted the adapter, its
error matches :func:`is_unknown_adapter`.
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
"""Names of the configuration; old releases write the second one."""

_HINT = (
    "convert the adapter: python3 hf_lora_convert.py -i ADAPTER -o FOLDER --storage-type float16; "
    "or list it in engine.lora.adapters, and the build converts it"
)
_UNKNOWN = re.compile(r"LoRA task \d+ not found in cache")
"""Error of cpp/tensorrt_llm/batch_manager/peftCacheManager.cpp (addRequestPeft), after varying words."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter as values of the inputs ``lora_weights`` and ``lora_config``."""

    task_id: int
    """Number by which requests name the adapter."""
    weights: NDArray[np.float16]
    """Array of shape [1, modules, values], with a row for each module of each layer."""
    config: NDArray[np.int32]
    """Array of shape [1, modules, 3]: module number, layer and rank."""

    @property
    def inputs(self) -> dict[str, NDArray[Any]]:
        """Inputs of a request that makes the adapter known, as a batch of one."""
        return {WEIGHTS_INPUT: self.weights, CONFIG_INPUT: self.config}

    @property
    def rank(self) -> int:
        """The highest rank of the modules."""
        return int(self.config[..., 2].max())


def is_unknown_adapter(error: str) -> bool:
    """Return whether a server's error means that the adapter is unknown or evicted.

    The same request with the adapter's weights then succeeds.
    """
    return _UNKNOWN.search(error) is not None


def read_adapter(folder: Path, task_id: int | None = None) -> Adapter:
    """Read an adapter; without ``task_id`` its number is a hash of the adapter.

    A server that knows a task ID ignores the weights sent with it, so two adapters must not share one. Raises
    RequestFailed if a file is missing, or has values that the server refuses without a reason or crashes on.
    """
    weights = _load(folder, (WEIGHTS_FILE,), np.float16)
    config = _load(folder, CONFIG_FILES, np.int32)
    # New releases write a fourth column (1 for a module with DoRA scales), which the input lacks.
    if config.shape[2] == 4 and not config[..., 3].any():
        config = np.ascontiguousarray(config[..., :3])
    why = None
    if config.shape[2] != 3:
        why = "the configuration must have module, layer and rank for each module, and no DoRA scales"
    elif weights.shape[1] != config.shape[1]:
        why = f"the weights have {weights.shape[1]} modules, the configuration {config.shape[1]}"
    elif (config[0].min(axis=0) < (0, 0, 1)).any():
        why = "the configuration has a row with a negative module or layer, or a rank below 1"
    elif not np.isfinite(weights).all():
        why = "a weight is a NaN or infinite: float16 holds at most 65,504"
    if why is not None:
        raise RequestFailed(f"{folder} is not a usable LoRA adapter: {why}.", hint=_HINT)
    if task_id is None:
        task_id = zlib.crc32(
            np.ascontiguousarray(config).data, zlib.crc32(np.ascontiguousarray(weights).data)
        )
    return Adapter(task_id, weights, config)


def _load(folder: Path, names: tuple[str, ...], kind: type[np.generic]) -> NDArray[Any]:
    """Return the array in the first existing file, with the batch dimension that a file may lack."""
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        message = f"{folder} is not a converted LoRA adapter: it has no {' or '.join(names)}."
        raise RequestFailed(message, hint=_HINT)
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RequestFailed(f"{path} cannot be read as a NumPy file: {error}", hint=_HINT) from None
    array: NDArray[Any] = loaded[np.newaxis] if loaded.ndim == 2 else loaded
    if array.dtype != kind or array.ndim != 3 or array.shape[0] != 1 or not array.size:
        raise RequestFailed(
            f"{path} has {array.dtype} of shape {list(array.shape)}; it must have {kind.__name__} of "
            "shape [1, modules, values].",
            hint=_HINT,
        )
    return array
