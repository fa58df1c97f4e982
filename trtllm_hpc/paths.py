"""The names of all files in a run folder, which no other module defines.

Standard library only, because this module also travels into the job (``runtime``).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import ConfigError, Diagnostic

STAGES = ("download", "build", "serve", "companion")
"""The stages of a run, in the order of their dependencies."""
PROGRAMS = ("proxy", "gateway")
"""Programs that run beside the server and have a log of their own."""
STEPS = ("download", "build", "staging", "repository", "preflight", "serve", "front", "companion")
"""Steps that write one log for each rank: the stages, and further steps of the stage ``serve``."""
COMPANION_MEASUREMENT = "benchmark"
"""Name of the companion's own measurement; others come from the ``bench`` command."""
COMPANION_EVALUATION = "evaluation"
"""Name of the companion's own evaluation; others come from the ``evaluate`` command."""
RESERVED_ENDINGS = (".workload", ".metrics")
"""Endings that distinguish the files of a measurement; the name of a measurement must not end with them."""


def user_config_folder() -> Path:
    """Return the folder of the user's own profiles and causes: ``$XDG_CONFIG_HOME/trtllm-hpc``."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # Relative values must be ignored (XDG Base Directory Specification).
    home = Path(base) if base.startswith("/") else Path(os.path.expanduser("~")) / ".config"  # noqa: PTH111
    return home / "trtllm-hpc"


def user_config_file() -> Path:
    """Return the file of the user's own settings, in TOML."""
    return user_config_folder() / "config.toml"


SITE_VARIABLE = "TRTLLM_HPC_SITE"
"""Environment variable with the folder of a site's profiles and causes, for all its users."""


def site_config_folder() -> Path:
    """Return the folder of the site's files for all users: ``$TRTLLM_HPC_SITE``, else ``/etc/trtllm-hpc``."""
    return Path(os.environ.get(SITE_VARIABLE) or "/etc/trtllm-hpc")


@dataclass(frozen=True)
class MeasurementPaths:
    """The files of one measurement."""

    summary: Path
    requests: Path
    """One JSON line for each request."""
    workload: Path
    """The requests sent, one JSON line each; a later benchmark can send the same."""
    samples: Path
    """The server's own metrics during the measurement, one JSON line for each sample."""
    table: Path
    """The table as text."""
    report: Path

    @property
    def present(self) -> list[Path]:
        """The files that exist."""
        return [file for file in vars(self).values() if file.exists()]


