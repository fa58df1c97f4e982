"""A run's plan as its folder has it (``plan.json``): read by every command and every job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from trtllm_hpc.paths import RunPaths, preflight_step, read_json, serve_steps, write_json
from trtllm_hpc.runtime.records import known_fields


@dataclass(frozen=True)
class Dependency:
    """A condition on another stage that must hold before this one starts."""

    kind: str
    """``afterok`` (succeeded) or ``after`` (started), as in ``sbatch --dependency``."""
    stage: str


@dataclass(frozen=True)
class Resources:
    """What a job, or a component of a heterogeneous one, asks Slurm for; ``None``: the default."""

    nodes: int
    tasks: int | None
    tasks_per_node: int | None
    cpus_per_task: int
    minutes: int
    """The time limit."""
    memory_gib: int | str | None = None
    """On each node; ``all``: all that the node has."""
    gpus_per_node: int = 0
    gpu_request: str = "none"
    """The option that asks for GPUs: ``gres``, ``gpus-per-node``, ``gpus`` or ``none``."""
    gpu_type: str | None = None
    gres: tuple[str, ...] = ()
    """Of a node, beside its GPUs."""
    exclusive: bool | str = False
    """Whether no other job may use the nodes; ``user``: none of another user."""
    warning_seconds: int | None = None
    """Slurm warns the script by a signal so long before the time limit."""
    cluster: str | None = None
    """The cluster to submit to, of several that one machine serves."""
    partition: str | None = None
    """One, or several with commas between them."""
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    options: tuple[str, ...] = ()
    """Further options of sbatch, as the profile has them."""


@dataclass(frozen=True)
class Stage:
    """One batch script."""

    name: str
    job_name: str
    log: str
    """Path of the batch script's log."""
    components: tuple[Resources, ...]
    """Several only of a heterogeneous job; the script runs on the first node of the first."""
    after: tuple[Dependency, ...] = ()
    """All of them must hold."""

    @property
    def first(self) -> Resources:
        """The component whose first node runs the script."""
        return self.components[0]

    @property
    def gpus(self) -> int:
        """GPUs on all nodes together."""
        return sum(one.nodes * one.gpus_per_node for one in self.components)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Stage:
        """Return the stage that ``asdict`` made plain."""
        lists = ("options", "gres")
        components = [
            Resources(**{**one, **{name: tuple(one.get(name, ())) for name in lists}})
            for one in raw["components"]
        ]
        after = tuple(Dependency(**one) for one in raw["after"])
        return cls(**{**raw, "components": tuple(components), "after": after})


@dataclass(frozen=True)
class PlanRecord:
    """The facts of a plan that outlive its rendering."""

    name: str
    """The job's."""
    run_folder: str
    """Where the run was rendered."""
    python: str
    """Python with this package on the nodes, outside any container."""
    scheduler: str
    """``slurm`` or ``local``."""
    slurm_conf: str | None
    model: str | None
    """Folder of the weights, or the name of a synthetic model."""
    release: str | None
    """Version of TensorRT-LLM, if it is used and known."""
    engine_folder: str
    """What the server loads: a finished engine, or the run folder's link to one in the cache."""
    engine_found: str | None
    """An engine in the cache that makes the build stage needless."""
    causes_folder: str | None
    """Tables of causes of the site."""
    stops_server: bool
    """Whether the companion ends the server."""
    world_sizes: tuple[int, ...]
    """Ranks of each instance."""
    gpus_per_node: int
    """GPUs that one instance uses on each of its nodes; of a disaggregated run one of the first phase."""
    stages: tuple[Stage, ...]
    """In the order of submission."""

    @property
    def controller(self) -> tuple[str | None, str | None]:
        """Where Slurm's commands ask: ``SLURM_CONF`` and the cluster."""
        return self.slurm_conf, self.stages[0].first.cluster if self.stages else None

    def stage(self, name: str) -> Stage | None:
        """The stage of that name, or ``None`` if the run has none."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @cached_property
    def serve_steps(self) -> list[str]:
        """The job steps of the server, one for each instance."""
        return serve_steps(len(self.world_sizes))

    @property
    def preflight_steps(self) -> list[str]:
        """The job steps of the preflight, one for each component of the serve job."""
        serve = self.stage("serve")
        return [preflight_step(number) for number in range(1 if serve is None else len(serve.components))]

    def write(self, paths: RunPaths) -> None:
        """Write ``plan.json``."""
        write_json(paths.plan, asdict(self))

    @classmethod
    def read(cls, paths: RunPaths) -> PlanRecord | None:
        """Return the plan in a run folder, a newer version's too; ``None`` if it cannot be read."""
        try:
            raw = known_fields(cls, read_json(paths.plan))
            stages = tuple(Stage.from_json(one) for one in raw["stages"])
            return cls(**{**raw, "world_sizes": tuple(raw["world_sizes"]), "stages": stages})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
