"""The recipe of a model repository from upstream's templates: which models, with which values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trtllm_hpc.config.job import Disaggregated, JobFile
from trtllm_hpc.engines.build_steps import GENERATION_STEP
from trtllm_hpc.engines.facts import EngineFacts, generation_of
from trtllm_hpc.engines.repository_keys import GROUPS, KEYS, as_words, settable, value_of
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.model_repository.recipe import ModelEdits, ModelRecipe, RepositoryRecipe, Value
from trtllm_hpc.runtime.model_repository.template import as_text
from trtllm_hpc.tensorrt_llm.releases.placeholders import known_placeholders
from trtllm_hpc.tensorrt_llm.releases.release import Release

CROSS_KV_CACHE_FRACTION = 0.5
"""Upstream's documents call it the default (docs/model_config.md); its code refuses to start without."""

Chosen = Mapping[str, Value | None]

MOST_BLS_INSTANCES = 8
"""Instances of the BLS model by default, at most: each is a process that answers one request at a time."""


@dataclass(frozen=True)
class _Copy:
    """One copy of ``tensorrt_llm``."""

    name: str
    engine: str
    instances: int = 1
    gpu_device_ids: str | None = None
    participant_ids: str | None = None


def recipe(facts: EngineFacts, release: Release, paths: RunPaths) -> RepositoryRecipe:
    """Return how to make the job's repository from the release's templates."""
    job = facts.job
    engine = job.engine.directory or str(paths.engine)
    plan = _Recipes(job, release, has_encoder=facts.is_encoder_decoder)
    if job.serve.mode == "disaggregated" and job.serve.disaggregated is not None:
        second = engine if generation_of(job) is None else str(paths.side_output(GENERATION_STEP))
        return RepositoryRecipe(release.version, plan.disaggregated(job.serve.disaggregated, engine, second))
    copies = [
        _Copy(copy.name, copy.engine or engine, gpu_device_ids=str(as_words(copy.gpu_device_ids)))
        for copy in job.repository.models
    ]
    only = _Copy("tensorrt_llm", engine, instances=job.repository.instances)
    return RepositoryRecipe(release.version, plan.pipelines(copies or [only]))


