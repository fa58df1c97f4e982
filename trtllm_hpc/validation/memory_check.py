"""The memory planner as a check."""

from __future__ import annotations

from trtllm_hpc.errors import Diagnostic, unknown
from trtllm_hpc.tensorrt_llm.memory.families import UnknownModel
from trtllm_hpc.tensorrt_llm.memory.planner import MemoryPlan, plan_memory
from trtllm_hpc.validation.context import Check, Context


def memory_of(context: Context) -> MemoryPlan | UnknownModel | None:
    """The plan; why there is none; ``None`` if the model's ``config.json`` cannot be read here."""
    config = context.model_config
    if config is None:
        return None
    try:
        return plan_memory(context.job, context.cluster, config, context.plan.facts.release)
    except UnknownModel as error:
        return error


def memory(context: Context) -> Diagnostic:
    """Weights, buffers and the KV cache of the longest requests fit into a rank's memory."""
    plan = memory_of(context)
    if plan is None:
        return unknown("the model's config.json cannot be read here, so nothing is known of its memory")
    if isinstance(plan, UnknownModel):
        return unknown(str(plan))
    return Diagnostic("memory", plan.sentence, hint=plan.remedy, state=plan.verdict)


def _has_model(context: Context) -> bool:
    return context.has_job and (context.job.model.path or context.job.model.synthetic) is not None


CHECKS = (Check("memory", "the model fits into memory", _has_model, memory),)
