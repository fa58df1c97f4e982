"""Find and read job files and profiles: by path, by the name of a shipped file, or in a run folder.

``extends`` in a job file names a base, whose values the job file overrides.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from trtllm_hpc.config import diagnostics
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.diagnostics import nearest, shown
from trtllm_hpc.config.job import JobDocument, JobFile
from trtllm_hpc.config.layers import merge_jobs, with_absolute_paths
from trtllm_hpc.config.tree import Place, Tree, parse
from trtllm_hpc.config.types import Section
from trtllm_hpc.config.validate import Model, section_at, validate
from trtllm_hpc.errors import ConfigError, Diagnostic
from trtllm_hpc.paths import RunPaths, site_config_folder, user_config_folder

_OF_RUN = "another version of trtllm-hpc may have written the run; submit its job file again"


def _profile_folders() -> dict[str, Path]:
    """Folders with named profiles: ``~/.config/trtllm-hpc/clusters``, ``/etc/trtllm-hpc/clusters``."""
    return {"your own": user_config_folder() / "clusters", "your site's": site_config_folder() / "clusters"}


def profiles() -> dict[str, Path]:
    """Return all profiles by name: the user's override the site's, which override the shipped ones."""
    own, site = map(_named, _profile_folders().values())
    return {**_named(Path(str(resources.files("trtllm_hpc.slurm")))), **site, **own}


def default_profile(cluster: Path | str | None = None) -> str:
    """Return ``cluster``, else ``$TRTLLM_HPC_CLUSTER``, else ``default`` if it exists, else ``sandbox``."""
    usual = "default" if "default" in profiles() else "sandbox"
    return str(cluster or os.environ.get("TRTLLM_HPC_CLUSTER") or usual)


def profile_origins(cluster: str) -> Iterator[str]:
    """Yield lines that name the profile's file, and the profiles of the user and the site."""
    yield f"the profile {cluster} is {find_profile(cluster)}"
    for whose, folder in _profile_folders().items():
        if names := _named(folder):
            yield f"{whose} profiles in {folder}: {', '.join(names)}"


def jobs() -> dict[str, Path]:
    """Return every shipped job file by name."""
    return _named(Path(str(resources.files("trtllm_hpc.jobs"))))


def _named(folder: Path) -> dict[str, Path]:
    try:
        return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix == ".yaml"}
    except OSError:
        # The folder does not exist or is unreadable.
        return {}


def find_profile(cluster: str) -> Path | Diagnostic:
    """Return the profile's file by path or name, or a diagnostic if there is no such profile."""
    if "/" in cluster or cluster.endswith((".yaml", ".yml")):
        return Path(cluster)
    known = profiles()
    if cluster in known:
        return known[cluster]
    here = _beside(".", cluster)
    near = here or nearest(cluster, known)
    guess = f"; did you mean {near if here else repr(near)}?" if near else ""
    return Diagnostic(
        "not-found",
        f"no cluster profile is called {cluster!r}{guess}",
        "--cluster",
        "",
        value=cluster,
        choices=tuple(known),
        hint="name one of them, give the path of a YAML file, or keep yours as "
        f"{_profile_folders()['your own']}/NAME.yaml; 'trtllm-hpc init cluster' writes one",
    )


def _beside(folder: str, name: str) -> str | None:
    """Return the file in ``folder`` that the user may have meant by ``name``, as one would type it."""
    files = [f"./{name}{end}" for end in (".yaml", ".yml", "")]
    return next((file for file in files if Path(folder, file).is_file()), None)


def find_job(job_file: Path) -> Path:
    """Resolve a job argument: a run folder to its lock, the name of a shipped job file, or any path."""
    name = str(job_file)
    lock = RunPaths(job_file).lock
    if os.path.isfile(lock):  # noqa: PTH113 - Path.is_file() fails for a name with NUL
        return lock
    if "/" not in name and not os.path.lexists(name):
        return jobs().get(name, job_file)
    return job_file


