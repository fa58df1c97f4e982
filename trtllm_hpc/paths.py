"""The only place that knows the name of a file in a run folder.

Standard library only: this module also travels into the job (``runtime``).
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STAGES = ("build", "serve", "companion")
"""The stages of a run, in the order of their dependencies."""

STEPS = ("build", "repository", "preflight", "serve", "companion")
"""What writes one log a rank: each stage, and the two steps before the server within ``serve``."""

COMPANION_MEASUREMENT = "benchmark"
"""Name of the companion's own measurement; any other is somebody's by hand."""

RESERVED_ENDINGS = (".workload", ".metrics", ".perfetto", ".charts")
"""No measurement's name ends with them: they tell its files apart."""


@dataclass(frozen=True)
class MeasurementPaths:
    """The files of one measurement."""

    summary: Path
    requests: Path
    """One JSON line for each request."""
    workload: Path
    """What was asked, one JSON line for each request; a later benchmark can ask the same."""
    samples: Path
    """The server's own metrics during the measurement, one JSON line for each sample."""
    table: Path
    """The table as text."""
    trace: Path
    """The requests as a time line, for Perfetto."""
    charts: Path
    """Folder of the report's charts as images."""
    report: Path

    @property
    def present(self) -> list[Path]:
        """Those of the files that are there."""
        return [file for file in vars(self).values() if file.exists()]


class RunPaths:
    """Names of everything in one run folder.

    Args:
        folder: the run folder; made absolute, not required to exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()

    def __repr__(self) -> str:
        return f"RunPaths({str(self.folder)!r})"

    @property
    def run_id(self) -> str:
        """The folder's own name; unique among the runs beside it."""
        return self.folder.name

    # What was asked and resolved -------------------------------------------------

    @property
    def spec(self) -> Path:
        """The job file with every default written out; itself a valid job file."""
        return self.folder / "spec.yaml"

    @property
    def cluster(self) -> Path:
        """The cluster profile with every default written out."""
        return self.folder / "cluster.yaml"

    @property
    def plan(self) -> Path:
        """The plan: stages, rank layout and every command line."""
        return self.folder / "plan.json"

    # What is run ------------------------------------------------------------------

    @property
    def scripts(self) -> Path:
        """Folder of the rendered scripts."""
        return self.folder / "scripts"

    def sbatch(self, stage: str) -> Path:
        """The batch script of one stage."""
        return self.scripts / f"{stage}.sbatch"

    def script(self, name: str) -> Path:
        """A helper script that a batch script runs, e.g. ``rank``."""
        return self.scripts / f"{name}.sh"

    @property
    def runtime(self) -> Path:
        """The zipapp with the code that runs inside the job."""
        return self.folder / "runtime.pyz"

    @property
    def repository(self) -> Path:
        """Triton's model repository."""
        return self.folder / "repository"

    @property
    def repository_recipe(self) -> Path:
        """How the model repository is made of upstream's templates."""
        return self.folder / "repository.json"

    @property
    def engine(self) -> Path:
        """Link to the engine in the cache, there once it is built or found."""
        return self.folder / "engine"

    def side_output(self, step: str) -> Path:
        """Link to what a step of the build has made that is no part of the engine, e.g. ``lora``."""
        return self.folder / step

    @property
    def build_recipe(self) -> Path:
        """The steps of the build as data, for the engine cache."""
        return self.folder / "build.json"

    # What the job writes ------------------------------------------------------------

    @property
    def logs(self) -> Path:
        """Folder of the logs."""
        return self.folder / "logs"

    def batch_log(self, stage: str) -> Path:
        """Output of the batch script itself."""
        return self.logs / f"{stage}.out"

    def rank_log(self, step: str, rank: int | str) -> Path:
        """Output of one rank of a step; pass ``"%t"`` for srun's pattern."""
        return self.logs / f"{step}_{rank}.out"

    @property
    def events(self) -> Path:
        """Folder of the event files, one for each writing stage."""
        return self.folder / "events"

    def stage_events(self, stage: str) -> Path:
        """What happened in one stage, one JSON object a line.

        One file a stage and not one a run: the stages run on different nodes,
        and appending to one file from two hosts loses lines on NFS.
        """
        return self.events / f"{stage}.jsonl"

    @property
    def ranks(self) -> Path:
        """Folder of the rank records."""
        return self.folder / "ranks"

    def rank_record(self, step: str, rank: int) -> Path:
        """Host, process and end of one rank; written by the rank itself."""
        return self.ranks / f"{step}_{rank}.json"

    @property
    def endpoint(self) -> Path:
        """Host and ports of the ready leader; there only once it is ready."""
        return self.folder / "endpoint.json"

    @property
    def stop_request(self) -> Path:
        """There when somebody asked the server to stop, and says who."""
        return self.folder / "stop.json"

    @property
    def heartbeat(self) -> Path:
        """Touched every few seconds while the companion lives."""
        return self.folder / "companion.alive"

    @property
    def jobs(self) -> Path:
        """The journal of the submission: job ids by stage, and whether it is complete."""
        return self.folder / "jobs.json"

    # What was measured ---------------------------------------------------------------

    @property
    def results(self) -> Path:
        """Folder of answers and measurements."""
        return self.folder / "results"

    @property
    def answer(self) -> Path:
        """The companion's first question, and the model's answer over each protocol."""
        return self.results / "request.json"

    def logits(self, name: str) -> Path:
        """``context_logits`` or ``generation_logits`` of the first question, as NumPy stores arrays."""
        return self.results / f"{name}.npy"

    def measurement(self, name: str) -> MeasurementPaths:
        """The files of the measurement of that name."""

        def file(ending: str) -> Path:
            return self.results / f"{name}.{ending}"

        return MeasurementPaths(
            summary=file("json"),
            requests=file("jsonl"),
            workload=file("workload.jsonl"),
            samples=file("metrics.jsonl"),
            table=file("txt"),
            trace=file("perfetto.json"),
            charts=file("charts"),
            report=self.report if name == COMPANION_MEASUREMENT else file("html"),
        )

    def measurements(self) -> list[str]:
        """Names of the measurements, the newest first."""
        files = [file for file in self.results.glob("*.jsonl") if not file.stem.endswith(RESERVED_ENDINGS)]
        return [file.stem for file in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)]

    @property
    def benchmark(self) -> Path:
        """Summary of the companion's benchmark."""
        return self.measurement(COMPANION_MEASUREMENT).summary

    @property
    def benchmark_requests(self) -> Path:
        """One JSON line for each request of the companion's benchmark."""
        return self.measurement(COMPANION_MEASUREMENT).requests

    @property
    def benchmark_table(self) -> Path:
        """The companion's benchmark as text."""
        return self.measurement(COMPANION_MEASUREMENT).table

    @property
    def benchmark_progress(self) -> Path:
        """How far the companion's benchmark is."""
        return self.results / "progress.json"

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.folder / "report.html"

    @property
    def submitit(self) -> Path:
        """Folder for submitit's own files (local profile)."""
        return self.folder / "submitit"

    def make_folders(self) -> None:
        """Make the run folder (mode 0700) and the folders in it.

        Raises:
            FileExistsError: the run folder is already there.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700)
        for folder in (self.scripts, self.repository, self.logs, self.events, self.ranks, self.results):
            folder.mkdir()


@contextmanager
def write_aside(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path``; on leaving without an error it takes ``path``'s place.

    Readers see the whole old file or the whole new one, whoever is killed and
    when (``os.replace`` is atomic on one file system).
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        aside.replace(path)
    except OSError as error:
        # A full disk names no file by itself.
        error.filename = error.filename or str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write ``text`` as UTF-8 so that a reader never sees half of it."""
    with write_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")
        aside.chmod(mode)


