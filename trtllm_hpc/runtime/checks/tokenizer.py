"""Check of a tokenizer's folder."""

from __future__ import annotations

from pathlib import Path

from trtllm_hpc.errors import Diagnostic, fail, ok

NAMES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
)
"""Files that hold a vocabulary, of any of transformers' tokenizers; ``*.tiktoken`` besides."""


def tokenizer_files(folder: Path) -> Diagnostic:
    """``AutoTokenizer`` finds a vocabulary in the folder, without asking the Hub."""
    hint = f"copy the model's tokenizer files ({NAMES[0]} or {NAMES[1]}...) into {folder}"
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        return fail(f"the tokenizer's folder {folder} cannot be read: {error.strerror}", hint)
    found = [name for name in names if name in NAMES or name.endswith(".tiktoken")]
    if not found:
        message = f"there is no tokenizer in {folder}, and compute nodes may not reach the Hub"
        return fail(message, hint)
    for name in found:
        try:
            is_pointer = is_lfs_pointer(folder / name)
        except OSError as error:
            return fail(f"{folder / name} cannot be read: {error.strerror}", "check its permissions")
        if is_pointer:
            return fail(f"{folder / name} is a pointer of Git LFS, not the file", "run git lfs pull there")
    return ok(f"the tokenizer in {folder} can be read ({found[0]})")


def is_lfs_pointer(path: Path) -> bool:
    """Whether Git LFS has left a pointer where the file should be. Raises OSError."""
    with path.open("rb") as file:
        return file.read(64).startswith(b"version https://git-lfs")
