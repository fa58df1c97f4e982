"""The reference backend: PyTorch and transformers behind TensorRT-LLM's Triton models.

The models' code is read as text and never imported here, so rendering works on machines without torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from trtllm_hpc import __version__
from trtllm_hpc.backends.base import RepositoryModel, ServedEngine, TritonBackend
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.rules import Excludes, Rule
from trtllm_hpc.layout import Layout
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_cache.build_recipe import Argument, BuildStep, FolderArgument
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.memory import MemoryModel

MODELS = ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls")
"""Models of the repository; each has a ``config.pbtxt`` and a ``1/model.py``."""

_ENGINE_WRITERS = ("build.py", "corpus.txt", "engine_folder.py", "synthetic.py")

_ENGINE_KEYS = (
    *("tensor_parallel", "dtype", "max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"),
    "tokens_per_block",
)
"""Keys for which the build program has an option of the same name."""

BLS_INSTANCES = 2
"""Default number of instances of the BLS model: the requests that it serves at once."""


@cache
def _builder() -> str:
    """Return a short hash of the code that writes engines, whose format may change between two releases."""
    folder = resources.files("trtllm_hpc.reference")
    code = b"".join(folder.joinpath(name).read_bytes() for name in _ENGINE_WRITERS)
    return hashlib.sha256(code).hexdigest()[:8]


def model_source(name: str) -> str:
    """Return the text of a model's ``1/model.py``."""
    return (resources.files("trtllm_hpc.reference") / "models" / f"{name}.py").read_text(encoding="utf-8")


class Reference(TritonBackend):
    """This package's own backend."""

    rules: tuple[Rule, ...] = (
        Excludes("engine.pipeline_parallel!=1 engine.context_parallel!=1", "",
                 "the reference backend supports tensor parallelism only, not {key} {value}",
                 "set engine.{key} to 1"),
    )  # fmt: skip
    meets_in_folder = True
    has_tokenizer = True
    needs_gpus = False
    why_no_logits = "the reference backend returns no logits"
    why_no_adapters = "the reference backend has no LoRA adapters"
    keys: Mapping[str, tuple[str, ...]] = {
        # A rule accepts pipeline_parallel and context_parallel only as 1.
        "engine": ("backend", "directory", "pipeline_parallel", "context_parallel", *_ENGINE_KEYS),
        "repository": (
            *("decoupled", "preprocessing_instances", "postprocessing_instances", "bls_instances"),
            *("accumulate_tokens", "max_queue_size"),
        ),
        "kv_cache": ("max_tokens",),
    }
    # More memory for activations than TensorRT's single arena: PyTorch's allocator, CUDA graphs and unfused
    # layers, measured on an H200.
    memory = MemoryModel(logit_copies=2, activations=8, fills_memory=False, pipelines=(1,))

    def build_steps(self, facts: JobFacts, layout: Layout, python: str) -> tuple[BuildStep, ...]:
        """Return the single step that makes the engine folder."""
        job = facts.job
        if job.engine.directory is not None:
            return ()
        model = job.model
        source: tuple[Argument, ...] = ("--synthetic", model.synthetic or "tiny-llama")
        if model.path:
            source = ("--model", FolderArgument("model"))
        values = {key: getattr(job.engine, key) for key in _ENGINE_KEYS}
        options = [
            (f"--{key.replace('_', '-')}", str(value)) for key, value in values.items() if value is not None
        ]
        command = (
            *(python, "-m", "trtllm_hpc.reference.build"),
            *("--output", FolderArgument("output")),
            *source,
            *(word for option in options for word in option),
        )
        identity = {"backend": "reference", "trtllm_hpc": __version__, "builder": _builder()}
        inputs = ("model",) if model.path else ()
        return (BuildStep("engine", (command,), inputs=inputs, identity=identity),)

    def repository(self, facts: JobFacts, paths: RunPaths) -> tuple[RepositoryModel, ...]:
        """Return the models of the repository."""
        job, keys = facts.job, facts.job.repository
        engine, batch = job.engine.directory or str(paths.engine), job.engine.max_batch_size
        assert batch is not None  # this backend has a default for it
        values: dict[str, str | int | bool] = {
            "engine_dir": engine,
            "tokenizer_dir": f"{engine}/tokenizer",
            "max_batch_size": batch,
            "decoupled": keys.decoupled,
            "preprocessing_instance_count": keys.preprocessing_instances,
            "postprocessing_instance_count": keys.postprocessing_instances,
            "bls_instance_count": keys.bls_instances or BLS_INSTANCES,
            # Triton's parameters are strings; an empty string means the default.
            "accumulate_tokens": str(keys.accumulate_tokens).lower(),
            "max_queue_size": str(keys.max_queue_size),
            "max_tokens_in_paged_kv_cache": str(job.kv_cache.max_tokens or ""),
        }
        return tuple(
            RepositoryModel(name, f"repository/reference/{name}/config.pbtxt.j2", model_source(name), values)
            for name in MODELS
        )

    def served_engines(self, job: JobFile, paths: RunPaths) -> tuple[ServedEngine, ...]:
        """Return the one engine."""
        return (ServedEngine(job.engine.directory or str(paths.engine), job.engine.world_size),)