def write_json(path: Path, record: Any) -> None:
    """Write a JSON document so that a reader never sees half of it."""
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any | None:
    """Read a JSON document; ``None`` if it is not there.

    Raises:
        ValueError: the file is there but holds no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


RUNS_VARIABLE = "TRTLLM_HPC_RUNS"
"""Environment variable that names the folder of runs."""

ENGINES_VARIABLE = "TRTLLM_HPC_ENGINES"
"""Environment variable that names the cache of engines."""


def default_runs_folder() -> Path:
    """The folder of runs when nobody names one: ``$TRTLLM_HPC_RUNS``, else ``./runs``."""
    return Path(os.environ.get(RUNS_VARIABLE) or "runs")


def engines_folder(named: str | None, runs_folder: Path) -> Path:
    """The cache of engines: ``named``, else ``$TRTLLM_HPC_ENGINES``, else ``engines`` beside the runs."""
    beside = runs_folder.absolute().parent / "engines"
    return Path(named or os.environ.get(ENGINES_VARIABLE) or beside).absolute()


def call_name(paths: RunPaths) -> str:
    """What to write in a command for this run, as a word of the shell.

    The id where commands look for runs by themselves, else the whole folder.
    """
    at_home = paths.folder.parent == default_runs_folder().absolute()
    return shlex.quote(paths.run_id if at_home else str(paths.folder))
