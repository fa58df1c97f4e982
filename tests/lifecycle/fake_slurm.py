"""A strict fake of Slurm's commands on PATH, and what a test may ask of it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.lifecycle.fake_commands import COMMANDS

CONTROLLER_GONE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


class FakeSlurm:
    """One fake cluster in a folder.

    ``bin`` holds the commands. Job ids begin at 101.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self._file = folder / "slurm.json"
        self._write(
            {
                "next_id": 101,
                "jobs": {},
                "calls": [],
                "violations": [],
                "troubles": {},
                "accounting": True,
                "partitions": ["batch", "cpu"],
                "accounts": ["mine"],
            }
        )
        script = Path(__file__).with_name("fake_commands.py")
        for name in COMMANDS:
            words = shlex.join([sys.executable, "-I", "-S", str(script), name, str(self._file)])
            (self.bin / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
            (self.bin / name).chmod(0o755)

    def _read(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self._file.read_text())
        return record

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write_text(json.dumps(record))

    # What happens in the cluster ------------------------------------------------------

    def add(self, state: str, **facts: Any) -> str:
        """A job that somebody submitted; ``exit``, ``nodes``, ``reason`` and so on as Slurm words them."""
        record = self._read()
        job = str(record["next_id"])
        record["next_id"] += 1
        record["jobs"][job] = {"state": state, **facts}
        self._write(record)
        return job

    def set(self, job: str, state: str, **facts: Any) -> None:
        """Move a job to another state."""
        record = self._read()
        record["jobs"][job].update(state=state, **facts)
        self._write(record)

    def forget(self, job: str, *, accounting: bool = True) -> None:
        """The controller's MinJobAge is over; with ``accounting`` sacct forgets it as well."""
        record = self._read()
        record["jobs"][job].update(forgotten=True, unaccounted=accounting)
        self._write(record)

    def without_accounting(self) -> None:
        record = self._read()
        record["accounting"] = False
        self._write(record)

    def trouble(self, command: str, words: str | None, *, after_s: float = 0) -> None:
        """The next unanswered call of ``command`` is answered late, and refused if there are ``words``."""
        record = self._read()
        record["troubles"].setdefault(command, []).append([words, after_s])
        self._write(record)

    # What was asked of it -------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self._read()["jobs"]
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
