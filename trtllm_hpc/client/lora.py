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

MAX_TASK_ID = 2**64 - 1
"""``lora_task_id`` is a UINT64."""

WEIGHTS_FILE = "model.lora_weights.npy"
CONFIG_FILES = ("model.lora_config.npy", "model.lora_keys.npy")
"""Old releases wrote the second; upstream's client takes the first that is there."""

_HINT = (
    "convert the adapter: python3 hf_lora_convert.py -i ADAPTER -o FOLDER --storage-type float16; "
    "the build does it for those in engine.lora.adapters"
)
_ROW = 3
"""Values in a row of the configuration: module, layer and rank. New releases may write a fourth."""
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
    have the same. Raises RequestFailed if the folder lacks a file, or a file holds something else.
    """
    if task_id is not None and not 0 <= task_id <= MAX_TASK_ID:
        raise RequestFailed(
            f"{task_id} is not a number of a LoRA adapter.", hint=f"take one from 0 to {MAX_TASK_ID}"
        )
    weights_file, config_file = _files(folder)
    weights = _load(weights_file, WEIGHTS_INPUT, np.float16, "[1, modules, values]")
    config = _load(config_file, CONFIG_INPUT, np.int32, "[1, modules, 3]")
    if config.shape[2] == _ROW + 1:
        # The fourth column, which the input lacks, is 1 for a module with DoRA scales; without the column
        # no module has them (TensorRT-LLM, docs/source/advanced/lora.md).
        if config[..., _ROW].any():
            raise RequestFailed(
                f"{config_file} is of a DoRA adapter, which the input {CONFIG_INPUT} cannot describe.",
                hint="use an adapter without DoRA (use_dora: false in its adapter_config.json)",
            )
        config = np.ascontiguousarray(config[..., :_ROW])
    _check(weights_file, weights, config_file, config)
    if task_id is None:
        begun = zlib.crc32(np.ascontiguousarray(weights).data)
        task_id = zlib.crc32(np.ascontiguousarray(config).data, begun)
    return Adapter(task_id, weights, config)


def _files(folder: Path) -> tuple[Path, Path]:
    if not folder.is_dir():
        raise RequestFailed(
            f"{folder} is not a folder: there is no LoRA adapter.",
            hint=f"name the folder that holds {WEIGHTS_FILE}",
        )
    weights = folder / WEIGHTS_FILE
    if not weights.is_file():
        what = f"it has no {WEIGHTS_FILE}"
        if (folder / "adapter_config.json").is_file():
            what = "it is a Hugging Face adapter that has not been converted"
        raise RequestFailed(f"{folder} holds no converted LoRA adapter: {what}.", hint=_HINT)
    for name in CONFIG_FILES:
        if (folder / name).is_file():
            return weights, folder / name
    raise RequestFailed(
        f"{folder} holds {WEIGHTS_FILE}, but neither {' nor '.join(CONFIG_FILES)}.", hint=_HINT
    )


def _load(path: Path, name: str, kind: type[np.generic], shape: str) -> NDArray[Any]:
    """Return the array for an input as a batch of one, which the file may leave out."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}."
        raise RequestFailed(message, hint=f"ls -l {path}") from None
    except (ValueError, EOFError):
        raise RequestFailed(f"{path} is not a NumPy file, or is cut off.", hint=_HINT) from None
    if not isinstance(array, np.ndarray):
        raise RequestFailed(f"{path} holds several arrays instead of one.", hint=_HINT)
    if array.dtype != kind:
        # NumPy has no bfloat16: the program stores its bits as "V2".
        found = "bfloat16" if array.dtype == np.dtype("V2") else str(array.dtype)
        convert = "convert it again with --storage-type float16 (engine.lora.storage_type)"
        raise RequestFailed(
            f"{path} holds values of type {found}, but the input {name} takes {kind.__name__} only.",
            hint=convert if name == WEIGHTS_INPUT else _HINT,
        )
    batch = array[np.newaxis] if array.ndim == 2 else array
    if batch.ndim != 3 or batch.shape[0] != 1 or 0 in batch.shape:
        raise RequestFailed(f"{path} has shape {list(array.shape)}; it must be {shape}.", hint=_HINT)
    return batch


def _check(weights_file: Path, weights: NDArray[Any], config_file: Path, config: NDArray[Any]) -> None:
    """Refuse what the server would refuse without a reason, or would crash of. Raises RequestFailed."""
    if config.shape[2] != _ROW:
        count = config.shape[2]
        message = f"{config_file} has {count} values for each module; it must have 3: module, layer and rank."
        raise RequestFailed(message, hint=_HINT)
    if weights.shape[1] != config.shape[1]:
        raise RequestFailed(
            f"{weights_file} holds {weights.shape[1]} modules and {config_file.name} {config.shape[1]}: "
            "they are not of the same adapter.",
            hint=_HINT,
        )
    module, layer, rank = config[0].min(axis=0).tolist()
    if module < 0 or layer < 0 or rank < 1:
        message = f"{config_file} has a row with a negative module or layer, or a rank below 1."
        raise RequestFailed(message, hint=_HINT)
    if not np.isfinite(weights).all():
        raise RequestFailed(
            f"{weights_file} holds a NaN or an infinite value.",
            hint="a value above 65,504 does not fit into float16: train or scale the adapter again",
        )
