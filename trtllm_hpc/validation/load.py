"""Load job file and profile with all layers, apply all rules, and report all errors at once.

The rules are those of this package and of the job's backend. They see valid values only.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from trtllm_hpc.backends import backend_of, facts_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.diagnostics import JOB_FILE, in_job
from trtllm_hpc.config.files import find_job, find_profile, override, read_job_tree, read_tree, swapped
from trtllm_hpc.config.hub import HubFailed
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.layers import (
    CLUSTER_PREFIX,
    job_defaults,
    merge,
    merge_jobs,
    read_settings,
    with_absolute_paths,
)
from trtllm_hpc.config.sweep import Override, SweepSection, expand, read_sweep_options
from trtllm_hpc.config.tree import Place, Tree
from trtllm_hpc.config.validate import Model, validate
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.runtime.lock import Lock
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts, with_image, with_job_image
from trtllm_hpc.tensorrt_llm.releases.release import UnknownRelease
from trtllm_hpc.validation import cluster_rules, job_rules, serve_rules

Locate = Callable[[JobFile, ClusterProfile], JobFile]
"""Returns the job with the folder of ``model.hub``'s download as ``model.path``. Raises HubFailed."""


def load(
    job_file: Path,
    cluster: str,
    overrides: Sequence[str] = (),
    *,
    command: str = "render",
    options: Sequence[str] = (),
    locate: Locate | None = None,
) -> JobFacts:
    """Read a job file and a profile, with ``--set`` settings on top.

    Args: job_file: path of the job file, name of a shipped one, or a run's ``lock.json``, which also has the
    profile. cluster: path of a profile, or its name: a shipped one, or one in
    ``~/.config/trtllm-hpc/clusters`` or ``/etc/trtllm-hpc/clusters``. overrides: ``a.b=c`` settings; keys of
    the profile begin with ``cluster.``. command, options: the command that reads the files and its other
    options, which an error's hint repeats. locate: finds the folder of a hub model; without it ``model.path``
    stays unset.

    Raises:
        ConfigError: with every diagnostic about each file and about both together.
    """
    trees = _Trees.read(find_job(job_file), cluster, overrides, locate)
    if trees.sweep is not None:
        command = shlex.join(["trtllm-hpc", "sweep", "run", str(job_file), "--cluster", cluster])
        message = "describes several variants of the job, not one"
        raise ConfigError(
            [*trees.diagnostics, trees.sweep.diagnostic("is-a-sweep", (), message, hint=command)]
        )
    facts = trees.facts()
    if facts is None or trees.diagnostics:
        typed = ["trtllm-hpc", command, str(job_file)]
        is_lock = read_lock(trees.job_file) is not None
        typed += [] if is_lock else ["--cluster", cluster]
        for setting in overrides:
            typed += ["--set", _to_be_typed(setting, trees.diagnostics)]
        shipped = str(job_file) if trees.job_file != job_file and not is_lock else None
        raise trees.error(shlex.join([*typed, *options]), shipped)
    return facts


def load_job(job_file: Path, cluster: str, overrides: Sequence[str] = ()) -> JobFile:
    """Read a job with every layer like :func:`load`, but without rules, so it may not fit the profile.

    Raises ConfigError with every invalid value.
    """
    trees = _Trees.read(find_job(job_file), cluster, overrides)
    job = trees.valid(JobFile, trees.job)
    if job is None or trees.diagnostics:
        raise ConfigError(trees.diagnostics)
    return job


def load_cluster(cluster: str, overrides: Sequence[str] = ()) -> ClusterProfile:
    """Read a profile alone, with ``--set cluster.a=b`` settings on top.

    Raises ConfigError with every diagnostic about it.
    """
    _, settings, wrong = read_settings(overrides)
    tree, problems = _read_profile(cluster)
    wrong += problems
    model = None
    if tree is not None:
        tree = merge(tree, settings)
        model, problems = validate(ClusterProfile, tree)
        wrong += problems
        if model is not None:
            wrong += [tree.placed(problem) for problem in cluster_problems(model)]
    if model is None or wrong:
        raise ConfigError(wrong)
    return with_image(model)


class LoadedVariant(NamedTuple):
    """A variant of a job file, and its errors."""

    override: Override
    facts: JobFacts | None
    """The validated job and profile; ``None`` if a value is invalid."""
    diagnostics: list[Diagnostic]


class LoadedSweep(NamedTuple):
    """A job file whose section ``sweep`` is expanded into variants."""

    sweep: SweepSection
    keys: tuple[str, ...]
    """Keys that the variants set, in the file's order."""
    variants: list[LoadedVariant]


