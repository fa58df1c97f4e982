"""Quantizing a Hugging Face checkpoint for the LLM API on PyTorch, by NVIDIA's Model Optimizer in the image.

As ``examples/llm_ptq/hf_ptq.py`` does (0.27 to 0.37), which is not in the image: scales are measured on
texts, and the checkpoint gets ``hf_quant_config.json``, by which TensorRT-LLM knows its types.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import BuildFailed

FORMATS = {
    "fp8": "FP8_DEFAULT_CFG",
    "nvfp4": "NVFP4_DEFAULT_CFG",
    "int4_awq": "INT4_AWQ_CFG",
    "w4a8_awq": "W4A8_AWQ_BETA_CFG",
}
"""Model Optimizer's configuration of each method that TensorRT-LLM's PyTorch backend computes with
(``docs/source/features/quantization.md``, 1.2)."""
CACHE_FORMATS = {"fp8": "FP8_KV_CFG"}

_DATASET = "abisee/cnn_dailymail", "3.0.0"
"""``quantize.py``'s own, too; it is downloaded."""
_COLUMNS = ("text", "article", "prompt", "content")
_TEXTS_HINT = (
    "set engine.quantization.calibration_dataset to a folder with texts: .jsonl with a key text, or .txt"
)
_TOKENS = 512
"""Of each text."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx")
_WRITTEN = "hf_quant_config.json"


@dataclass(frozen=True)
class Quantization:
    """What is made of a checkpoint."""

    model: Path
    output: Path
    method: str
    """One of :data:`FORMATS`."""
    kv_cache: str | None = None
    """One of :data:`CACHE_FORMATS`; ``None``: the KV cache keeps the model's type."""
    calibration_dataset: Path | None = None
    """A local folder with ``.jsonl`` or ``.txt``, or else what ``datasets`` reads; ``None``: a download."""
    calibration_size: int = 512
    """Texts, by default as many as ``hf_ptq.py`` takes."""
    batch_size: int = 1
    """The largest batch depends on the GPU's memory."""


def quantize(wanted: Quantization) -> None:
    """Write the quantized checkpoint with the model's tokenizer and small files; raises BuildFailed."""
    try:
        mtq = import_module("modelopt.torch.quantization")
        export = import_module("modelopt.torch.export")
    except ImportError as error:
        raise BuildFailed(
            f"This image has no Model Optimizer to quantize with ({error}).",
            hint="take an image with the package nvidia-modelopt, as NVIDIA's have it, or set model.path to a"
            " quantized checkpoint and leave engine.quantization out",
        ) from None
    texts = _texts(wanted)
    torch, transformers = import_module("torch"), import_module("transformers")
    _say(f"load {wanted.model}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(wanted.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        wanted.model, torch_dtype="auto", device_map="auto"
    )
    batches = list(_batches(tokenizer, texts, wanted.batch_size))
    configuration = copy.deepcopy(getattr(mtq, FORMATS[wanted.method]))
    if wanted.kv_cache is not None:
        configuration["quant_cfg"].update(getattr(mtq, CACHE_FORMATS[wanted.kv_cache])["quant_cfg"])

    def measure(measured: Any) -> None:
        for number, batch in enumerate(batches, start=1):
            _say(f"calibrate: batch {number} of {len(batches)}")
            measured(**{name: tensor.to(model.device) for name, tensor in batch.items()})

    with torch.inference_mode():
        mtq.quantize(model, configuration, measure)
        _say(f"write {wanted.output}")
        export.export_hf_checkpoint(model, export_dir=str(wanted.output))
    # What was not written anew: tokenizer, chat template, and code of the model's own.
    for file in wanted.model.iterdir():
        is_weights = file.suffix in _WEIGHTS or file.name.endswith(".index.json")
        if file.is_file() and not is_weights and not (wanted.output / file.name).exists():
            shutil.copy(file, wanted.output)
    algorithm = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        written = json.loads((wanted.output / _WRITTEN).read_text(encoding="utf-8"))
        algorithm = written["quantization"]["quant_algo"]
    if not algorithm:
        raise BuildFailed(
            f"Model Optimizer has quantized nothing of {wanted.model} to {wanted.method}.",
            hint="see its words above; it may not know this architecture",
        )
    _say(f"quantized to {algorithm}")


def _batches(tokenizer: Any, texts: Sequence[str], size: int) -> Iterator[Any]:
    """Yield the token ids of the texts, padded at the left as for generation."""
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    padding = tokenizer.pad_token is not None and size > 1
    size = size if padding else 1
    for at in range(0, len(texts), size):
        some = texts[at : at + size]
        yield tokenizer(some, return_tensors="pt", padding=padding, truncation=True, max_length=_TOKENS)


def _texts(wanted: Quantization) -> Sequence[str]:
    folder, count = wanted.calibration_dataset, wanted.calibration_size
    _say(f"read {count} texts of {folder or _DATASET[0]}")
    rows = _plain_rows(folder) if folder is not None else iter(())
    first = next(rows, None)
    rows = _rows_of_dataset(folder, count) if first is None else chain([first], rows)
    texts = list(islice((text for row in rows if (text := _text(row))), count))
    if not texts:
        raise BuildFailed(
            f"{folder or _DATASET[0]} has no texts (columns {', '.join(_COLUMNS)}).", hint=_TEXTS_HINT
        )
    return texts


def _plain_rows(folder: Path) -> Iterator[dict[str, Any]]:
    try:
        for file in sorted(folder.glob("*.jsonl")) + sorted(folder.glob("*.txt")):
            with file.open(encoding="utf-8") as lines:
                yield from (json.loads(it) if file.suffix == ".jsonl" else {"text": it} for it in lines)
    except (OSError, ValueError) as error:
        raise BuildFailed(f"The texts in {folder} cannot be read: {error}.", hint=_TEXTS_HINT) from None


def _rows_of_dataset(folder: Path | None, count: int) -> Iterator[dict[str, Any]]:
    try:
        load_dataset = import_module("datasets").load_dataset
        named = _DATASET if folder is None else (str(folder),)
        yield from load_dataset(*named, split="train", streaming=True).take(count)
    except Exception as error:  # noqa: BLE001 - of several packages, and the message says which
        message = f"The texts to calibrate with cannot be read: {type(error).__name__}: {error}."
        raise BuildFailed(message, hint=_TEXTS_HINT) from None


def _text(row: dict[str, Any]) -> str | None:
    texts = (row.get(name) for name in _COLUMNS)
    return next((text for text in texts if isinstance(text, str) and text.strip()), None)


def _say(what: str) -> None:
    print(what, flush=True)
