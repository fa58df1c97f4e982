"""The plan in a run folder (``plan.json``), which every command and every job reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from trtllm_hpc.paths import RunPaths, preflight_step, read_json, serve_steps, write_json
from trtllm_hpc.runtime.records import known_fields


@dataclass(frozen=True)
class Dependency:
    """A condition on another stage that must hold before a stage starts."""

    kind: str
    """``afterok`` (succeeded) or ``after`` (started), as in ``sbatch --dependency``."""
    stage: str
    """Name of the other stage."""


@dataclass(frozen=True)
class Resources:
    """Request to Slurm for a job or a component of a heterogeneous job; ``None``: Slurm's default."""

    nodes: int
    tasks: int | None
    tasks_per_node: int | None
    cpus_per_task: int
    minutes: int
    """Time limit in minutes."""
    memory_gib: int | str | None = None
    """Memory per node in GiB; ``all``: all of the node's memory."""
    gpus_per_node: int = 0
    gpu_request: str = "none"
    """Option that requests GPUs: ``gres``, ``gpus-per-node``, ``gpus`` or ``none``."""
    gpu_type: str | None = None
    gres: tuple[str, ...] = ()
    """Generic resources per node beside GPUs."""
    exclusive: bool | str = False
    """Whether no other job may use the nodes; ``user``: no job of another user."""
    warning_seconds: int | None = None
    """Seconds before the time limit at which Slurm warns the script by a signal."""
    cluster: str | None = None
    """Name of the cluster, where one machine submits to several."""
    partition: str | None = None
    """A partition, or several with commas between them."""
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    options: tuple[str, ...] = ()
    """Further sbatch options from the profile."""


@dataclass(frozen=True)
class Stage:
    """One stage: a batch script and the job that runs it."""

    name: str
    job_name: str
    log: str
    """Path of the batch script's log."""
    components: tuple[Resources, ...]
    """The job's components, several only for a heterogeneous job; the script runs on the first component's
    first node."""
    after: tuple[Dependency, ...] = ()
    """Conditions for the start; all of them must hold."""

    @property
    def first(self) -> Resources:
        """The component whose first node runs the script."""
        return self.components[0]

    @property
    def gpus(self) -> int:
        """Number of GPUs on all nodes together."""
        return sum(component.nodes * component.gpus_per_node for component in self.components)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Stage:
        """Return the stage from the plain data that ``asdict`` returned."""
        lists = ("options", "gres")
        components = [
            Resources(**{**component, **{name: tuple(component.get(name, ())) for name in lists}})
            for component in raw["components"]
        ]
        after = tuple(Dependency(**dependency) for dependency in raw["after"])
        return cls(**{**raw, "components": tuple(components), "after": after})


@dataclass(frozen=True)
class PlanRecord:
    """The facts of a plan that are needed after rendering."""

    name: str
    """The job's name."""
    run_folder: str
    """Folder into which the run was rendered."""
    python: str
    """Path on the nodes, outside any container, of a Python that has this package."""
    scheduler: str
    """``slurm`` or ``local``."""
    slurm_conf: str | None
    """Value of ``SLURM_CONF`` for Slurm's commands."""
    model: str | None
    """Folder of the weights, or the name of a synthetic model."""
    release: str | None
    """Release of TensorRT-LLM, if it is used and known."""
    engine_folder: str
    """Engine that the server loads: a finished engine, or the run folder's link to an engine in the cache."""
    engine_found: str | None
    """Engine in the cache that makes the build stage unnecessary."""
    causes_folder: str | None
    """Folder with the site's own tables of causes."""
    stops_server: bool
    """Whether the server ends when the companion ends."""
    world_sizes: tuple[int, ...]
    """Number of ranks of each instance."""
    gpus_per_node: int
    """GPUs that an instance uses on each of its nodes; in a disaggregated run, an instance of the first
    phase."""
    stages: tuple[Stage, ...]
    """The stages in the order of submission."""

    @property
    def controller(self) -> tuple[str | None, str | None]:
        """``SLURM_CONF`` and the cluster that Slurm's commands use."""
        return self.slurm_conf, self.stages[0].first.cluster if self.stages else None

    def stage(self, name: str) -> Stage | None:
        """The stage of that name, or ``None`` if the run has none."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @cached_property
    def steps(self) -> dict[str, list[str]]:
        """The job steps of each instance of the server, and of the preflight on each component."""
        serve = self.stage("serve")
        components = 1 if serve is None else len(serve.components)
        return {
            "serve": serve_steps(len(self.world_sizes)),
            "preflight": [preflight_step(number) for number in range(components)],
        }

    def ranks(self, kind: str) -> int:
        """Return the number of ranks of a step: of the largest instance, or component of the serve job."""
        if kind == "serve":
            return max(self.world_sizes)
        serve = self.stage("serve")
        if kind != "preflight" or serve is None:
            return 1
        return max(component.tasks or 1 for component in serve.components)

    def write(self, paths: RunPaths) -> None:
        """Write ``plan.json``."""
        write_json(paths.plan, asdict(self))

    @classmethod
    def read(cls, paths: RunPaths) -> PlanRecord | None:
        """Return the plan in a run folder, even a newer version's; ``None`` if it cannot be read."""
        try:
            raw = known_fields(cls, read_json(paths.plan))
            stages = tuple(Stage.from_json(stage) for stage in raw["stages"])
            return cls(**{**raw, "world_sizes": tuple(raw["world_sizes"]), "stages": stages})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