def load_sweep(
    job_file: Path,
    cluster: str,
    overrides: Sequence[str] = (),
    sweep_options: Sequence[str] = (),
    locate: Locate | None = None,
) -> LoadedSweep:
    """Read a job file and a profile like :func:`load`, and apply all rules to every variant.

    Args:
        sweep_options: ``KEY=A,B,C`` texts, which add or replace keys of the job file's grid.

    Raises: ConfigError: a file is unreadable, or its section ``sweep`` is wrong. The result has the errors of
    single variants.
    """
    trees = _Trees.read(find_job(job_file), cluster, overrides, locate)
    options, wrong = read_sweep_options(sweep_options)
    tree = options if trees.sweep is None or options is None else merge(trees.sweep, options)
    tree = tree or trees.sweep
    if tree is None and not wrong:
        hint = "add a section sweep to the job file, or --sweep KEY=A,B for each key to vary"
        message = "there are no variants"
        wrong.append(Diagnostic("no-variants", message, str(trees.job_file), "sweep", hint=hint))
    if tree is None or trees.job is None or trees.cluster is None or wrong or trees.diagnostics:
        raise ConfigError([*trees.diagnostics, *wrong])
    sweep, wrong = validate(SweepSection, tree)
    if sweep is not None and not wrong:
        variants, wrong = expand(sweep, tree, trees.job)
    if sweep is None or wrong:
        raise ConfigError([replace(problem, field=f"sweep.{problem.field}".rstrip(".")) for problem in wrong])
    if trees.cluster.at("scheduler") == "local":  # one machine serves one variant after another
        sweep = sweep.model_copy(update={"allocation": "one"})
    elif sweep.allocation == "one":  # the companions run in the sweep's own job
        trees.cluster = merge(trees.cluster, Tree.of({"companion": "overlap"}, tree.places[()]))
    keys = dict.fromkeys(key for variant in variants for key in variant.values)
    return LoadedSweep(sweep, tuple(keys), [trees.variant(variant) for variant in variants])


def _read_profile(cluster: str) -> tuple[Tree | None, list[Diagnostic]]:
    profile = find_profile(cluster)
    return (None, [profile]) if isinstance(profile, Diagnostic) else read_tree(profile, "cluster profile")


def read_lock(path: Path) -> Lock | None:
    """Return the lock in a file or run folder; ``None`` for a job file or an unreadable lock."""
    path = find_job(path)
    return Lock.read(path) if path.suffix == ".json" else None


def _secret_settings(lock: Lock, path: Path, settings: Sequence[str]) -> tuple[list[str], list[Diagnostic]]:
    """Return ``--set`` settings for the secrets that a lock leaves out, from environment variables.

    A secret that has neither an environment variable of its name nor an entry in ``settings`` is an error.
    """
    set_keys = {setting.partition("=")[0] for setting in settings}
    secrets, missing = [], []
    for key in lock.left_out:
        name = key.rpartition(".")[2]
        if any(key == set_key or key.startswith(f"{set_key}.") for set_key in set_keys):
            continue
        if name in os.environ:
            secrets.append(f"{key}={json.dumps(os.environ[name])}")
            continue
        message = "looks like a secret, so the lock does not contain its value"
        variable = f"export {name}=... before this command, or add " if name.isupper() else "add "
        hint = f"{variable}--set {key}=VALUE"
        missing.append(Diagnostic("left-out", message, str(path), key, hint=hint))
    return secrets, missing


