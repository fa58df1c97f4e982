"""All rules of job files and profiles, and the loop that judges them.

A rule is a public generator of one of the modules below. It reads valid values only; the first sentence of
its docstring is its row in ``doctor``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.diagnostics import Diagnostics
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.validate import UnknownValueError
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.validation import (
    backend_rules,
    cluster_rules,
    engine_rules,
    job_rules,
    lora_rules,
    method_rules,
    release_rules,
    repository_rules,
    serve_rules,
)

Rules = tuple[Callable[..., Diagnostics], ...]


def rules_of(*modules: ModuleType) -> Rules:
    """Return the public generators of the modules, in the order of their definition."""
    return tuple(
        rule
        for module in modules
        for name, rule in vars(module).items()
        if inspect.isgeneratorfunction(rule)
        and not name.startswith("_")
        and rule.__module__ == module.__name__
    )


_RULES_OF_JOB = rules_of(job_rules, lora_rules)
_RULES_OF_CLUSTER = rules_of(cluster_rules)
_RULES_OF_BOTH = rules_of(
    serve_rules, backend_rules, release_rules, engine_rules, method_rules, repository_rules
)
RULES: Rules = (*_RULES_OF_JOB, *_RULES_OF_CLUSTER, *_RULES_OF_BOTH)
"""Every rule, in the order in which they are judged."""


def problems(facts: JobFacts) -> list[Diagnostic]:
    """Return everything that is wrong with a job file and a profile, each and together."""
    found = [problem for rule in _RULES_OF_JOB for problem in _judge(rule, facts.job)]
    found += cluster_problems(facts.cluster)
    return found + [problem for rule in _RULES_OF_BOTH for problem in _judge(rule, facts)]


def cluster_problems(cluster: ClusterProfile) -> list[Diagnostic]:
    """Return everything that is wrong with a profile, whatever the job."""
    return [problem for rule in _RULES_OF_CLUSTER for problem in _judge(rule, cluster)]


def _judge(
    rule: Callable[..., Diagnostics], subject: JobFile | ClusterProfile | JobFacts
) -> list[Diagnostic]:
    """Return what a rule finds, up to where it reads a field that is wrong itself."""
    found: list[Diagnostic] = []
    with suppress(UnknownValueError):
        found.extend(rule(subject))  # keeps what comes before a field that raises
    return found