class _Named:
    """A file or folder with the same name in every run folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, paths: RunPaths, owner: type[RunPaths]) -> Path:
        return paths.folder / self.name


class RunPaths:
    """Paths of everything in a run folder, which is made absolute and need not exist."""

    # What was requested and resolved
    spec = _Named("spec.yaml")
    """The job file with every default written out; itself a valid job file."""
    cluster = _Named("cluster.yaml")
    """The cluster profile with every default written out."""
    plan = _Named("plan.json")
    """The plan: stages, rank layout, servers and build steps."""
    lock = _Named("lock.json")
    """Everything the run is made of, without secrets: ``submit`` can repeat it."""

    # What is run
    scripts = _Named("scripts")
    """Folder of the rendered scripts."""
    runtime = _Named("runtime.pyz")
    """The zipapp with the code that runs inside the job."""
    repository = _Named("repository")
    """Triton's model repository."""
    repository_recipe = _Named("repository.json")
    """Recipe of the model repository, for upstream's templates."""
    front = _Named("front.json")
    """Configuration of a disaggregated run's front, without the addresses that are known only at run time."""
    front_started = _Named("front.yaml")
    """Configuration with which the front was started."""
    servers_key = _Named("servers.key")
    """Key shared by the servers and the front of a disaggregated run (mode 0600)."""
    engine = _Named("engine")
    """Link to the engine in the cache, once the engine is built or found."""
    build_recipe = _Named("build.json")
    """The steps of the build as data, for the engine cache."""
    node_checks = _Named("node_checks.json")
    """Checks that the job of ``doctor --on-nodes`` makes."""
    node_findings = _Named("node_findings")
    """Folder of the findings of the job of ``doctor --on-nodes``."""
    node_checks_over = _Named("node_checks.over")
    """Exists once the job of ``doctor --on-nodes`` has finished its checks."""

    # What the jobs write
    logs = _Named("logs")
    """Folder of the logs."""
    events = _Named("events")
    """Folder of the event files, one for each stage that writes events."""
    ranks = _Named("ranks")
    """Folder of the rank records."""
    endpoint = _Named("endpoint.json")
    """Address and access of the server; exists only while the server is ready."""
    stop_request = _Named("stop.json")
    """The request to stop the server, with its requester; exists once there was one."""
    heartbeat = _Named("companion.alive")
    """Touched every few seconds while the companion lives."""
    jobs = _Named("jobs.json")
    """The submission record: job IDs by stage, and whether the submission is complete."""
    commands_lock = _Named(".lock")
    """Lock of the command that submits, resumes, cancels or removes the run."""
    ended = _Named("ended.json")
    """The end of the run for lists of runs, so that Slurm need not be asked again."""
    submitit = _Named("submitit")
    """Folder for submitit's own files (local profile)."""
    attempts = _Named("attempts")
    """Folder of the files of earlier attempts, by number; exists once the run was resumed or renewed."""
    key = _Named("key")
    """The key of the run's server (mode 0600)."""
    guests = _Named("guests.json")
    """The guests who may use the server, without their keys."""
    visits = _Named("visits.json")
    """The guests whom the proxy admits now, and the number of requests of each client."""
    certificate = _Named("certificate.crt")
    """The proxy's certificate."""
    certificate_key = _Named("certificate.pem")
    """The certificate with its private key (mode 0600), for HAProxy."""
    instances = _Named("instances.json")
    """The state of each instance, from the supervisor."""
    renewal = _Named("renewal.json")
    """The serving job and the job that waits for its end; exists only with ``serve.renew``."""
    bad_nodes = _Named("bad_nodes.json")
    """Nodes that ended servers of the run; exists only once there was one."""

    # Measurements
    results = _Named("results")
    """Folder of answers and measurements."""
    answer = _Named("results/request.json")
    """The companion's first request, and the model's answer over each protocol."""
    logits = _Named("results/logits.npz")
    """Logits of the companion's first request and its answer, if the job file asks for them."""
    benchmark_progress = _Named("results/progress.json")
    """Progress of the companion's benchmark."""
    report = _Named("report.html")
    """The report, one HTML file."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()

    def __repr__(self) -> str:
        return f"RunPaths({str(self.folder)!r})"

    @property
    def run_id(self) -> str:
        """The folder's name, unique among the runs in the same folder."""
        return self.folder.name

    def sbatch(self, stage: str) -> Path:
        """Return the batch script of one stage."""
        return self.scripts / f"{stage}.sbatch"

    def script(self, name: str) -> Path:
        """Return a helper script that a batch script runs, e.g. ``rank``."""
        return self.scripts / f"{name}.sh"

    def staged_model(self, folder: str, model: str) -> str:
        """Return the link to the run's model below ``folder``, on each node's own disk."""
        run = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:12]
        return f"{folder}/trtllm-hpc-{run}/{Path(model).name}"

    def side_output(self, step: str) -> Path:
        """Return the link to the output of a build step other than the engine's, e.g. ``lora``."""
        return self.folder / step

    def converted_adapter(self, name: str) -> Path:
        """Return the folder of a LoRA adapter that the build has converted."""
        return self.side_output("lora") / name

    def llm_api(self, role: str | None = None) -> Path:
        """Return the LLM API's configuration for ``trtllm-serve``; ``role``: a disaggregated run's phase."""
        return self.folder / ("llm_api.yaml" if role is None else f"llm_api.{role}.yaml")

    def server(self, role: str | None = None) -> Path:
        """Return the specification of the server; ``role``: the phase of a disaggregated run."""
        return self.folder / ("server.json" if role is None else f"server.{role}.json")

    def batch_log(self, stage: str) -> Path:
        """Return the log of the batch script itself."""
        return self.logs / f"{stage}.out"

    def rank_log(self, step: str, rank: int | str) -> Path:
        """Return the log of one rank of a step; pass ``"%t"`` for srun's pattern."""
        return self.logs / f"{step}_{rank}.out"

    def stage_events(self, stage: str) -> Path:
        """Return the events of a stage, one JSON object a line.

        Each stage has a file of its own, because stages run on different nodes, and on NFS lines are lost if
        two hosts append to one file.
        """
        return self.events / f"{stage}.jsonl"

    def proxy(self, node: int) -> Path:
        """Return the configuration of HAProxy on a node, given by its number within the job."""
        return self.scripts / (f"haproxy.node{node}.cfg" if node else "haproxy.cfg")

    def proxy_ports(self, node: int) -> Path:
        """Return the file in which the proxy on a further node records its address and ports."""
        return self.ranks / f"proxy_{node}.json"

    def guest_key(self, name: str) -> Path:
        """Return the file with the key of a guest (mode 0600)."""
        return self.folder / "guests" / f"{name}.key"

    def ready_record(self, step: str) -> Path:
        """Return the file that exists while an instance is ready."""
        return self.ranks / f"{step}.ready.json"

    def rank_record(self, step: str, rank: int) -> Path:
        """Return the record of a rank (host, process, end), which the rank's supervisor writes."""
        return self.ranks / f"{step}_{rank}.json"

    def rank_heartbeat(self, step: str, rank: int) -> Path:
        """Return the file that a rank's supervisor rewrites every few seconds while it lives."""
        return self.ranks / f"{step}_{rank}.alive"

    def gpu_readings(self, step: str, rank: int | str) -> Path:
        """Return the file with power and state of a rank's GPUs, a line each second for each GPU."""
        return self.ranks / f"{step}_{rank}.gpus.jsonl"

    def failure_reason(self, step: str, rank: int) -> Path:
        """Return the file into which a rank's server writes the reason of its failure, if it knows."""
        return self.ranks / f"{step}_{rank}.reason"

    def measurement(self, name: str) -> MeasurementPaths:
        """Return the files of a measurement."""

        def file(ending: str) -> Path:
            return self.results / f"{name}.{ending}"

        return MeasurementPaths(
            summary=file("json"),
            requests=file("jsonl"),
            workload=file("workload.jsonl"),
            samples=file("metrics.jsonl"),
            table=file("txt"),
            report=self.report if name == COMPANION_MEASUREMENT else file("html"),
        )

    def evaluation(self, name: str = COMPANION_EVALUATION, kind: str = "json") -> Path:
        """Return an evaluation's summary, or ``answers.jsonl``, ``scores.json`` or ``samples.jsonl``."""
        return self.results / "evaluations" / f"{name}.{kind}"

    def measurements(self) -> list[str]:
        """Return the names of the measurements, the newest first."""
        files = [file for file in self.results.glob("*.jsonl") if not file.stem.endswith(RESERVED_ENDINGS)]
        return [file.stem for file in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)]

    def new_attempt(self) -> RunPaths:
        """Make the next folder in ``attempts/``, and return its paths; earlier ones may have been removed."""
        self.attempts.mkdir(exist_ok=True)
        numbers = [int(folder.name) for folder in self.attempts.iterdir() if folder.name.isdecimal()]
        attempt = RunPaths(self.attempts / str(1 + max(numbers, default=0)))
        attempt.folder.mkdir()
        return attempt

    def make_folders(self) -> None:
        """Make the run folder (mode 0700) and the folders in it.

        Raises FileExistsError: the run folder already exists.
        """
        for parent in reversed(self.folder.parents):
            # Not writable for others, whatever the umask: who can write to the folder of runs can replace a
            # run.
            parent.mkdir(mode=0o755, exist_ok=True)
        self.folder.mkdir(mode=0o700)
        for folder in (self.scripts, self.repository, self.logs, self.events, self.ranks, self.results):
            folder.mkdir()