class _Recipes:
    """Recipes of the models of the engine backends."""

    def __init__(self, job: JobFile, release: Release, *, has_encoder: bool) -> None:
        self.job = job
        self.release = release
        self.has_encoder = has_encoder
        # Requests that Triton hands over at once: as asked, or what the engine is built for.
        asked = job.repository.triton_max_batch_size or job.engine.max_batch_size
        self.batch = asked or release.build_default("--max_batch_size") or 1
        self.bls_instances = job.repository.bls_instances or min(self.batch, MOST_BLS_INSTANCES)

    def pipelines(self, copies: Sequence[_Copy]) -> tuple[ModelRecipe, ...]:
        """Copies of ``tensorrt_llm``, each with an ensemble and a BLS model of its own."""
        models = [self._ensemble(_copy_name("ensemble", copy.name), copy.name) for copy in copies]
        models += self._text_models()
        models += [self._tensorrt_llm(copy) for copy in copies]
        if settable(self.release, "tensorrt_llm_bls"):
            for copy in copies:
                name = _copy_name("tensorrt_llm_bls", copy.name)
                serves = {"tensorrt_llm_model_name": copy.name}
                models.append(self._bls("tensorrt_llm_bls", "bls_instance_count", serves, name))
        return tuple(models)

    def disaggregated(self, phases: Disaggregated, first: str, second: str) -> tuple[ModelRecipe, ...]:
        """``context`` and ``generation``, and what takes a request through both.

        ``first`` and ``second`` are the engines of the two, unless they name their own.
        """
        context, generation = phases.context.instances, phases.generation.instances
        # Rank 0 orchestrates; then come the context's ranks, then the generation's.
        rank = 1 + sum(len(gpus) for gpus in context)
        copies = (
            _phase("context", phases.context.engine or first, context, 1),
            _phase("generation", phases.generation.engine or second, generation, rank),
        )
        serves = {"context_model_name": "context", "generation_model_name": "generation"}
        bls = self._bls("disaggregated_serving_bls", "disaggregated_serving_bls_count", serves)
        ensemble = self._ensemble("ensemble", "disaggregated_serving_bls")
        return (ensemble, *self._text_models(), *(self._tensorrt_llm(copy) for copy in copies), bls)

    def _ensemble(self, name: str, serves: str) -> ModelRecipe:
        return self._model("ensemble", {}, ModelEdits(models={"tensorrt_llm": serves}), name)

    def _text_models(self) -> list[ModelRecipe]:
        keys = self.job.repository
        tokenizer = self.job.model.tokenizer or self.job.model.path
        models = []
        for model in ("preprocessing", "postprocessing"):
            instances = getattr(keys, f"{model}_instances")
            planned = {"tokenizer_dir": tokenizer, f"{model}_instance_count": instances}
            # Each token of a stream is a request to postprocessing: with several instances they overtake.
            ordered = model == "postprocessing" and keys.decoupled and instances > 1
            edits = ModelEdits(instances=instances, preserve_ordering=ordered)
            models.append(self._model(model, planned, edits))
        return models

    def _bls(self, model: str, count: str, serves: Mapping[str, str], name: str | None = None) -> ModelRecipe:
        edits = ModelEdits(decoupled=self.job.repository.decoupled, instances=self.bls_instances)
        return self._model(model, {count: self.bls_instances, **serves}, edits, name)

    def _tensorrt_llm(self, copy: _Copy) -> ModelRecipe:
        job = self.job
        chosen: dict[str, Value | None] = {
            "triton_backend": job.engine.backend,
            "engine_dir": f"{copy.engine}/decoder" if self.has_encoder else copy.engine,
            "max_beam_width": job.engine.max_beam_width,
            "multi_block_mode": job.engine.multi_block_mode,
            "enable_context_fmha_fp32_acc": job.engine.context_fmha_fp32_acc,
            "participant_ids": copy.participant_ids,
        }
        if self.has_encoder:
            chosen["encoder_engine_dir"] = f"{copy.engine}/encoder"
            fraction = job.kv_cache.cross_kv_cache_fraction or CROSS_KV_CACHE_FRACTION
            chosen["cross_kv_cache_fraction"] = fraction
        if job.kv_cache_fraction is not None:
            chosen["kv_cache_free_gpu_mem_fraction"] = job.kv_cache_fraction
        if job.repository.guided_decoding_backend is not None and job.engine.backend == "python":
            chosen["tokenizer_dir"] = job.model.tokenizer or job.model.path
        if copy.gpu_device_ids is not None:
            chosen["gpu_device_ids"] = copy.gpu_device_ids
        edits = ModelEdits(
            decoupled=job.repository.decoupled,
            instances=copy.instances,
            backend=job.engine.backend,
            max_queue_delay_microseconds=job.repository.max_queue_delay_microseconds or None,
            max_queue_size=job.repository.max_queue_size or None,
        )
        return self._model("tensorrt_llm", chosen, edits, copy.name)

    def _model(self, model: str, planned: Chosen, edits: ModelEdits, name: str | None = None) -> ModelRecipe:
        """A model of ``all_models/<its group>/<model>``."""
        name, given = name or model, self.job.repository.parameters
        by_hand = {**given.get(model, {}), **given.get(name, {})}
        chosen = {**self._from_keys(model), **planned, "triton_max_batch_size": self.batch, **by_hand}
        values, parameters = self._values(model, chosen), self._parameters(model, chosen)
        return ModelRecipe(
            name=name,
            template=f"{GROUPS[model]}/{model}",
            values={**values, **{key: by_hand[key] for key in by_hand if key not in values}},
            edits=replace(edits, max_batch_size=self.batch, parameters=parameters),
            asked=tuple(key for key in by_hand if key not in settable(self.release, model)),
        )

    def _from_keys(self, model: str) -> dict[str, Value | None]:
        chosen: dict[str, Value | None] = {}
        for key, places in KEYS.items():
            value = value_of(self.job, key)
            if value is not None:
                chosen |= {name: as_words(value) for owner, name in places if owner == model}
        return chosen

    def _values(self, model: str, chosen: Chosen) -> dict[str, Value | None]:
        """A value for every placeholder that the template has in any release.

        A container may carry templates from between two releases. A placeholder without a value is left to
        the backend: its parameter is removed, or emptied where the model's code requires it.
        """
        values: dict[str, Value | None] = {}
        for name, known in known_placeholders(self.release.version, GROUPS[model], model).items():
            value = chosen.get(name)
            if value is None and name not in chosen:
                value = known.fallback
            if value is not None or not known.required:
                values[name] = known.unset if value is None else value
        return values

    def _parameters(self, model: str, chosen: Chosen) -> dict[str, str | None]:
        """The chosen values by their parameter's own key, for templates that somebody filled by hand."""
        here = settable(self.release, model)
        parameters: dict[str, str | None] = {}
        for name, value in chosen.items():
            key = here[name].parameter if name in here else None
            if key is not None and value is not None:
                parameters[key] = as_text(value)
        return parameters


def _copy_name(model: str, copy: str) -> str:
    """``ensemble`` of ``tensorrt_llm``, ``ensemble_2`` of ``tensorrt_llm_2``, ``ensemble_x`` of ``x``."""
    end = copy.removeprefix("tensorrt_llm").lstrip("_") if copy.startswith("tensorrt_llm") else copy
    return f"{model}_{end}" if end else model


def _phase(name: str, engine: str, instances: Sequence[Sequence[int]], first_rank: int) -> _Copy:
    ranks, rank = [], first_rank
    for gpus in instances:
        ranks.append(",".join(str(rank + index) for index in range(len(gpus))))
        rank += len(gpus)
    devices = ";".join(",".join(map(str, gpus)) for gpus in instances)
    return _Copy(name, engine, len(instances), devices, ";".join(ranks))
