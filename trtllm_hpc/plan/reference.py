"""The reference backend: PyTorch/transformers behind TensorRT-LLM's Triton models.

The models' code is read as text and never imported here: rendering works on machines without torch.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from trtllm_hpc import __version__
from trtllm_hpc.config.engine import Engine
from trtllm_hpc.config.job import KV_CACHE_FRACTION, JobFile
from trtllm_hpc.plan.model import RepositoryModel
from trtllm_hpc.runtime.engine_cache.recipe import Argument, BuildStep, Placeholder

MODELS = ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls")
"""Every model of the repository; each has a ``config.pbtxt`` and a ``1/model.py``."""

_ENGINE_WRITERS = ("build.py", "engine_config.py", "sharding.py", "synthetic.py", "weights.py")

_ENGINE_KEYS = (
    *("tensor_parallel", "dtype", "max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"),
    *("max_beam_width", "tokens_per_block", "max_lora_rank"),
    *("gather_context_logits", "gather_generation_logits"),
)
"""What the build has an option for, of the same name."""

BLS_INSTANCES = 2
"""Instances of the BLS model by default. Each is a process that answers any number of requests at once."""


def build_steps(job: JobFile, python: str) -> tuple[BuildStep, ...]:
    """The one step that makes the engine folder."""
    model = job.model
    source: tuple[Argument, ...] = ("--synthetic", model.synthetic or "tiny-llama", "--seed", str(model.seed))
    if model.path:
        source = ("--model", Placeholder("model"))
    command = (
        *(python, "-m", "trtllm_hpc.reference.build"),
        *("--output", Placeholder("output")),
        *source,
        *_engine_options(job.engine),
        *("--run", Placeholder("run")),
    )
    identity = {"backend": "reference", "trtllm_hpc": __version__, "builder": _builder()}
    return (BuildStep("engine", (command,), inputs=("model",) if model.path else (), identity=identity),)


@cache
def _builder() -> str:
    """Short hash of the code that writes engines: their format may change between two releases."""
    folder = resources.files("trtllm_hpc.reference")
    code = b"".join(folder.joinpath(name).read_bytes() for name in _ENGINE_WRITERS)
    return hashlib.sha256(code).hexdigest()[:8]


def _engine_options(engine: Engine) -> tuple[str, ...]:
    """Options for the engine's keys that are set; the build has defaults for the others."""
    words: list[str] = []
    for key in _ENGINE_KEYS:
        value, option = getattr(engine, key), f"--{key.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words += [option, str(value)]
    return tuple(words)


def model_source(name: str) -> str:
    """Text of the Python file that belongs at ``<repository>/<name>/1/model.py``."""
    return (resources.files("trtllm_hpc.reference") / "models" / f"{name}.py").read_text(encoding="utf-8")


def repository() -> tuple[RepositoryModel, ...]:
    """The models of the repository."""
    return tuple(
        RepositoryModel(name, f"repository/reference/{name}/config.pbtxt.j2", model_source(name))
        for name in MODELS
    )


def repository_values(job: JobFile, engine_folder: str) -> dict[str, str | int | bool]:
    """Values that the templates of ``config.pbtxt`` ask for."""
    values, batch = job.repository, job.engine.max_batch_size
    assert batch is not None  # this backend has a default for it
    return {
        "engine_dir": engine_folder,
        "tokenizer_dir": f"{engine_folder}/tokenizer",
        "max_batch_size": batch,
        "decoupled": values.decoupled,
        "preprocessing_instance_count": values.preprocessing_instances,
        "postprocessing_instance_count": values.postprocessing_instances,
        "bls_instance_count": values.bls_instances or BLS_INSTANCES,
        # Triton's parameters are strings, and an empty one has its default.
        "accumulate_tokens": str(values.accumulate_tokens).lower(),
        "max_queue_size": str(values.max_queue_size),
        "max_tokens_in_paged_kv_cache": str(values.max_tokens_in_paged_kv_cache or ""),
        "kv_cache_free_gpu_mem_fraction": str(job.kv_cache_fraction or KV_CACHE_FRACTION),
    }
