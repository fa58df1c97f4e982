"""The placeholders of upstream's templates that each key fills, and the recipe of a model repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.engines.facts import EngineFacts
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.model_repository.recipe import ModelEdits, ModelRecipe, RepositoryRecipe, Value
from trtllm_hpc.tensorrt_llm.releases.placeholders import Placeholder, known_placeholders, placeholders_of
from trtllm_hpc.tensorrt_llm.releases.release import Release

_PIPELINE = ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls")
GROUPS: Mapping[str, str] = {
    **dict.fromkeys(_PIPELINE, "inflight_batcher_llm"),
    "disaggregated_serving_bls": "disaggregated_serving",
}
"""Group of the template of each model of a repository."""
_BLS = ("tensorrt_llm_bls", "disaggregated_serving_bls")
_OF_THE_SAME_NAME = (
    *("batching_strategy", "enable_trt_overlap", "gpu_device_ids", "decoding_mode"),
    "exclude_input_in_output",
)
"""Keys of ``repository`` whose placeholder in ``tensorrt_llm`` has the same name."""


def _in(placeholder: str, *models: str) -> tuple[tuple[str, str], ...]:
    return tuple((model, placeholder) for model in models)


KEYS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "repository.decoupled": _in("decoupled_mode", "tensorrt_llm", *_BLS),
    "model.tokenizer": _in("tokenizer_dir", "preprocessing", "postprocessing"),
    "repository.add_special_tokens": _in("add_special_tokens", "preprocessing"),
    "repository.skip_special_tokens": _in("skip_special_tokens", "postprocessing"),
    "repository.accumulate_tokens": _in("accumulate_tokens", "tensorrt_llm_bls"),
    "repository.max_queue_delay_microseconds": _in(
        "max_queue_delay_microseconds", "tensorrt_llm", "preprocessing"
    ),
    "repository.max_queue_size": _in("max_queue_size", "tensorrt_llm", "preprocessing"),
    "kv_cache.enable_block_reuse": _in("enable_kv_cache_reuse", "tensorrt_llm"),
    "engine.enable_chunked_prefill": _in("enable_chunked_context", "tensorrt_llm"),
    # 0.6 has another name for the window.
    "kv_cache.max_attention_window": (
        ("tensorrt_llm", "max_attention_window_size"),
        ("tensorrt_llm", "max_kv_cache_length"),
    ),
    "repository.logits_datatype": _in("logits_datatype", "tensorrt_llm", "ensemble", *_BLS),
    "repository.prompt_embedding_table_data_type": _in(
        "prompt_embedding_table_data_type", "tensorrt_llm", "tensorrt_llm_bls"
    ),
    "engine.capacity_scheduler_policy": _in("batch_scheduler_policy", "tensorrt_llm"),
    "kv_cache.max_tokens": _in("max_tokens_in_paged_kv_cache", "tensorrt_llm"),
    "kv_cache.free_gpu_memory_fraction": _in("kv_cache_free_gpu_mem_fraction", "tensorrt_llm"),
    "kv_cache.host_cache_size": _in("kv_cache_host_memory_bytes", "tensorrt_llm"),
    "kv_cache.sink_token_length": _in("sink_token_length", "tensorrt_llm"),
    **{f"repository.{name}": _in(name, "tensorrt_llm") for name in _OF_THE_SAME_NAME},
}
"""Placeholders that each key fills. Other keys change the parsed configuration, which works with any
release."""

PLANNED: Mapping[tuple[str, str], str] = {
    **{place: key for key, places in KEYS.items() for place in places},
    ("tensorrt_llm", "triton_backend"): "engine.backend",
    ("tensorrt_llm", "engine_dir"): "engine.directory",
    ("tensorrt_llm", "max_beam_width"): "engine.max_beam_width",
    ("tensorrt_llm", "multi_block_mode"): "engine.multi_block_mode",
    ("tensorrt_llm", "enable_context_fmha_fp32_acc"): "engine.context_fmha_fp32_acc",
    ("tensorrt_llm", "participant_ids"): "serve.disaggregated",
    ("preprocessing", "preprocessing_instance_count"): "repository.preprocessing_instances",
    ("postprocessing", "postprocessing_instance_count"): "repository.postprocessing_instances",
    ("tensorrt_llm_bls", "bls_instance_count"): "repository.bls_instances",
    ("disaggregated_serving_bls", "disaggregated_serving_bls_count"): "repository.bls_instances",
    ("disaggregated_serving_bls", "context_model_name"): "serve.disaggregated",
    ("disaggregated_serving_bls", "generation_model_name"): "serve.disaggregated",
    **{(model, "triton_max_batch_size"): "repository.triton_max_batch_size" for model in GROUPS},
}
"""The key that fills a placeholder; ``repository.parameters`` is for all others."""


def placeholders(release: Release, model: str) -> Mapping[str, Placeholder]:
    """Return the placeholders of the release's template of a model, by name."""
    return placeholders_of(release.version, GROUPS[model], model)


