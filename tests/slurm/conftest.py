"""A sandbox, and this package installed from its wheel for an ordinary user of it."""

from __future__ import annotations

import functools
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.schemas.check import documented
from tests.sharing import engine_for, made_once, sandbox_name
from tests.waiting import eventually
from trtllm_hpc.errors import SandboxError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import RankRecord
from trtllm_hpc.sandbox import Node, Sandbox, requirements
from trtllm_hpc.sandbox.hosts import JOB_IDS

ROOT = Path(__file__).parent.parent.parent
USER = pwd.getpwnam("nobody")
FEW: dict[str, Any] = {
    "requests": 12,
    "concurrency": 2,
    "max_tokens": 4,
    "min_requests": 1,
    "min_window_seconds": 0.01,
    "max_late_share": 1.0,
}
"""A short benchmark whose figures are no matter of the test."""


@functools.cache
def obstacle() -> str | None:
    """Why no sandbox can be started here, ``None`` if one can."""
    try:
        for check in (requirements.check_platform, requirements.check_root, requirements.check_packages):
            check()
    except SandboxError as error:
        return error.message
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a sandbox where none can be started."""
    if reason := obstacle():
        pytest.skip(reason)


@dataclass
class Person:
    """An ordinary user in front of the sandbox, with the installed wheel."""

    sandbox: Sandbox
    bin: Path
    folder: Path
    """A folder of theirs that every node sees, with a space and quotes in its name."""
    profile: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: pwd.struct_passwd = USER

    def command(self, *words: str | Path) -> subprocess.Popen[str]:
        """Start any command as this user."""
        identity = ["setpriv", f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups"]
        environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            # Ranks of tests side by side share two processors.
            "OMP_NUM_THREADS": "1",
            **self.environment,
        }
        return subprocess.Popen(
            [*identity, *map(str, words)],
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str | Path, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
        """Run any command as this user to its end."""
        with self.command(*words) as process:
            output, errors = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def types(self, *words: str | Path, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
        """Run ``trtllm-hpc`` as this user to its end."""
        return self.run("trtllm-hpc", *words, timeout_s=timeout_s)

    def slurm(self, *words: str | Path) -> str:
        """Run one of Slurm's commands as this user; it must succeed."""
        answer = self.run("env", f"SLURM_CONF={self.sandbox.slurm_conf}", *words)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def job(self, name: str, **sections: Any) -> Path:
        """Write a job file."""
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps({"name": name, **sections}), encoding="utf-8")  # JSON is YAML
        return file

    def submit(self, job: Path, *words: str, wait: bool = True, exit_code: int = 0) -> tuple[str, RunPaths]:
        """Submit a job file; returns what was printed, and the run."""
        options = ["--wait"] if wait else []
        answer = self.types("submit", job, "--cluster", self.profile, *options, *words)
        said = answer.stdout + answer.stderr
        assert answer.returncode == exit_code, said
        folders = [line for line in answer.stdout.splitlines() if line.startswith("  folder ")]
        assert folders, said
        return said, RunPaths(folders[0].removeprefix("  folder "))

    def serves(self, job: Path, *words: str) -> RunPaths:
        """Submit a job file; returns its run once that serves."""
        _, run = self.submit(job, *words, wait=False)
        assert eventually(run.endpoint.exists, 90), self.status(run)
        return run

    def render(self, job: Path, *words: str) -> tuple[str, RunPaths]:
        """Render a job file; returns what was printed, and the run."""
        answer = self.types("render", job, "--cluster", self.profile, *words)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout, RunPaths(answer.stdout.splitlines()[0].removeprefix("rendered "))

    def cancel(self, run: RunPaths) -> None:
        """Cancel a run, which may leave nothing."""
        cancelled = self.types("cancel", run.folder)
        assert cancelled.returncode == 0, cancelled.stderr
        self.has_nothing_left()

    def status(self, run: RunPaths) -> dict[str, Any]:
        """``trtllm-hpc status --json``."""
        answer = self.types("status", run.folder, "--json")
        assert answer.returncode == 0, answer.stderr
        record: dict[str, Any] = documented("status", answer.stdout)
        return record

    def failed(self, run: RunPaths, within_s: float = 15) -> dict[str, Any]:
        """Return the run's status once it has failed."""
        assert eventually(lambda: self.status(run)["state"] == "failed", within_s), self.status(run)
        return self.status(run)

    def rank(self, run: RunPaths, rank: int) -> RankRecord:
        """Return what a rank of the server has recorded."""
        record = RankRecord.read(run.rank_record("serve", rank))
        assert record is not None
        return record

    def node(self, name: str) -> Node:
        """Return the sandbox's node of this name."""
        return next(node for node in self.sandbox.nodes if node.name == name)

    def jobs_in_queue(self, *options: str) -> list[str]:
        """Ids of this user's jobs that have not ended."""
        return self.slurm("squeue", "--noheader", "--format=%i", "--me", *options).split()

    def has_no_jobs(self) -> bool:
        """Whether this user's jobs have ended; Slurm lists a job for a moment after its last step."""
        return bool(eventually(lambda: not self.jobs_in_queue(), 60))

    def has_nothing_left(self, within_s: float = 15) -> None:
        """Assert that neither a job nor anything of one is left."""
        assert self.has_no_jobs(), self.slurm("squeue")
        assert eventually(lambda: self.leftovers() == [], within_s), self.leftovers()

    def leftovers(self) -> list[str]:
        """Processes, shared memory and scratch folders that this sandbox's jobs left."""
        layout = self.sandbox.layout
        assert layout is not None
        ours = range(layout.first_job_id, layout.first_job_id + JOB_IDS)
        scratch = [re.match(r"trt(\d+)_", file.name) for file in Path("/tmp").iterdir()]
        found = [f"/tmp: {match.string}" for match in scratch if match and int(match[1]) in ours]
        for node in self.sandbox.nodes:
            found += [f"{node.name}: {process.arguments}" for process in user_processes(node)]
            names = node.run(["ls", "/dev/shm"]).split()
            found += [f"{node.name}: {name}" for name in names if name.startswith("trt")]
        return found


