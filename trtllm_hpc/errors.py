"""The package's errors, each with its exit code, and the diagnostic: one finding about a file or a machine.

Every error has a sentence about the fault and, if possible, the next command to type; it is never shown with
a traceback. Standard library only, because this module also travels into the job.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal


class ExitCode(enum.IntEnum):
    """Exit code of the process, by which scripts can tell what failed."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    """Click's own code for a wrong command line."""
    CONFIG = 3
    """The job file or the cluster profile is wrong."""
    RENDER = 4
    SUBMISSION = 5
    BUILD = 6
    START = 7
    """The server, or the preflight before it, did not start or died."""
    READINESS = 8
    """The server started but was not ready in time."""
    REQUEST = 9
    MEASUREMENT = 10
    """The benchmark ran but its figures are not valid."""
    CANCELLED = 11
    LOST = 12
    """Slurm does not know a job that was submitted."""
    SANDBOX = 13
    RUN = 14
    """No such run, or its folder cannot be read."""
    SANDBOX_IMPOSSIBLE = 15
    """This machine cannot run a sandbox: no root, no namespaces, packages missing."""
    UNREACHABLE = 16
    """A server cannot be reached, or was lost before it had answered."""
    TIMEOUT = 17
    """A server did not answer a request in time."""
    ACCURACY = 18
    """The model answers worse than the gate of its evaluation allows."""
    INTERRUPTED = 130


State = Literal["ok", "warn", "fail", "unknown"]
OK: State = "ok"
WARN: State = "warn"
FAIL: State = "fail"
UNKNOWN: State = "unknown"
"""``warn``: works, but not as the user may expect. ``unknown``: cannot be judged here."""

MOST_CHOICES = 20
"""Longest list of choices that is shown beside a hint."""


@dataclass(frozen=True)
class Diagnostic:
    """One fact about a job file, a cluster profile, a run or a machine, usually a fault.

    Tests and scripts compare ``code``; people read ``message`` and ``hint``.
    """

    code: str
    """Short stable name, e.g. ``unknown-key``; for a check's finding, the check's ID."""
    message: str
    file: str = ""
    """Source of the value: a path, ``--set`` or ``built-in defaults``; empty without a source."""
    field: str = ""
    """Dotted path of the key, e.g. ``engine.tensor_parallel``; empty for the whole file."""
    line: int | None = None
    value: Any = None
    choices: tuple[str, ...] = ()
    hint: str | None = None
    """Advice, or the next command to type."""
    state: State = FAIL

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [": ".join(part for part in (place, self.field, self.message) if part)]
        if self.hint:
            parts.append(f"    next: {self.hint}")
        if self.choices and not (self.hint and len(self.choices) > MOST_CHOICES):
            parts.append(f"    choices: {', '.join(self.choices)}")
        return "\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return the diagnostic as plain JSON types; a value of another type becomes its ``repr``."""
        record = asdict(self)
        if not isinstance(self.value, (str, int, float, bool, type(None))):
            record["value"] = repr(self.value)
        return record


def ok(message: str) -> Diagnostic:
    """Return a check's result "ok"; the runner of checks adds the code."""
    return Diagnostic("", message, state=OK)


def warn(message: str, hint: str) -> Diagnostic:
    """Return a check's result "warn": this works, but not as the user may expect."""
    return Diagnostic("", message, hint=hint, state=WARN)


def fail(message: str, hint: str) -> Diagnostic:
    """Return a check's result "fail": this cannot work."""
    return Diagnostic("", message, hint=hint)


def unknown(message: str, hint: str | None = None) -> Diagnostic:
    """Return a check's result "unknown": this cannot be judged here."""
    return Diagnostic("", message, hint=hint, state=UNKNOWN)


class TrtllmHpcError(Exception):
    """Base class of the package's errors.

    Args:
        message: one or more sentences for the user.
        hint: what to do, or the next command to type.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init_subclass__(cls, exit_code: ExitCode | None = None) -> None:
        cls.exit_code = cls.exit_code if exit_code is None else exit_code

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  next: {self.hint}"


class ConfigError(TrtllmHpcError, exit_code=ExitCode.CONFIG):
    """All faults of the files or the settings, in one error."""

    def __init__(self, diagnostics: Sequence[Diagnostic], *, hint: str | None = None) -> None:
        self.diagnostics = tuple(diagnostics)
        count = len(self.diagnostics)
        lines = [f"{count} problem{'s' if count != 1 else ''} found."]
        # If the next diagnostic has the same hint and choices, show them only once, with the last of these.
        for fault, following in zip(self.diagnostics, [*self.diagnostics[1:], None], strict=True):
            again = following is not None and (fault.hint, fault.choices) == (
                following.hint,
                following.choices,
            )
            lines.append(str(replace(fault, hint=None, choices=()) if again else fault))
        super().__init__("\n".join(lines), hint=hint)


class RenderError(TrtllmHpcError, exit_code=ExitCode.RENDER):
    """A value cannot be written into a script, or the run folder cannot be made."""


class SubmissionError(TrtllmHpcError, exit_code=ExitCode.SUBMISSION):
    """Slurm refused a script, or its commands cannot be run; ``transient``: a later attempt may succeed."""

    def __init__(self, message: str, *, hint: str | None = None, transient: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.transient = transient


class UnclearSubmission(SubmissionError, exit_code=ExitCode.SUBMISSION):
    """It is not known whether Slurm has accepted a script."""


class BuildFailed(TrtllmHpcError, exit_code=ExitCode.BUILD):
    """The build stage ended without an engine."""


class StartFailed(TrtllmHpcError, exit_code=ExitCode.START):
    """The preflight failed, or a rank of the server died."""


class NotReady(TrtllmHpcError, exit_code=ExitCode.READINESS):
    """The endpoint was not published, or did not answer, within its time limit."""


class RequestFailed(TrtllmHpcError, exit_code=ExitCode.REQUEST):
    """A request was refused or answered wrongly."""


class InvalidRequest(RequestFailed, exit_code=ExitCode.USAGE):
    """A request was not sent, because the served model cannot take it."""


class RequestRefused(RequestFailed):
    """The served model answered with an error."""


class ServerUnreachable(RequestFailed, exit_code=ExitCode.UNREACHABLE):
    """The server cannot be reached, or was lost before any part of the answer arrived."""


class AnswerTimedOut(RequestFailed, exit_code=ExitCode.TIMEOUT):
    """The server did not answer in time."""


class InvalidMeasurement(TrtllmHpcError, exit_code=ExitCode.MEASUREMENT):
    """The benchmark ran, but its figures are not valid."""


class AccuracyTooLow(TrtllmHpcError, exit_code=ExitCode.ACCURACY):
    """The model answers worse than the gate of its evaluation allows."""


class RunCancelled(TrtllmHpcError, exit_code=ExitCode.CANCELLED):
    """A job of the run was cancelled."""


class JobLost(TrtllmHpcError, exit_code=ExitCode.LOST):
    """A submitted job is in neither squeue nor sacct nor scontrol."""


class SandboxError(TrtllmHpcError, exit_code=ExitCode.SANDBOX):
    """The one-machine Slurm cannot start here, or is not up."""


class SandboxImpossible(SandboxError, exit_code=ExitCode.SANDBOX_IMPOSSIBLE):
    """This machine cannot run a sandbox; nothing was started."""


class RunNotFound(TrtllmHpcError, exit_code=ExitCode.RUN):
    """No run has that name."""