def as_words(value: object) -> bool | int | float | str:
    """Return a key's value in the form of its placeholder: a list becomes text with commas."""
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    assert isinstance(value, (bool, int, float, str)), value
    return value


def value_of(job: JobFile, key: str) -> Any:
    """Return the value of a key of ``KEYS``."""
    section, name = key.split(".")
    return getattr(getattr(job, section), name)


@cache
def default_of(key: str) -> Any:
    """Return the default of a key of ``KEYS``."""
    return value_of(JobFile(name="defaults"), key)


MOST_BLS_INSTANCES = 8
"""Largest default number of instances of the BLS model; each is a process that answers a request at a
time."""
Values = Mapping[str, Value | None]


def recipe(facts: EngineFacts, release: Release, paths: RunPaths) -> RepositoryRecipe:
    """Return the recipe that makes the job's repository from the release's templates."""
    job = facts.job
    engine, phases = job.engine.directory or str(paths.engine), job.serve.disaggregated
    template = _Templates(job, release)
    if job.serve.mode == "disaggregated" and phases is not None:
        # Rank 0 is the orchestrator, followed by the ranks of the context phase, then of the generation
        # phase.
        rank = 1 + sum(map(len, phases.context.instances))
        engines = [
            template.phase("context", phases.context.engine or engine, phases.context.instances, 1),
            template.phase(
                "generation", phases.generation.engine or engine, phases.generation.instances, rank
            ),
        ]
        serves = {"context_model_name": "context", "generation_model_name": "generation"}
        ensembles = [template.ensemble("ensemble", "disaggregated_serving_bls")]
        bls = [template.bls("disaggregated_serving_bls", "disaggregated_serving_bls_count", serves)]
    else:
        engines = [
            template.tensorrt_llm(copy.name, copy.engine or engine, gpus=str(as_words(copy.gpu_device_ids)))
            for copy in job.repository.models
        ] or [template.tensorrt_llm("tensorrt_llm", engine, instances=job.repository.instances)]
        names = [copy.name for copy in engines]
        ensembles = [template.ensemble(_named_as("ensemble", name), name) for name in names]
        model, count = "tensorrt_llm_bls", "bls_instance_count"
        bls = [
            template.bls(model, count, {"tensorrt_llm_model_name": name}, _named_as(model, name))
            for name in (names if placeholders(release, model) else ())
        ]
    texts = [template.text_model(model) for model in ("preprocessing", "postprocessing")]
    return RepositoryRecipe(release.version, (*ensembles, *texts, *engines, *bls))


def _named_as(model: str, copy: str) -> str:
    """Return a name for a copy: ``ensemble_2`` for ``tensorrt_llm_2``, ``ensemble_x`` for ``x``."""
    end = copy.removeprefix("tensorrt_llm").lstrip("_")
    return f"{model}_{end}" if end else model


