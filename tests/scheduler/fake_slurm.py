"""A strict fake of Slurm's commands on PATH, and what a test may ask of it."""

from __future__ import annotations

import hashlib
import py_compile
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.scheduler import fake_commands
from tests.scheduler.fake_commands import COMMANDS
from trtllm_hpc.paths import RunPaths

CONTROLLER_GONE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


TIMED_OUT = (
    "echo sbatch: error: Batch job submission failed: Socket timed out on send/recv operation >&2; exit 1"
)
"""For :func:`after_sbatch`."""


def after_sbatch(fake: FakeSlurm, line: str, *, without: str = "--none=*") -> None:
    """Let a site's ``sbatch`` do something once the job is queued, with its answer in ``$said``.

    ``without`` is a pattern of options that the site takes away.
    """
    sbatch = fake.bin / "sbatch"
    real = sbatch.read_text().splitlines()[1].removeprefix("exec ").replace('"$@"', '"${words[@]}"')
    takes = f'words=(); for word in "$@"; do case $word in {without}) ;; *) words+=("$word");; esac; done'
    sbatch.write_text(f"#!/bin/bash\n{takes}\nsaid=$({real})\ncode=$?\n{line}\necho $said\nexit $code\n")


@cache
def _program() -> bytes:
    """The commands, compiled: Python keeps nothing of a script that it was started with."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "fake_commands.pyc"
        py_compile.compile(fake_commands.__file__, str(compiled), doraise=True)
        return compiled.read_bytes()


class FakeSlurm:
    """One fake cluster in a folder.

    ``bin`` holds the commands. Job ids begin at 101.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self._file = folder / "slurm.state"
        self._write(
            {
                "next_id": 101,
                "jobs": {},
                "calls": [],
                "violations": [],
                "troubles": {},
                "accounting": True,
                "partitions": {"batch": {}, "cpu": {}},
                "accounts": ["mine"],
                "nodes": ["n1", "n2", "n3"],
                "drained": {},
            }
        )
        program = folder / "fake_commands.pyc"
        program.write_bytes(_program())
        for name in COMMANDS:
            words = shlex.join([sys.executable, "-I", "-S", str(program), name, str(self._file)])
            (self.bin / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (self.bin / name).chmod(0o755)

    def _read(self) -> dict[str, Any]:
        return fake_commands.read(str(self._file))

    def _write(self, record: dict[str, Any]) -> None:
        fake_commands.write(str(self._file), record)

    # What happens in the cluster ------------------------------------------------------

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        record = self._read()
        yield record
        self._write(record)

    def add(self, state: str, **facts: Any) -> str:
        """A job that somebody submitted; ``exit``, ``nodes``, ``reason`` and so on as Slurm words them."""
        with self._changed() as record:
            job = str(record["next_id"])
            record["next_id"] += 1
            record["jobs"][job] = {"state": state, **facts}
        return job

    def assign(self, paths: RunPaths, jobs: Mapping[str, str]) -> None:
        """Have the user submitted these jobs as the stages of a run."""
        for stage, job in jobs.items():
            facts = {"name": f"demo-{stage}", "script": str(paths.sbatch(stage)), "user": "ana"}
            self.set(job, self.state(job), **facts, output=str(paths.batch_log(stage)), folder="/home/user")

    def set(self, job: str, state: str, **facts: Any) -> None:
        """Move a job to another state."""
        with self._changed() as record:
            record["jobs"][job].update(state=state, **facts)

    def forget(self, job: str, *, accounting: bool = True) -> None:
        """The controller's MinJobAge is over; with ``accounting`` sacct forgets it as well."""
        self.set(job, self.state(job), forgotten=True, unaccounted=accounting)

    def configure(self, **settings: Any) -> None:
        """Change the cluster. ``accounting``: whether sacct answers."""
        with self._changed() as record:
            record.update(settings)

    def drain(self, node: str, why: str = "none", at: str = "Unknown") -> None:
        """Take a node out of service, at a moment in seconds since the epoch."""
        with self._changed() as record:
            record["drained"][node] = (at, why)

    def limit(self, partition: str, **fields: str | int) -> None:
        """Give a partition limits, under Slurm's names for them."""
        with self._changed() as record:
            record["partitions"][partition] = fields

    def trouble(
        self, command: str, words: str | None, *, after_s: float = 0, once: str | None = None
    ) -> None:
        """The next unanswered call of ``command`` is answered late, and refused if there are ``words``.

        With ``once`` it is the next call after one of that command.
        """
        with self._changed() as record:
            record["troubles"].setdefault(command, []).append([words, after_s, once])

    # What was asked of it -------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """What is known of each job; of a submitted script also ``sha256``."""
        found: dict[str, dict[str, Any]] = self._read()["jobs"]
        for facts in found.values():
            if "content" in facts:
                facts["sha256"] = hashlib.sha256(facts.pop("content")).hexdigest()
        return found

    @property
    def violations(self) -> list[str]:
        found: list[str] = self._read()["violations"]
        return found

    def calls(self, *commands: str) -> list[list[str]]:
        """Command lines so far, of these commands or of all."""
        return [call for call in self._read()["calls"] if not commands or call[0] in commands]

    def state(self, job: str) -> str:
        return str(self.jobs[job]["state"])