@contextmanager
def locked(lock: Path, refusal: Exception, *, wait_s: float = 0.0) -> Iterator[bool]:
    """Lock a file, which is made if missing, against processes on all machines.

    Yields whether the file system has locks; without locks (Lustre with ``noflock``) nobody is kept out. On
    NFS, flock(2) locks the file on the server, which releases the lock of a lost machine. The kernel releases
    the lock when the process ends, for whatever reason.

    Raises ``refusal`` if another process holds the lock for longer than ``wait_s``, or has removed the file;
    OSError if the file cannot be made.
    """
    deadline = time.monotonic() + wait_s
    try:
        file = lock.open("a")
    except FileNotFoundError:
        raise refusal from None
    with file:
        has_locks: bool | None = None
        while has_locks is None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                has_locks = True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise refusal from None
                time.sleep(0.1)
            except OSError:
                has_locks = False
        if not (lock.exists() and os.path.samestat(lock.stat(), os.fstat(file.fileno()))):
            raise refusal
        yield has_locks


_ASIDE = ".aside"
"""Suffix of a temporary file or folder that replaces its target."""
_ASIDE_NAME = re.compile(rf"\..+\.(?P<job>[^.]*)\.[^.]+{re.escape(_ASIDE)}")
_ABANDONED_S = 3600.0
"""Seconds after which an unchanged temporary file of a command counts as abandoned."""


