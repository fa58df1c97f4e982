"""Plan a job file, and write the plan's run folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from trtllm_hpc.config.diagnostics import path_refused
from trtllm_hpc.config.files import default_profile
from trtllm_hpc.config.hub import record_of
from trtllm_hpc.engine_cache import CachedEngine, lookup
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.paths import RunPaths, engines_folder
from trtllm_hpc.plan.model import Plan, make_plan, with_download, with_engine
from trtllm_hpc.render.run_folder import lock_of, new_run_folder, write_run
from trtllm_hpc.render.scripts import build_recipe, render_configurations, render_repository, render_scripts
from trtllm_hpc.runs.hub import download, locator, runs_folder
from trtllm_hpc.runtime.lock import changes, shown
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.validation.file_system_checks import refuse_folder_names
from trtllm_hpc.validation.load import load, read_lock

Warn = Callable[[str], object]
"""Receives each warning about a job, one line or more, before anything is written."""
Check = Callable[[Plan], Iterable[str]]
"""Returns the warnings about a plan, or raises if it must not be submitted."""


class JobSource(NamedTuple):
    """A job file, and the profile, overrides and folder with which it is planned."""

    job_file: Path
    cluster: str
    """File or name of the cluster profile."""
    settings: Sequence[str] = ()
    """Overrides in the form of ``--set``."""
    runs: Path | None = None
    """Folder of the runs; ``None``: the default folder."""

    @classmethod
    def of(
        cls,
        job: Path | str,
        cluster: Path | str | None = None,
        settings: Sequence[str] = (),
        runs: Path | str | None = None,
    ) -> JobSource:
        """Return the source for arguments of the public functions."""
        return cls(Path(job), default_profile(cluster), settings, None if runs is None else Path(runs))


@contextmanager
def plan_run(source: JobSource, *, command: str) -> Iterator[Plan]:
    """Load and plan a job; ``command`` is the ``trtllm-hpc`` command that error messages advise to repeat.

    Raises ConfigError if the job file or the profile is wrong, or if the operating system refuses a path
    while the context is open; RenderError if a path cannot be written into a script.
    """
    job_file, cluster, settings, runs = source
    options = () if runs is None else ("--runs", str(runs))
    facts = load(job_file, cluster, tuple(settings), command=command, options=options, locate=locator(runs))
    folder = runs or runs_folder(facts.cluster)
    try:
        yield plan_facts(facts, new_run_folder(folder, facts.job.name), folder)
    except OSError as error:
        if error.filename is None:
            raise
        raise ConfigError([path_refused(error)]) from None


def plan_facts(facts: JobFacts, paths: RunPaths, runs: Path) -> Plan:
    """Plan a loaded job; by default its engines are cached beside ``runs``, the folder of the runs.

    This does not search the engine cache. Raises ConfigError, RenderError and OSError.
    """
    engines = str(engines_folder(facts.cluster.engines_folder, runs))
    refuse_folder_names(paths.folder, engines, facts.cluster)
    # Not resolved: a virtual environment's python is a link, and the link's place selects the environment.
    python = str(Path(sys.executable).absolute())
    return make_plan(facts, paths, python, engines_folder=engines)


@contextmanager
def _checked_plan(source: JobSource, check: Check, warn: Warn, command: str) -> Iterator[Plan]:
    lock = read_lock(source.job_file)
    with plan_run(source, command=command) as plan:
        if lock is not None:
            for key, before, now in changes(lock.made_of, lock_of(plan).made_of):
                warn(f"warning: {key} is {shown(now)}, but {shown(before)} in the lock")
        for warning in (*check(plan), *(f"note: {note}" for note in plan.notes)):
            warn(warning)
        yield plan


def create_run(
    source: JobSource, *, check: Check, warn: Warn, command: str
) -> tuple[RunPaths, CachedEngine | None]:
    """Load and plan a job and write its run folder; write nothing if anything is wrong.

    Returns the folder's paths and the result of the search in the engine cache; ``None`` if the run needs no
    engine.

    Before the folder is made, ``check`` returns warnings about the plan, or raises; ``warn`` receives the
    warnings and the plan's notes. Then a hub's model is downloaded, or left to the stage ``download``. Other
    arguments and errors are those of :func:`plan_run`, plus HubFailed.
    """
    with _checked_plan(source, check, warn, command) as plan:
        in_job = plan.cluster.download_partition is not None
        is_left = download(plan.job.model, Path(plan.run_folder), leave=in_job)
        return write_planned(plan, downloads=is_left)


def preview_run(source: JobSource, *, check: Check, warn: Warn) -> tuple[Plan, CachedEngine | None]:
    """Do all that :func:`create_run` does before it writes; return the plan, and what the cache has.

    Of a ``model.hub`` only the small files are downloaded. Arguments and errors are those of
    :func:`create_run`.
    """
    with _checked_plan(source, check, warn, "submit") as plan:
        plan, engine = search_cache(plan)
        model = plan.job.model
        record = None if model.hub is None else record_of(model.path)
        if record is not None and plan.cluster.download_partition and record.missing(Path(str(model.path))):
            plan = with_download(plan)
        render_scripts(plan), render_configurations(plan), render_repository(plan)  # raise RenderError
        return plan, engine


def write_planned(plan: Plan, *, downloads: bool = False) -> tuple[RunPaths, CachedEngine | None]:
    """Write the run folder of a plan, without a build stage if the engine is cached. Raises RenderError.

    Returns the same as :func:`create_run`. With ``downloads`` the run's first stage downloads its model. The
    run is registered as a user of its engine, so that ``engines prune`` keeps the engine.
    """
    folder = Path(plan.run_folder)
    plan, engine = search_cache(plan, folder)
    plan = with_download(plan) if downloads else plan
    outputs = [] if engine is None else list(engine.outputs.items())
    paths = write_run(plan, {step: Path(output) for step, output in outputs[:-1]})
    for entry in () if engine is None else engine.entries:
        entry.register(folder)  # again, now that the folder exists: once it is missing, the run is gone
    return paths, engine


def search_cache(plan: Plan, run: Path | None = None) -> tuple[Plan, CachedEngine | None]:
    """Search the engine cache; return the plan, without a build stage if the engine is there, and the result.

    ``run`` is a run folder to register as a user of the engine.
    """
    recipe = build_recipe(plan)
    engine = None if recipe is None else lookup(recipe)
    if engine is not None and run is not None and not all([entry.register(run) for entry in engine.entries]):
        engine = CachedEngine("unknown", reason="another process is removing it right now")
    outputs = () if engine is None else tuple(engine.outputs.values())
    return with_engine(plan, outputs[-1]) if outputs else plan, engine
