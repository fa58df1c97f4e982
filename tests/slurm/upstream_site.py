"""A site whose container has TensorRT-LLM, as far as anybody can tell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.runtime.model_repository.upstream import write_all_models
from tests.slurm.conftest import Person
from tests.upstream.container import FakeContainer, add_server, make_container
from trtllm_hpc.paths import RunPaths, read_json

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "torch_dtype": "float16",
}


@dataclass(kw_only=True)
class Site(Person):
    """A person whose cluster has a TensorRT-LLM container, as far as anybody can tell."""

    container: FakeContainer
    model: Path

    def job(self, name: str, **more: Any) -> Path:
        engine = {"backend": "python", "tensor_parallel": 2, "dtype": "float16", "max_batch_size": 4}
        sections = {
            "model": {"path": str(self.model)},
            "engine": {**engine, "max_input_len": 64, "max_seq_len": 128, **more.pop("engine", {})},
            "repository": {"bls_instances": 1},
            "serve": {"nodes": 2, "ready_timeout_seconds": 120},
            "companion": {"request": {"prompt": "hello", "max_tokens": 4}, "benchmark": None},
        }
        return super().job(name, **{**sections, **more})

    def carries(self, release: str) -> None:
        """Have another release in the container than its profile says."""
        metadata = next((self.container.folder / "site").rglob("METADATA"))
        metadata.write_text(metadata.read_text().replace(self.container.release, release))

    def calls(self) -> list[list[str]]:
        """What upstream's programs were started with so far."""
        return [json.loads(line) for line in self.container.calls.read_text().splitlines()]


@contextmanager
def upstream_site(
    person: Person, tokenizer: Path, release: str, sources: Mapping[str, str], *, has_backend: bool = False
) -> Iterator[Site]:
    """A site with a small model, and with a container of a release.

    Args:
        tokenizer: folder whose files become the model's.
        sources: texts of ``1/model.py``, by model.
        has_backend: whether the container has a ``tritonserver`` with the C++ backend's stand-in.
    """
    folder = person.folder / "a site"
    model = folder / "Llama, tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(LLAMA))
    (model / "model.safetensors").write_bytes(os.urandom(4096))
    shutil.copytree(tokenizer, model, dirs_exist_ok=True, ignore=lambda *_: ["config.json"])
    container = make_container(folder / "container", release, python=person.bin / "python")
    write_all_models(folder / "container", release, sources)
    known: dict[str, Any] = {"compute_capability": "9.0", "engines_folder": str(folder / "engines")}
    server = person.folder.parent / "server"
    if has_backend:
        known["triton"] = {"server": str(add_server(container, server))}
    profile = folder / "profile.yaml"
    plain = dict(line.split(": ", 1) for line in person.profile.read_text().splitlines())
    values = {name: json.dumps(value) for name, value in {**known, **container.profile()}.items()}
    profile.write_text("\n".join(f"{name}: {value}" for name, value in {**plain, **values}.items()))
    made = [folder, server] if has_backend else [folder]
    subprocess.run(["chown", "-R", f"--reference={person.folder}", *made], check=True)
    try:
        yield Site(**{**vars(person), "profile": profile}, container=container, model=model)
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(server, ignore_errors=True)


def answers(run: RunPaths) -> list[str]:
    """The texts that the companion's request got."""
    record = read_json(run.answer)
    assert record is not None
    return [answer["text"] for answer in record["answers"]]


def stages(run: RunPaths) -> list[str]:
    """The names of a run's stages."""
    record = read_json(run.plan)
    assert record is not None
    return [stage["name"] for stage in record["stages"]]
