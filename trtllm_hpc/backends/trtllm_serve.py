"""``trtllm-serve``: upstream's own server with OpenAI's protocol, with a checkpoint or an engine."""

from __future__ import annotations

from typing import Any

from trtllm_hpc.backends import llm_api_rules
from trtllm_hpc.backends.base import ServerPlan
from trtllm_hpc.backends.llm_api import LAUNCHER, PyTorchBackend, given, merged, pytorch_arguments, yaml_text
from trtllm_hpc.config.rules import Rule
from trtllm_hpc.layout import Instances, Layout
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.server_spec import ServerSpec, literal
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.llm_api import SERVER

OPTIONS = {
    "tokenizer": "--tokenizer",
    "backend": "--backend",
    "tensor_parallel_size": "--tp_size",
    "pipeline_parallel_size": "--pp_size",
    "moe_expert_parallel_size": "--ep_size",
    "gpus_per_node": "--gpus_per_node",
    "max_batch_size": "--max_batch_size",
    "max_num_tokens": "--max_num_tokens",
    "max_seq_len": "--max_seq_len",
    "max_beam_width": "--max_beam_width",
}
"""Options of ``trtllm-serve`` in every release that has the launcher. What else the job file says goes into
the file: as an option ``--kv_cache_free_gpu_memory_fraction`` would be lost beside a ``kv_cache_config``."""


class TrtllmServe(PyTorchBackend):
    """``trtllm-serve`` with a checkpoint, on PyTorch."""

    rules: tuple[Rule, ...] = (
        llm_api_rules.server_is_there,
        *llm_api_rules.RULES,
        llm_api_rules.values_are_taken,
    )

    def servers(self, facts: JobFacts, instances: Instances, paths: RunPaths) -> tuple[ServerPlan, ...]:
        """Return the command of every rank; the launcher runs the first rank's alone."""
        known = pytorch_arguments(facts.job, paths)
        return (server_plan(facts, instances.layout, known, {}, paths),)


def server_plan(
    facts: JobFacts,
    layout: Layout,
    known: dict[str, Any],
    further: dict[str, Any],
    paths: RunPaths,
    role: str | None = None,
    environment: dict[str, str | None] | None = None,
) -> ServerPlan:
    """Return ``trtllm-serve`` with its options, and its file.

    Args:
        known: arguments of the LLM API that the job file's own keys mean.
        further: others, which go into the file only.
        role: the phase that it computes in a disaggregated run, with a file of its own.
    """
    job, model = facts.job, known["model"]
    if layout.gpus_per_node:
        known["gpus_per_node"] = layout.ranks_per_node
    # Until 1.2 the file goes before the options, and after it the other way round.
    said = known.keys() - job.engine.llm_api.keys()
    options = [f"{option}={known[key]}" for key, option in OPTIONS.items() if key in said]
    file = f"--extra_llm_api_options={paths.llm_api(role)}"
    words = [SERVER, *map(literal, (model, *options, file)), "--host={address}", "--port={port}"]
    rest = {key: value for key, value in known.items() if key not in ("model", *OPTIONS)}
    text = yaml_text(given(merged(rest, further)), job.engine.llm_api)
    # Without a launcher each server would spawn its workers by MPI, which Slurm's PMIx does not offer.
    launcher = LAUNCHER if facts.cluster.scheduler == "slurm" else None
    spec = ServerSpec(
        driver="openai",
        leader=words,
        environment=environment or {},
        launcher=launcher,
        model=model,
        tokenizer=known.get("tokenizer"),
    )
    return ServerPlan(spec, text)