def _aside_prefix(path: Path) -> str:
    """Return the prefix of a temporary file: the name of its target, and the writer's job ID, if any."""
    return f".{path.name}.{os.environ.get('TRTLLM_HPC_JOB_ID', '')}."


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of killed writers from the folder of a run whose jobs have all ended.

    Files of commands outside the jobs, which may still be writing, are removed once they are an hour old.
    """
    for parent, folders, files in os.walk(folder):  # unreadable folders are skipped
        for match in filter(None, map(_ASIDE_NAME.fullmatch, (*folders, *files))):
            aside = Path(parent, match[0])
            with suppress(OSError):  # another user's run may not be writable
                if not match["job"] and time.time() - aside.lstat().st_mtime < _ABANDONED_S:
                    continue
                try:
                    aside.unlink()
                except IsADirectoryError:
                    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def write_aside(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces ``path`` at the end, unless there was an error.

    Readers see either the complete old or the complete new file, even if a process is killed (``os.replace``
    is atomic within a file system).
    """
    handle, name = tempfile.mkstemp(prefix=_aside_prefix(path), suffix=_ASIDE, dir=path.parent)
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        aside.replace(path)
    except OSError as error:
        # The error of a write to a full disk names no file.
        error.filename = error.filename or str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def write_folder_aside(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder (mode 0700) that replaces ``folder`` at the end, unless there was an error."""
    aside = Path(tempfile.mkdtemp(prefix=_aside_prefix(folder), suffix=_ASIDE, dir=folder.parent))
    old = aside.with_name(f"{aside.stem}-old{_ASIDE}")
    try:
        yield aside
        if folder.exists():
            folder.rename(old)
        aside.rename(folder)
    except BaseException:  # restore the old folder, after Ctrl-C, too
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write ``text`` as UTF-8, atomically."""
    with write_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")
        aside.chmod(mode)


def write_json(path: Path, record: Any) -> None:
    """Write a JSON document, atomically."""
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any | None:
    """Read a JSON document; ``None`` if the file is missing.

    Raises ValueError: the file exists, but is not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def serve_steps(count: int) -> list[str]:
    """Return the names of the steps of ``count`` instances: ``serve``, or ``serve.0``, ``serve.1``..."""
    return ["serve"] if count == 1 else [f"serve.{instance}" for instance in range(count)]


def preflight_step(component: int) -> str:
    """Return the name of the preflight's job step on the nodes of a component."""
    return f"preflight.{component}" if component else "preflight"


SWEEPS = "sweeps"
"""Name of the folder of sweeps, in the folder of runs."""
RUNS_VARIABLE = "TRTLLM_HPC_RUNS"
"""Environment variable with the folder of runs."""
ENGINES_VARIABLE = "TRTLLM_HPC_ENGINES"
"""Environment variable with the folder of the engine cache."""


def own_runs_folder() -> Path | None:
    """Return the user's folder of runs: ``$TRTLLM_HPC_RUNS``, else ``runs_folder`` in the user's file.

    Raises ConfigError: the file is wrong.
    """
    file, folder = user_config_file(), os.environ.get(RUNS_VARIABLE)
    if not folder and file.is_file():
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        try:
            settings = toml.loads(file.read_text(encoding="utf-8"))
            folder = os.path.expanduser(settings["runs_folder"])  # noqa: PTH111
            if not folder.startswith("/"):
                raise ValueError("runs_folder is not an absolute path")
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = 'write one line: runs_folder = "/scratch/me/runs"'
            raise ConfigError([Diagnostic("bad-value", f"{error}", str(file), hint=hint)]) from None
    return Path(folder).absolute() if folder else None


def default_runs_folder() -> Path:
    """Return the folder in which commands look for runs: the user's folder of runs, else ``./runs``."""
    return own_runs_folder() or Path("runs").absolute()


def user_cache() -> Path:
    """Return the user's folder of files that can be made again: in ``$XDG_CACHE_HOME``, else ``~/.cache``.

    Raises RuntimeError: the user has no home.
    """
    return _user_folder("XDG_CACHE_HOME", ".cache")


def user_data() -> Path:
    """Return the user's folder of files to keep: in ``$XDG_DATA_HOME``, else ``~/.local/share``.

    Raises RuntimeError: the user has no home.
    """
    return _user_folder("XDG_DATA_HOME", ".local/share")


def _user_folder(variable: str, below_home: str) -> Path:
    chosen = os.environ.get(variable, "")
    # Relative values must be ignored (XDG Base Directory Specification).
    base = Path(chosen) if chosen.startswith("/") else Path.home() / below_home
    return base / "trtllm-hpc"


def kept_in_cache(name: str, make: Callable[[], str]) -> str:
    """Return a text from the user's cache folder; if it is missing, make it and store it there.

    ``name`` is the file below :func:`user_cache`; it must contain everything that the text depends on.
    """
    cached: Path | None = None
    with suppress(OSError, RuntimeError, UnicodeDecodeError):
        cached = user_cache() / name
        return cached.read_text(encoding="utf-8")
    text = make()
    if cached is not None:
        with suppress(OSError):  # without a writable cache, the text is made again each time
            cached.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_text(cached, text)
    return text


def engines_folder(named: str | None, runs_folder: Path) -> Path:
    """Return the engine cache: ``named``, else ``$TRTLLM_HPC_ENGINES``, else ``engines`` beside the runs."""
    beside = runs_folder.absolute().parent / "engines"
    return Path(named or os.environ.get(ENGINES_VARIABLE) or beside).absolute()


def call_name(paths: RunPaths) -> str:
    """Return the run's name for a command line, quoted for the shell.

    This is the run ID if the run is in the default folder of runs, else the whole path.
    """
    at_home = paths.folder.parent == default_runs_folder()
    return shlex.quote(paths.run_id if at_home else str(paths.folder))
