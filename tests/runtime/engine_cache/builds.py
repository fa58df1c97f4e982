"""Recipes, models and run folders for the tests of the engine cache."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_cache.build_recipe import Argument, BuildRecipe, BuildStep, FolderArgument
from trtllm_hpc.runtime.engine_cache.cache import Cache, CacheEntry
from trtllm_hpc.runtime.engine_cache.keys import StepKey, step_keys
from trtllm_hpc.runtime.process import descendants


def safetensors(tensors: dict[str, bytes]) -> bytes:
    """A file in that format: https://github.com/huggingface/safetensors#format."""
    header, offset = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(tensors.values())


def make_model(folder: Path, **files: bytes | str) -> Path:
    """A small model's folder; ``files`` on top, with ``__`` for the dot in their names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "model.safetensors").write_bytes(safetensors({"a": b"\1" * 9000, "b": b"\2" * 5000}))
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def recipe(engines: Path, model: Path | None, **changes: Any) -> BuildRecipe:
    """Two steps: a conversion, and the build on its output."""
    convert: tuple[Argument, ...] = (
        "python3",
        "convert_checkpoint.py",
        "--model_dir",
        FolderArgument("model"),
    )
    convert += ("--output_dir", FolderArgument("output"), "--tp_size", "2")
    build: tuple[Argument, ...] = ("trtllm-build", "--checkpoint_dir", FolderArgument("convert"))
    build += ("--output_dir", FolderArgument("output"), "--max_batch_size", "64")
    steps = (
        BuildStep("convert", (convert,), "/app/examples/llama", ("model",), {"tensorrt_llm": "0.16.0"}),
        BuildStep("build", (build,), None, ("convert",), {"tensorrt_llm": "0.16.0"}, on_gpu=True),
    )
    made = BuildRecipe(
        engines_folder=str(engines),
        steps=steps,
        model_path=str(model) if model else None,
        compute_capability="9.0",
        about={"model": "llama", "backend": "tensorrtllm", "version": "0.16.0", "layout": "tp 2"},
    )
    return replace(made, **changes)


def with_arguments(made: BuildRecipe, step: str, *arguments: Argument) -> BuildRecipe:
    """The recipe with further arguments at the end of a step's command."""
    steps = [
        replace(it, commands=((*it.commands[0], *arguments),)) if it.name == step else it for it in made.steps
    ]
    return replace(made, steps=tuple(steps))


def keys_of(made: BuildRecipe) -> dict[str, StepKey]:
    """The keys of all steps, by name."""
    return {key.step: key for key in step_keys(made, compute_capability=made.compute_capability)}


def entry_of(made: BuildRecipe, step: str = "build") -> CacheEntry:
    """The cache's entry of one step."""
    return Cache(Path(made.engines_folder)).entry(keys_of(made)[step])


def with_adapters(made: BuildRecipe) -> BuildRecipe:
    """The recipe with a step that makes something for clients, and that the engine does not read."""
    lora = BuildStep(
        "lora", (("python3", "hf_lora_convert.py", "-o", FolderArgument("output")),), identity={"a": 1}
    )
    return replace(made, steps=(lora, *made.steps))


SCRIPT = """#!/usr/bin/env bash
set -eu
echo "$1" >> "$BUILDS"
case "$1" in
  lora) mkdir "$output"; echo weights > "$output/model.lora_weights.npy" ;;
  convert) mkdir "$output"; cp "$model/model.safetensors" "$output/rank0.safetensors" ;;
  build)
    mkdir "$output"
    cp "$convert/rank0.safetensors" "$output/rank0.engine"
    echo '{}' > "$output/config.json"
    ;;
esac
"""


@dataclass
class Run:
    """A run folder whose build is run as ``build.sbatch`` runs it."""

    paths: RunPaths
    recipe: BuildRecipe
    log: Path
    """A line for each step that was really built."""
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self) -> list[str]:
        return [sys.executable, "-I", "-S", str(self.paths.runtime), "engine"]

    def start(self, command: Sequence[str] | None = None, **environment: str) -> subprocess.Popen[str]:
        """Start the build; its output is one text."""
        process = subprocess.Popen(
            command or self.command(),
            env={"PATH": os.environ["PATH"], "BUILDS": str(self.log), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def build(self, **environment: str) -> tuple[int, str]:
        """Run the build to its end; its exit code and its output."""
        process = self.start(**environment)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def built(self) -> list[str]:
        """The steps that were really built, by all runs that share the log."""
        return self.log.read_text().split() if self.log.exists() else []

    def entry(self, step: str = "build") -> CacheEntry:
        return entry_of(self.recipe, step)

    def clean(self) -> None:
        """End what is left of it."""
        for process in self.started:
            if process.poll() is None:
                for pid in [*descendants(process.pid), process.pid]:
                    os.kill(pid, signal.SIGKILL)
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()


MakeRun = Callable[..., Run]
"""The fixture ``runs``."""


def make_run(
    folder: Path, made: BuildRecipe, zipapp: bytes, script: str = SCRIPT, log: Path | None = None
) -> Run:
    """Write what the build reads of a run folder."""
    paths = RunPaths(folder)
    paths.make_folders()
    paths.runtime.write_bytes(zipapp)
    model = f"export model={shlex.quote(made.model_path)}\n" if made.model_path else ""
    text = script.replace("set -eu\n", f"set -eu\n{model}", 1)
    paths.script("build").write_text(text)
    made = replace(made, script_sha256=hashlib.sha256(text.encode()).hexdigest())
    made.write(paths.build_recipe)
    return Run(paths, made, log or folder.parent / "builds")


def tree(folder: Path) -> list[str]:
    """Everything below a folder, by relative names."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
