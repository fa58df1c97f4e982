"""The reference backend: PyTorch/transformers behind TensorRT-LLM's Triton models."""

from __future__ import annotations

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import RepositoryModel
from trtllm_hpc.reference.repository import MODELS, model_source


def build_command(job: JobFile, python: str, paths: RunPaths) -> tuple[str, ...]:
    """Command line that makes the engine folder."""
    engine, model = job.engine, job.model
    source = ("--model", model.path) if model.path else ("--synthetic", model.synthetic or "tiny-llama")
    return (
        python,
        "-m",
        "trtllm_hpc.reference.build",
        *("--output", str(paths.engine)),
        *source,
        *("--seed", str(model.seed)),
        *("--tensor-parallel", str(engine.tensor_parallel)),
        *("--dtype", engine.dtype),
        *("--max-batch-size", str(engine.max_batch_size)),
        *("--max-input-len", str(engine.max_input_len)),
        *("--max-seq-len", str(engine.max_seq_len)),
        *("--run", str(paths.folder)),
    )


def repository() -> tuple[RepositoryModel, ...]:
    """The models of the repository."""
    return tuple(
        RepositoryModel(name, f"repository/reference/{name}/config.pbtxt.j2", model_source(name))
        for name in MODELS
    )


def repository_values(job: JobFile, engine_folder: str) -> dict[str, str | int | bool]:
    """Values that the templates of ``config.pbtxt`` ask for."""
    return {
        "engine_dir": engine_folder,
        "tokenizer_dir": f"{engine_folder}/tokenizer",
        "max_batch_size": job.engine.max_batch_size,
        "decoupled": job.repository.decoupled,
        "preprocessing_instance_count": job.repository.preprocessing_instances,
        "postprocessing_instance_count": job.repository.postprocessing_instances,
    }
