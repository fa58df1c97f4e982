"""The input of checks: profile, plan, files, and Slurm's answers, each read when a check first needs it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.plan.mounts import outside
from trtllm_hpc.runtime.engine_config import EngineConfig, NotAnEngine, read_engine
from trtllm_hpc.runtime.plan_record import Resources
from trtllm_hpc.scheduler.discovery import (
    DefaultMemory,
    Partition,
    PartitionLimits,
    query_default_memory,
    query_limits,
    query_partitions,
)
from trtllm_hpc.tensorrt_llm.job_facts import read_model_config


class SlurmAnswers:
    """Slurm's answers about its partitions, asked for once however many jobs are checked."""

    def __init__(self, conf: str | None, clusters: str | None) -> None:
        self._controller = conf, clusters

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions that ``sinfo`` lists. Raises SubmissionError."""
        return query_partitions(*self._controller)

    @cached_property
    def limits(self) -> Mapping[str, PartitionLimits]:
        """The limits of each partition for a job, from ``scontrol``, by name. Raises SubmissionError."""
        return {item.name: item for item in query_limits(*self._controller)}

    @cached_property
    def default_memory(self) -> DefaultMemory | None:
        """Memory of a job that requests none. Raises SubmissionError."""
        return query_default_memory(*self._controller)

    def limits_of(self, asked: Resources) -> list[PartitionLimits]:
        """Return the limits of a job's partitions, or of the default partition. Raises SubmissionError."""
        default = next((item.name for item in self.limits.values() if item.is_default), "")
        names = (asked.partition or default).split(",")
        return [self.limits[name] for name in names if name in self.limits]


@dataclass(eq=False)
class Context:
    """The input of checks: a profile, and the plan of a job file if there is one."""

    cluster: ClusterProfile
    runs: Path
    """Folder of all run folders."""
    engines: Path
    """Folder of the engine cache."""
    planned: Plan | None = None
    """Plan of the job; ``None`` if only the profile is checked."""
    shared_answers: SlurmAnswers | None = None
    """Slurm's answers, shared with other contexts of the same cluster."""

    @classmethod
    def of_plan(cls, plan: Plan, slurm: SlurmAnswers | None = None) -> Context:
        """Return the context of a planned run."""
        return cls(plan.cluster, Path(plan.run_folder).parent, Path(plan.engines_folder), plan, slurm)

    @cached_property
    def slurm(self) -> SlurmAnswers:
        """Slurm's answers about its partitions."""
        return self.shared_answers or SlurmAnswers(*self.cluster.controller)

    @property
    def has_job(self) -> bool:
        """Whether there is a job file to check."""
        return self.planned is not None

    @property
    def on_slurm(self) -> bool:
        """Whether jobs run in Slurm and not as processes of this machine."""
        return self.cluster.scheduler == "slurm"

    @cached_property
    def can_ask_slurm(self) -> bool:
        """Whether Slurm's commands and configuration are here; other checks report what is missing."""
        conf = self.cluster.slurm_conf
        return shutil.which("scontrol") is not None and (conf is None or os.access(conf, os.R_OK))

    @property
    def plan(self) -> Plan:
        """The plan; only for checks of a job."""
        assert self.planned is not None
        return self.planned

    @property
    def job(self) -> JobFile:
        """The job file; only for checks of a job."""
        return self.plan.job

    def path_here(self, path: str) -> Path:
        """Return the path on this machine of a path inside the container."""
        return Path(outside(path, self.cluster.container.mounts))

    @cached_property
    def model_folder(self) -> Path | None:
        """The model's folder, if this machine can read it."""
        path = self.job.model.path
        folder = None if path is None else self.path_here(path)
        return folder if folder is not None and os.access(folder, os.R_OK | os.X_OK) else None

    @cached_property
    def model_config(self) -> Mapping[str, Any] | None:
        """The model's ``config.json``, or a synthetic model's shape."""
        if self.job.model.synthetic is not None:
            from trtllm_hpc.config.synthetic_models import SHAPE

            return {"model_type": "llama", **SHAPE}
        if self.model_folder is None:
            return None
        if str(self.model_folder) == self.job.model.path:
            return self.plan.facts.model_config
        return read_model_config(str(self.model_folder))

    @property
    def engine_folder(self) -> str | None:
        """Folder of a finished engine: the job file's, or the cache's."""
        return self.job.engine.directory or self.plan.engine_found

    @cached_property
    def engine(self) -> EngineConfig | NotAnEngine | None:
        """The finished engine, or why it is not an engine; ``None`` if this machine cannot see the folder."""
        folder = None if self.engine_folder is None else self.path_here(self.engine_folder)
        try:
            return read_engine(folder) if folder is not None and folder.is_dir() else None
        except NotAnEngine as error:
            return error
        except OSError:
            return None  # the check of the folder itself reports the error


SRUN, CONTROLLER, LIMITS = "srun", "controller", "limits"
"""Needs of checks besides files: Slurm's commands on this machine, or its controller.

``LIMITS`` are separate because ``submit`` asks the controller for partitions and their limits, too: Slurm
accepts a job beyond them and never starts it.
"""

Judge = Callable[[Context], Diagnostic | None]
"""Function of a check; returns ``None`` if the check does not apply."""


@dataclass(frozen=True)
class Check:
    """A check of ``doctor``, ``render`` and ``submit``."""

    id: str
    """Name in the output and for ``--ignore``."""
    function: Judge
    needs: str = ""
    """``SRUN``, ``CONTROLLER`` or ``LIMITS``; empty: only files and numbers."""
    of_job: bool = False
    """Whether the check needs a job file."""
    on_slurm: bool = False
    """Whether the check needs Slurm as the scheduler."""
