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
    """What Slurm says of its partitions; asked once, however many jobs are checked."""

    def __init__(self, conf: str | None, clusters: str | None) -> None:
        self._controller = conf, clusters

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions that ``sinfo`` lists. Raises SubmissionError."""
        return query_partitions(*self._controller)

    @cached_property
    def limits(self) -> Mapping[str, PartitionLimits]:
        """What the partitions allow a job, as ``scontrol`` says, by name. Raises SubmissionError."""
        return {item.name: item for item in query_limits(*self._controller)}

    @cached_property
    def default_memory(self) -> DefaultMemory | None:
        """What the cluster gives a job that asks for no memory. Raises SubmissionError."""
        return query_default_memory(*self._controller)

    def limits_of(self, asked: Resources) -> list[PartitionLimits]:
        """Return the limits of the partitions that a job may run on. Raises SubmissionError."""
        default = next((item.name for item in self.limits.values() if item.is_default), "")
        names = (asked.partition or default).split(",")
        return [self.limits[name] for name in names if name in self.limits]


@dataclass(eq=False)
class Context:
    """A profile, with the plan of a job file if there is one."""

    cluster: ClusterProfile
    runs: Path
    """Folder of the runs."""
    engines: Path
    """Folder of the engine cache."""
    planned: Plan | None = None
    shared_answers: SlurmAnswers | None = None
    """Slurm's answers to another context of the cluster."""

    @classmethod
    def of_plan(cls, plan: Plan, slurm: SlurmAnswers | None = None) -> Context:
        """Return the context of a planned run."""
        return cls(plan.cluster, Path(plan.run_folder).parent, Path(plan.engines_folder), plan, slurm)

    @cached_property
    def slurm(self) -> SlurmAnswers:
        """What Slurm says of its partitions."""
        return self.shared_answers or SlurmAnswers(*self.cluster.controller)

    @property
    def has_job(self) -> bool:
        """Whether there is a job file to check."""
        return self.planned is not None

    @property
    def on_slurm(self) -> bool:
        """Whether jobs go to Slurm, and not to processes of this machine."""
        return self.cluster.scheduler == "slurm"

    @cached_property
    def can_ask_slurm(self) -> bool:
        """Whether Slurm's commands and configuration are here; the checks of these say what is missing."""
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
        """Return where a path inside the container is on this machine: below the deepest mount."""
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
        """A finished engine: the job file's, or the cache's."""
        return self.job.engine.directory or self.plan.engine_found

    @cached_property
    def engine(self) -> EngineConfig | NotAnEngine | None:
        """The finished engine, or why the folder has none; ``None`` if this machine cannot see the folder."""
        folder = None if self.engine_folder is None else self.path_here(self.engine_folder)
        try:
            return read_engine(folder) if folder is not None and folder.is_dir() else None
        except NotAnEngine as error:
            return error
        except OSError:
            return None  # the check of the folder itself reports the error


SRUN, CONTROLLER, LIMITS = "srun", "controller", "limits"
"""What a check needs besides files: Slurm's commands on this machine, or its controller. ``submit`` also
asks the controller for partitions and their limits, because Slurm never starts a job beyond them."""

Judge = Callable[[Context], Diagnostic | None]
"""Returns ``None`` where the check does not apply."""


@dataclass(frozen=True)
class Check:
    """One check."""

    id: str
    function: Judge
    needs: str = ""
    """Empty: files and numbers only; or ``srun``, ``controller`` or ``limits``."""
    of_job: bool = False
    """Applies only where there is a job file."""
    on_slurm: bool = False
    """Applies only where jobs go to Slurm."""
