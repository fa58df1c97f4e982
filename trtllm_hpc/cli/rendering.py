"""Job file to plan, and to written run: what the commands that take a JOB share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from trtllm_hpc.cli.options import print_warnings, runs_option
from trtllm_hpc.paths import default_runs_folder

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from trtllm_hpc.config.cluster import ClusterProfile
    from trtllm_hpc.config.resolved import Resolved
    from trtllm_hpc.paths import RunPaths
    from trtllm_hpc.plan.model import Plan
    from trtllm_hpc.plan.resolve import Surroundings
    from trtllm_hpc.runtime.engine_cache.lookup import Hit, Miss, Unknown

Command = TypeVar("Command", bound=Callable[..., Any])


def job_options(command: Command) -> Command:
    """``JOB``, ``--cluster``, ``--set`` and ``--runs``."""
    return click.argument(
        "job_file", type=click.Path(path_type=Path), metavar="JOB", shell_complete=complete_job
    )(cluster_option(set_option(runs_option(command))))


def set_option(command: Command) -> Command:
    """``--set A.B=C``; passed on as ``settings: tuple[str, ...]``."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="A.B=C",
        help="Override one key, e.g. --set serve.nodes=2 or --set cluster.partition=gpu.  [repeatable]",
    )(command)


def cluster_option(command: Command) -> Command:
    """``--cluster PROFILE``; passed on as ``cluster: str``."""
    return click.option(
        "--cluster",
        default="sandbox",
        show_default=True,
        metavar="PROFILE",
        shell_complete=_complete_cluster,
        envvar="TRTLLM_HPC_CLUSTER",
        show_envvar=True,
        help="Cluster profile: a file, or a name such as sandbox, local, pyxis.",
    )(command)