@dataclass
class _Trees:
    """Both files with their layers, and the errors so far."""

    job_file: Path
    job: Tree | None
    cluster: Tree | None
    diagnostics: list[Diagnostic]
    sweep: Tree | None = None
    """The section ``sweep`` of the job file, which ``job`` lacks."""
    locate: Locate | None = None

    @classmethod
    def read(
        cls, job_file: Path, cluster: str, settings: Sequence[str], locate: Locate | None = None
    ) -> _Trees:
        lock = read_lock(job_file)
        secrets, wrong = _secret_settings(lock, job_file, settings) if lock is not None else ([], [])
        job_settings, cluster_settings, found = read_settings((*secrets, *settings))
        wrong += found
        job_tree: Tree | None
        cluster_tree: Tree | None
        if lock is not None:
            place = Place(str(job_file))
            job_tree = Tree.of(lock.job, place)
            cluster_tree = Tree.of(lock.cluster, place._replace(prefix=f"{CLUSTER_PREFIX}."))
        else:
            job_tree, found = read_job_tree(job_file)
            cluster_tree, in_profile = _read_profile(cluster)
            wrong += found + in_profile
        if found := swapped(job_tree, cluster_tree):
            return cls(job_file, None, None, [*wrong, *found])
        sweep = defaults = None
        if cluster_tree is not None:
            cluster_tree = merge(cluster_tree, cluster_settings)
            defaults = job_defaults(cluster_tree)
        if job_tree is not None:
            tree = merge_jobs(defaults, job_tree) if defaults is not None else job_tree
            tree = merge_jobs(tree, job_settings)
            sweep = tree.section("sweep") if "sweep" in tree.data else None
            job_tree = with_absolute_paths(tree.without(("sweep",)))
        return cls(job_file, job_tree, cluster_tree, wrong, sweep, locate)

    def valid(self, model: type[Model], tree: Tree | None) -> Model | None:
        """Build ``model`` from a tree; ``None`` without a tree, or if a value is invalid."""
        value, problems = validate(model, tree) if tree is not None else (None, [])
        self.diagnostics += problems
        return value

    def variant(self, chosen: Override) -> LoadedVariant:
        """Return a variant of a sweep, judged like a job file; its name is appended to the job's name."""
        assert self.job is not None
        job = with_absolute_paths(override(self.job, chosen.tree))
        name = job.at("name")
        if isinstance(name, (str, int, float)) and len(f"{name}.{chosen.name}") <= 64:
            job = job.changed(("name",), f"{name}.{chosen.name}")
        trees = _Trees(self.job_file, job, self.cluster, [], locate=self.locate)
        return LoadedVariant(chosen, trees.facts(), trees.diagnostics)

    def facts(self) -> JobFacts | None:
        """Build both models and apply every rule; ``None`` if a value is invalid."""
        job, cluster = self.valid(JobFile, self.job), self.valid(ClusterProfile, self.cluster)
        if job is None or cluster is None:
            return None
        try:
            if self.locate is not None and not self.diagnostics:
                job = self.locate(job, cluster)
        except HubFailed as error:
            self.diagnostics.append(self._placed(in_job("hub", "model.hub", error.message, error.hint)))
            return None
        with suppress(UnknownRelease):  # a rule reports it
            cluster = with_job_image(cluster, job.serve.image)
            uses_release = backend_of(job).release_use != "none"
            cluster = with_image(cluster, job.engine.tensorrt_llm_version if uses_release else None)
        facts = facts_of(job, cluster)
        self.diagnostics += [self._placed(problem) for problem in problems(facts)]
        return facts

    def _placed(self, problem: Diagnostic) -> Diagnostic:
        tree = self.job if problem.file == JOB_FILE else self.cluster
        assert tree is not None
        return tree.placed(problem)

    def error(self, command: str, shipped: str | None) -> ConfigError:
        """Return all diagnostics as one error, whose hint is the command to type once they are fixed.

        Diagnostics that need another command have their own hint. ``shipped`` is the name of a shipped job
        file.
        """
        if {"not-found", "swapped"} & {problem.code for problem in self.diagnostics}:
            return ConfigError(self.diagnostics)
        what = "it" if len(self.diagnostics) == 1 else "them"
        hint = f"fix {what} and type: {command}"
        if shipped is not None and str(self.job_file) in {problem.file for problem in self.diagnostics}:
            copy = shlex.join(["cp", str(self.job_file), f"{shipped}.yaml"])
            hint = f"add --set KEY=VALUE for each key to change to: {command}; or edit a copy: {copy}"
        return ConfigError(self.diagnostics, hint=hint)


def problems(facts: JobFacts) -> list[Diagnostic]:
    """Return all errors of a job file and a profile, alone and together."""
    wrong = [problem for rule in job_rules.RULES for problem in rule(facts.job)]
    wrong += cluster_problems(facts.cluster)
    of_both = (*serve_rules.RULES, *backend_of(facts.job).rules)
    wrong += [problem for rule in of_both for problem in rule(facts)]
    # The number of GPUs is known only if the layout is possible.
    return wrong or [*serve_rules.site_limits(facts)]


def cluster_problems(cluster: ClusterProfile) -> list[Diagnostic]:
    """Return all errors of a profile, independent of the job."""
    return [problem for rule in cluster_rules.RULES for problem in rule(cluster)]


def _to_be_typed(setting: str, wrong: Sequence[Diagnostic]) -> str:
    """Return a setting for the command in a hint, with a placeholder for a wrong key or value."""
    key = setting.partition("=")[0]
    for problem in wrong:
        if problem.file != "--set":
            continue
        if problem.code == "bad-setting" and problem.value == setting:
            return "KEY=VALUE"
        if problem.field == key or problem.field.startswith((f"{key}.", f"{key}[")):
            return "KEY=VALUE" if problem.code == "unknown-key" else f"{key}=VALUE"
    return setting