def read_tree(path: Path, what: str) -> tuple[Tree | None, list[Diagnostic]]:
    """Read and parse a file whose root is a mapping, as ``tree.parse``; ``what`` names it in messages."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")  # a FIFO would block
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message = f"the {what} is not UTF-8 text (byte {error.start})"
        return None, [Diagnostic("bad-yaml", message, str(path), line=line)]
    except FileNotFoundError:
        hint = "trtllm-hpc init cluster writes one"
        if what == "job file":
            near = nearest(path.stem, jobs()) if "/" not in str(path) else None
            guess = f"did you mean {near}, which comes with trtllm-hpc? " if near else ""
            hint = f"{guess}trtllm-hpc init job writes one"
        return None, [Diagnostic("not-found", f"there is no such {what}", str(path), hint=hint)]
    except OSError as error:
        message = f"the {what} cannot be read: {error.strerror}"
        return None, [Diagnostic("unreadable", message, str(path))]
    except ValueError as error:
        return None, [Diagnostic("not-found", f"no file can have this name: {error}", str(path))]
    # Not Path.absolute(), which keeps '..' in messages and in the paths derived from this one.
    folder = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
    tree, wrong = parse(text, Place(str(path), folder=folder))
    if tree is None or isinstance(tree.data, dict):
        return tree, wrong
    if tree.data is None:
        return Tree({}, tree.places), wrong
    message = f"the {what} must be a mapping of keys to values"
    return None, [*wrong, tree.diagnostic("wrong-type", (), message, value=tree.data)]


def read_spec(path: Path) -> JobFile:
    """Read the job file in a run folder.

    Raises ConfigError if the file is unreadable or invalid, for example from another version of this package.
    """
    return _valid(JobFile, *read_tree(path, "job file of the run"), _OF_RUN)


def read_cluster(path: Path) -> ClusterProfile:
    """Read the cluster profile in a run folder. Raises ConfigError like :func:`read_spec`."""
    return _valid(ClusterProfile, *read_tree(path, "cluster profile of the run"), _OF_RUN)


def read_job(path: Path) -> JobFile:
    """Read a job file with its base, without a profile. Raises ConfigError with all errors."""
    tree, wrong = read_job_tree(path)
    return _valid(JobFile, None if tree is None else tree.without(("sweep",)), wrong)


def _valid(model: type[Model], tree: Tree | None, wrong: list[Diagnostic], hint: str | None = None) -> Model:
    """Build ``model`` from a tree. Raises ConfigError with ``wrong`` and all further errors."""
    value, more = (None, []) if tree is None else validate(model, with_absolute_paths(tree))
    if value is None or wrong or more:
        raise ConfigError([*wrong, *more], hint=hint)
    return value


def swapped(job: Tree | None, cluster: Tree | None) -> list[Diagnostic]:
    """Return one diagnostic for a job file given as the profile or vice versa, instead of one per key."""
    profile, other = (
        tree.places[()].file if tree is not None and _is(kind, named, tree) else None
        for tree, kind, named in ((job, ClusterProfile, JobDocument), (cluster, JobDocument, ClusterProfile))
    )
    if profile is None and other is None:
        return []
    words = [as_argument(other or "job.yaml"), "--cluster", as_argument(profile or "cluster.yaml")]
    hint = f"trtllm-hpc render {' '.join(words)}"
    if profile is None:
        return [Diagnostic("swapped", "this is a job file, not a cluster profile", other or "", hint=hint)]
    message = "this is a cluster profile, not a job file"
    message += f"; {other} is the job file" if other is not None else ""
    return [Diagnostic("swapped", message, profile, hint=hint)]


def as_argument(file: str) -> str:
    """Quote a file for a command; './' keeps it from being taken for the name of a shipped file."""
    return shlex.quote(file if "/" in file or file.endswith((".yaml", ".yml")) else f"./{file}")


def _is(kind: type[Section], other: type[Section], tree: Tree) -> bool:
    """Return whether no key is ``other``'s alone, and more keys are ``kind``'s alone than unknown."""
    keys, own, others = set(tree.data), set(kind.model_fields), set(other.model_fields)
    return not keys & (others - own) and len(keys & (own - others)) > len(keys - own - others)


def override(base: Tree, over: Tree) -> Tree:
    """Merge ``over``, a job file or a part of one, over ``base``.

    ``null`` removes the base's value, unless ``null`` is a valid value of the key.
    """
    removed = [*_removed(base.data, over.data, ())]
    return merge_jobs(base, over).without(*removed)


def _removed(base: Any, over: Any, path: diagnostics.Path) -> Iterator[diagnostics.Path]:
    """Yield the paths of values in ``base`` that a ``null`` in ``over`` removes."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return
    for key in over.keys() & base.keys():
        section = section_at(JobDocument, path)
        field = section.model_fields.get(key) if section is not None else None
        has_null = field is not None and NoneType in get_args(field.annotation)
        if over[key] is None and not has_null:
            yield (*path, key)
        yield from _removed(base[key], over[key], (*path, key))