def _complete_cluster(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from trtllm_hpc.config.files import profiles

    return _completed(profiles(), incomplete)


def complete_job(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the shipped job files, and files here."""
    from trtllm_hpc.config.files import jobs

    return _completed(jobs(), incomplete)


def _completed(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The names, and the folders and YAML files, that begin with what is typed so far."""
    from click.shell_completion import CompletionItem

    begun = incomplete.rpartition("/")[2]
    prefix = incomplete[: len(incomplete) - len(begun)]
    found = [name for name in names if name.startswith(incomplete)]
    try:
        entries = sorted(Path(prefix or ".").iterdir())
    except (OSError, ValueError):
        entries = []  # no such folder, or not ours to read: no files to offer
    for entry in entries:
        if entry.name.startswith(begun) and (begun or not entry.name.startswith(".")):
            if entry.suffix in (".yaml", ".yml"):
                found.append(prefix + entry.name)
            elif entry.is_dir():
                found.append(f"{prefix}{entry.name}/")
    return [CompletionItem(word) for word in found]


class Planned(NamedTuple):
    """A job file's plan, before the cache of engines is asked."""

    plan: Plan
    paths: RunPaths
    """Of the folder that the run would get."""
    around: Surroundings

    def with_engine(self, engine: Hit | Miss | Unknown | None) -> Plan:
        """The plan, without its build stage if the engine was found."""
        from trtllm_hpc.plan.resolve import make_plan
        from trtllm_hpc.runtime.engine_cache.lookup import Hit

        if not isinstance(engine, Hit):
            return self.plan
        around = replace(self.around, engine_found=str(engine.entry.output))
        return make_plan(self.plan.job, self.plan.cluster, self.paths, self.plan.python, around)


@contextmanager
def planned(
    job_file: Path, cluster: str, settings: tuple[str, ...], runs: Path | None, command: str
) -> Iterator[Planned]:
    """Load and plan a job; what the system refuses within is a finding about the key that named the path.

    Args:
        command: the next command of a finding's hint.

    Raises:
        ConfigError, RenderError: see there.
    """
    from trtllm_hpc.config.closed import naming_keys
    from trtllm_hpc.plan.resolve import make_plan
    from trtllm_hpc.render.run_folder import default_python, new_run_folder
    from trtllm_hpc.validation.load import load

    options = () if runs is None else ("--runs", str(runs))
    resolved = load(job_file, cluster, settings, command=command, options=options)
    with naming_keys(resolved.job, resolved.cluster, {"--runs": str(runs)} if runs else None):
        paths = new_run_folder(runs or runs_folder(resolved.cluster), resolved.job.name)
        around = _surroundings(resolved, paths.folder.parent)
        plan = make_plan(resolved.job, resolved.cluster, paths, default_python(), around)
        yield Planned(plan, paths, around)


def find_engine(plan: Plan) -> Hit | Miss | Unknown | None:
    """What the cache says of the plan's engine; ``None`` if the plan needs none from it."""
    from trtllm_hpc.render.scripts import recipe_of
    from trtllm_hpc.runtime.engine_cache.lookup import lookup

    return lookup(recipe_of(plan)) if plan.build_steps else None


class MadeRun(NamedTuple):
    """A written run."""

    plan: Plan
    paths: RunPaths
    engine: Hit | Miss | Unknown | None
    """What the cache of engines said; ``None`` if the run needs none from it."""


def make_run(
    job_file: Path,
    cluster: str,
    settings: tuple[str, ...],
    runs: Path | None,
    check: Callable[[Plan], None] = lambda plan: None,
) -> MadeRun:
    """Load, plan and write; nothing is written when anything is wrong.

    Args:
        check: a last look at the plan before the folder is made.

    Raises:
        ConfigError, RenderError: see there.
    """
    from trtllm_hpc.render.run_folder import write_run

    command = click.get_current_context().info_name or "render"
    with planned(job_file, cluster, settings, runs, command) as found:
        check(found.plan)
        print_warnings(f"note: {note}" for note in found.plan.notes)
        engine = _taken_engine(found)
        plan = found.with_engine(engine)
        return MadeRun(plan, write_run(plan, _side_outputs(engine)), engine)


def runs_folder(cluster: ClusterProfile) -> Path:
    """Where runs are kept when the command line does not say."""
    return Path(cluster.runs_folder) if cluster.runs_folder else default_runs_folder()


def _surroundings(resolved: Resolved, runs: Path) -> Surroundings:
    """What this machine knows of a job, before the cache of engines is asked."""
    from trtllm_hpc.paths import engines_folder
    from trtllm_hpc.plan.resolve import Surroundings
    from trtllm_hpc.tensorrt_llm.model_config import read_model_config

    return Surroundings(
        engines_folder=str(engines_folder(resolved.cluster.engines_folder, runs)),
        templates=_templates(resolved),
        model_config=read_model_config(resolved.job.model.path),
    )


def _templates(resolved: Resolved) -> str | None:
    if not resolved.job.engine.is_tensorrt_llm:
        return None
    from trtllm_hpc.render.templates_cache import find_templates

    found = find_templates(resolved.cluster)
    return None if found is None else str(found)


def _taken_engine(found: Planned) -> Hit | Miss | Unknown | None:
    """The engine in the cache, kept from now on for the run that will use it."""
    from trtllm_hpc.runtime.engine_cache.lookup import Hit, Unknown
    from trtllm_hpc.runtime.engine_cache.uses import register

    engine = find_engine(found.plan)
    if not isinstance(engine, Hit):
        return engine
    if not all([register(entry, found.paths.folder) for entry in engine.entries]):
        return Unknown("somebody is just removing it")
    return engine


def _side_outputs(found: Hit | Miss | Unknown | None) -> dict[str, Path]:
    """What else the cache has for the run, by the step that made it."""
    from trtllm_hpc.runtime.engine_cache.lookup import Hit

    others = found.others if isinstance(found, Hit) else {}
    return {step: entry.output for step, entry in others.items()}