def bare_server(folder: Path, *words: str, **serve: Any) -> dict[str, Any]:
    """Sections of a job whose server is ready at once; ``words`` are more of ``bare_server.py``'s."""
    program = shutil.copy(Path(__file__).with_name("bare_server.py"), folder)
    model = folder / "model of a bare server"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}", encoding="utf-8")
    (model / "model.safetensors").write_bytes(bytes(4096))
    return {
        "model": {"path": str(model)},
        "engine": {"backend": "command"},
        "serve": {"command": [sys.executable, str(program), "{address}", "{port}", *words], **serve},
        "companion": {"enabled": False},
    }


def user_processes(node: Node) -> list[Any]:
    """Processes on a node that run as the ordinary user."""
    return [process for process in node.processes() if _uid(process.pid) == USER.pw_uid]


def _uid(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except FileNotFoundError:
        return -1


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy: building beside the code would leave build/ and egg-info there."""
    source = folder / "source"
    source.mkdir(parents=True)
    names = ["trtllm_hpc", "templates", "jobs", "slurm"]
    for name in (*names, "setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"]
    subprocess.run([*command, "-w", str(folder), str(source)], check=True)
    return next(folder.glob("*.whl"))


def make_environment(environment: Path, wheel: Path) -> None:
    """Make an environment with the wheel; its dependencies, being large, are those of the tests.

    ``pip check`` fails if the wheel asks for a package, or a version, that is not there.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    site = next((environment / "lib").glob("python3*/site-packages"))
    packages = [folder for folder in sys.path if folder.endswith("site-packages")]
    (site / "zz-packages-of-the-tests.pth").write_text("\n".join(packages) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    pip.append("--disable-pip-version-check")
    subprocess.run([*pip, "install", "-q", "--no-deps", "--ignore-installed", str(wheel)], check=True)
    subprocess.run([*pip, "check"], check=True)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an environment with the wheel in it, in a folder with a space in its name."""

    def make(environment: Path) -> None:
        make_environment(environment, build_wheel(tmp_path_factory.mktemp("wheel")))

    return made_once("an environment", make) / "bin"


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A folder of the ordinary user on the file system that the nodes share (/tmp is each node's own)."""
    top = Path(tempfile.mkdtemp(prefix="trtllm-hpc-test-", dir="/var/tmp"))
    top.chmod(0o755)
    folder = top / 'it\'s a "home" é'
    folder.mkdir()
    shutil.chown(folder, USER.pw_uid, USER.pw_gid)
    yield folder
    shutil.rmtree(top)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Sandbox]:
    """Four nodes with four GPUs each, for all tests of a process."""
    made = Sandbox(sandbox_name("e2e"))
    made.up(4, 4)
    yield made
    made.down()


@pytest.fixture
def person(cluster: Sandbox, installed: Path, home: Path) -> Iterator[Person]:
    """The ordinary user; after the test none of their jobs may be left."""
    profile = home / "cluster.yaml"
    profile.write_text(
        "\n".join(
            [
                "name: sandbox-test",
                f"slurm_conf: {cluster.slurm_conf}",
                "partition: batch",
                "gpus_per_node: 4",
                "triton: {server: pytriton}",
                f"runs_folder: {json.dumps(str(home / 'runs'))}",
                # Of this test's own: what another test has built would leave out the build stage.
                f"engines_folder: {json.dumps(str(home / f'engines {time.monotonic_ns()}'))}",
            ]
        )
    )
    someone = Person(cluster, installed, home, profile)
    yield someone
    # Not those that have ended, and are completing.
    left = someone.jobs_in_queue("--states=PENDING,CONFIGURING,RUNNING,SUSPENDED")
    if left:
        someone.slurm("scancel", *left)
    # The next test's jobs shall find every node idle.
    assert someone.has_no_jobs(), someone.slurm("squeue")
    assert left == [], "the test left jobs"


@pytest.fixture(scope="session")
def engine() -> Path:
    """A finished engine for two ranks, so that not every test builds one."""
    return engine_for(2)


@pytest.fixture(scope="session")
def engine_alone() -> Path:
    """A finished engine for one rank."""
    return engine_for(1)
