"""Judge a job file and a profile by all rules: those here, and those of the job's backend.

A rule is a generator of diagnostics. It reads valid values only; the first sentence of its docstring is its
row in ``doctor``.
"""

from __future__ import annotations

from contextlib import suppress

from trtllm_hpc.backends import backend_of
from trtllm_hpc.backends.base import Rule
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.validate import UnknownValueError
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.validation import cluster_rules, job_rules, serve_rules


def rules_of(job: JobFile) -> tuple[Rule, ...]:
    """Return every rule that a job file and a profile must keep, in the order in which they are judged."""
    return (*job_rules.RULES, *cluster_rules.RULES, *serve_rules.RULES, *_backend_rules(job))


def problems(facts: JobFacts) -> list[Diagnostic]:
    """Return everything that is wrong with a job file and a profile, each and together."""
    wrong = [problem for rule in job_rules.RULES for problem in _judge(rule, facts.job)]
    wrong += cluster_problems(facts.cluster)
    of_both = (*serve_rules.RULES, *_backend_rules(facts.job))
    return wrong + [problem for rule in of_both for problem in _judge(rule, facts)]


def cluster_problems(cluster: ClusterProfile) -> list[Diagnostic]:
    """Return everything that is wrong with a profile, whatever the job."""
    return [problem for rule in cluster_rules.RULES for problem in _judge(rule, cluster)]


def _backend_rules(job: JobFile) -> tuple[Rule, ...]:
    with suppress(UnknownValueError):  # the backend's name is wrong, which has been reported
        return backend_of(job).rules()
    return ()


def _judge(rule: Rule, subject: JobFile | ClusterProfile | JobFacts) -> list[Diagnostic]:
    """Return what a rule reports, up to where it reads a field that is wrong itself."""
    reported: list[Diagnostic] = []
    with suppress(UnknownValueError):
        reported.extend(rule(subject))  # keeps what comes before a field that raises
    return reported