class _Templates:
    """Makes the recipe of each kind of model for a release's templates."""

    def __init__(self, job: JobFile, release: Release) -> None:
        self.job = job
        self.release = release
        # Requests that Triton passes on at once: the job file's value, or the engine's batch size.
        wanted = job.repository.triton_max_batch_size or job.engine.max_batch_size
        self.batch = wanted or release.build_default("--max_batch_size") or 1

    def ensemble(self, name: str, serves: str) -> ModelRecipe:
        return self._model("ensemble", {}, ModelEdits(models={"tensorrt_llm": serves}), name)

    def text_model(self, model: str) -> ModelRecipe:
        keys = self.job.repository
        instances = getattr(keys, f"{model}_instances")
        planned = {
            "tokenizer_dir": self.job.model.tokenizer or self.job.model.path,
            f"{model}_instance_count": instances,
        }
        # Each token of a stream is a request to postprocessing, and several instances could reorder them.
        ordered = model == "postprocessing" and keys.decoupled and instances > 1
        return self._model(model, planned, ModelEdits(instances=instances, preserve_ordering=ordered))

    def bls(self, model: str, count: str, serves: Mapping[str, str], name: str | None = None) -> ModelRecipe:
        instances = self.job.repository.bls_instances or min(self.batch, MOST_BLS_INSTANCES)
        edits = ModelEdits(decoupled=self.job.repository.decoupled, instances=instances)
        return self._model(model, {count: instances, **serves}, edits, name)

    def phase(
        self, name: str, engine: str, instances: Sequence[Sequence[int]], first_rank: int
    ) -> ModelRecipe:
        ranks, rank = [], first_rank
        for gpus in instances:
            ranks.append(",".join(str(rank + index) for index in range(len(gpus))))
            rank += len(gpus)
        devices = ";".join(",".join(map(str, gpus)) for gpus in instances)
        return self.tensorrt_llm(name, engine, len(instances), devices, ";".join(ranks))

    def tensorrt_llm(
        self, name: str, engine: str, instances: int = 1, gpus: str | None = None, ranks: str | None = None
    ) -> ModelRecipe:
        job = self.job
        planned: dict[str, Value | None] = {
            "triton_backend": job.engine.backend,
            "engine_dir": engine,
            "max_beam_width": job.engine.max_beam_width,
            "multi_block_mode": job.engine.multi_block_mode,
            "enable_context_fmha_fp32_acc": job.engine.context_fmha_fp32_acc,
            "participant_ids": ranks,
        }
        if gpus is not None:
            planned["gpu_device_ids"] = gpus
        edits = ModelEdits(
            decoupled=job.repository.decoupled,
            instances=instances,
            backend=job.engine.backend,
            max_queue_delay_microseconds=job.repository.max_queue_delay_microseconds or None,
            max_queue_size=job.repository.max_queue_size or None,
        )
        return self._model("tensorrt_llm", planned, edits, name)

    def _model(self, model: str, planned: Values, edits: ModelEdits, name: str | None = None) -> ModelRecipe:
        """Return the recipe that fills ``all_models/<group>/<model>``.

        A container may have templates from a commit between two releases, so every known placeholder gets a
        value. A placeholder without a value is left to the backend: its parameter is removed, or emptied if
        the model's code requires it.
        """
        name, parameters = name or model, self.job.repository.parameters
        by_hand = {**parameters.get(model, {}), **parameters.get(name, {})}
        from_keys = {
            placeholder: as_words(value)
            for key, places in KEYS.items()
            for owner, placeholder in places
            if owner == model and (value := value_of(self.job, key)) is not None
        }
        chosen = {**from_keys, **planned, "triton_max_batch_size": self.batch, **by_hand}
        values: dict[str, Value | None] = {}
        for placeholder, known in known_placeholders(self.release.version, GROUPS[model], model).items():
            value = chosen.get(placeholder, known.fallback)
            if value is not None or not known.required:
                values[placeholder] = known.unset if value is None else value
        return ModelRecipe(
            name=name,
            template=f"{GROUPS[model]}/{model}",
            values={**values, **{key: by_hand[key] for key in by_hand if key not in values}},
            edits=replace(edits, max_batch_size=self.batch),
            asked=tuple(key for key in by_hand if key not in placeholders(self.release, model)),
        )
