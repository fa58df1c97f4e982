"""Read a model's tokenizer with ``tokenizers``, because transformers takes seconds to import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtllm_hpc.errors import RequestFailed


def read_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in a folder's ``tokenizer.json``. Raises RequestFailed if it is unreadable."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise RequestFailed(f"There is no tokenizer.json in {folder}.")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library, written in Rust, raises a bare Exception
        raise RequestFailed(f"{file} cannot be read: {error}") from None
    # The file may enable these for training batches; prompts must be encoded unchanged.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
