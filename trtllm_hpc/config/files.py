"""Diagnostic and reading the two files: by path, or by the name of a shipped one."""

from __future__ import annotations

import errno
import os
import stat
from importlib import resources
from pathlib import Path

from trtllm_hpc.config.diagnostics import nearest
from trtllm_hpc.config.tree import Node, Source, parse
from trtllm_hpc.errors import Diagnostic

MAX_BYTES = 1024 * 1024
SHIPPED_PROFILES = "trtllm_hpc.slurm"
SHIPPED_JOBS = "trtllm_hpc.jobs"


def user_profiles_folder() -> Path:
    """Where a person keeps profiles to be called by name: ``$XDG_CONFIG_HOME/trtllm-hpc/clusters``."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification wants a relative value ignored.
    home = Path(base) if base.startswith("/") else Path(os.path.expanduser("~")) / ".config"  # noqa: PTH111
    return home / "trtllm-hpc" / "clusters"


def profiles() -> dict[str, Path]:
    """Every profile that can be called by name; a person's own one stands in for a shipped one."""
    return {**_named(shipped(SHIPPED_PROFILES)), **_named(user_profiles_folder())}


def jobs() -> dict[str, Path]:
    """Every shipped job file by name."""
    return _named(shipped(SHIPPED_JOBS))


def shipped(package: str) -> Path:
    """Folder of a package of data files."""
    return Path(str(resources.files(package)))


def _named(folder: Path) -> dict[str, Path]:
    try:
        return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix == ".yaml"}
    except OSError:
        # A folder that a person never made, or may not read, holds no profiles for them.
        return {}


def find_profile(cluster: str) -> Path | Diagnostic:
    """The profile of that path or name, or the finding that there is none."""
    if "/" in cluster or cluster.endswith((".yaml", ".yml")):
        return Path(cluster)
    known = profiles()
    if cluster in known:
        return known[cluster]
    here = next((f"./{cluster}{end}" for end in (".yaml", ".yml", "") if Path(cluster + end).is_file()), None)
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
        f"{user_profiles_folder()}/NAME.yaml; 'trtllm-hpc init cluster' writes one",
    )


def find_job(job_file: Path) -> Path:
    """The job file itself, or the shipped one when the bare name of one is given."""
    name = str(job_file)
    if "/" not in name and not job_file.suffix and not os.path.lexists(name):
        return jobs().get(name, job_file)
    return job_file


def read_tree(path: Path, what: str) -> tuple[Node | None, list[Diagnostic]]:
    """Read and parse one file; ``what`` it is, e.g. ``job file``, goes into the messages.

    Returns:
        As ``tree.parse``; the root is a mapping.
    """
    # Not Path.absolute(): '..' is to vanish from messages and from paths derived from this one.
    folder = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
    source = Source(str(path), folder=folder)
    text = _read(path, what)
    if isinstance(text, Diagnostic):
        return None, [text]
    root, findings = parse(text, source)
    if root is None:
        return None, findings
    if root.value is None:
        return Node({}, source, 1), findings
    if not isinstance(root.value, dict):
        message = f"the {what} must be a mapping of keys to values"
        return None, [
            *findings,
            Diagnostic("wrong-type", message, str(path), "", root.line, value=root.plain()),
        ]
    return Node(root.value, source, root.line), findings


def _read(path: Path, what: str) -> str | Diagnostic:
    def diagnostic(code: str, message: str, hint: str | None = None) -> Diagnostic:
        return Diagnostic(code, message, str(path), "", hint=hint)

    try:
        raw = _read_bytes(path)
    except FileNotFoundError:
        return diagnostic("not-found", f"there is no such {what}", _where_else(path, what))
    except OSError as error:
        return diagnostic("unreadable", f"the {what} cannot be read: {error.strerror}")
    except ValueError as error:
        return diagnostic("not-found", f"no file can have this name: {error}")
    if len(raw) > MAX_BYTES:
        return diagnostic("too-large", f"the {what} is larger than {MAX_BYTES // 1024} KiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return Diagnostic(
            "bad-yaml", f"the {what} is not UTF-8 text (byte {error.start})", str(path), "", line
        )


def _where_else(path: Path, what: str) -> str:
    if what != "job file":
        return "trtllm-hpc init cluster writes one"
    name = str(path)
    near = nearest(path.stem, jobs()) if "/" not in name else None
    guess = f"did you mean {near}, which comes with trtllm-hpc? " if near else ""
    return f"{guess}trtllm-hpc init job writes one"


def _read_bytes(path: Path) -> bytes:
    """The file's bytes, one more than allowed at most; only of a regular file, so that nothing blocks."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, "it is a folder")
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file but a pipe, a socket or a device")
        with open(handle, "rb", closefd=False) as stream:
            return stream.read(MAX_BYTES + 1)
    finally:
        os.close(handle)