def read_job_tree(path: Path, chain: tuple[Path, ...] = ()) -> tuple[Tree | None, list[Diagnostic]]:
    """Read a job file merged over its base, without the key ``extends``; ``chain`` has the extending files.

    If the base is unusable there is no tree, so that keys that are only in the base are not reported missing.
    """
    tree, wrong = read_tree(path, "job file")
    if tree is None or "extends" not in tree.data:
        return tree, wrong
    base, wrong_in_base = _base(tree.at("extends"), tree.places[("extends",)], (*chain, path))
    wrong += wrong_in_base
    return None if base is None else override(base, tree.without(("extends",))), wrong


def _base(name: Any, place: Place, chain: tuple[Path, ...]) -> tuple[Tree | None, list[Diagnostic]]:
    """Read the job file that the last file of ``chain`` extends."""

    def refused(code: str, message: str, hint: str | None = None) -> tuple[None, list[Diagnostic]]:
        return None, [Diagnostic(code, message, place.file, "extends", place.line, value=name, hint=hint)]

    if not isinstance(name, str) or not name or "\0" in name:
        message = f"must name a job file, not {shown(name)}"
        return refused("wrong-type", message, "write extends: qwen3-8b, or extends: ./base.yaml")
    is_shipped = "/" not in name and not name.endswith((".yaml", ".yml"))
    # Relative in messages if the extending file is. Path.expanduser() would fail for an unknown ~user.
    own = chain[-1].parent / os.path.expanduser(name)  # noqa: PTH111
    path = jobs().get(name, Path(name)) if is_shipped else own
    files = [os.path.realpath(file) for file in chain]
    if os.path.realpath(path) in files:
        circle = (*chain[files.index(os.path.realpath(path)) :], path)
        message = f"the job files extend each other: {' -> '.join(map(str, circle))}"
        return refused("circle", message, "remove extends from one of them")
    tree, wrong = read_job_tree(path, chain)
    if swapped(tree, None):
        message = f"{path} is a cluster profile; a job file extends job files only"
        return refused("swapped", message, "name the profile with --cluster instead")
    if not any(problem.code == "not-found" and problem.file == str(path) for problem in wrong):
        return tree, wrong
    if is_shipped:
        message = f"no shipped job file is called {name!r}"
        guess = _beside(place.folder, name) or nearest(name, jobs())
    else:
        message = f"there is no job file {path}"
        near = nearest(path.name, [file.name for file in path.parent.glob("*.y*ml")])
        guess = str(Path(name).with_name(near)) if near else None
    hint = f"did you mean {guess}?" if guess else "'trtllm-hpc jobs list' lists the shipped job files"
    return refused("not-found", message, hint)
