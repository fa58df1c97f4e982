"""Tables of the releases of TensorRT-LLM, and of command lines checked against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING, Any

from trtllm_hpc.errors import FAIL
from trtllm_hpc.report.tables import NARROW, plain_table, print_table, terminal_width
from trtllm_hpc.tensorrt_llm.releases import Release, commands_of
from trtllm_hpc.tensorrt_llm.releases.commands import BY_FAMILY, families_with

if TYPE_CHECKING:
    from rich.table import Table

    from trtllm_hpc.tensorrt_llm.releases.check import Checked

_BUILDERS = ("build.py", "convert_checkpoint.py", "trtllm-build")
_NONE = "-"

OPTIONAL_COLUMNS = ("builds with", "CUDA", "TensorRT", "Python")
"""Columns of :func:`releases_table` that a narrow terminal may do without; the last goes first."""


def releases_table(releases: Sequence[Release]) -> Table:
    """One row a release, oldest first."""
    table = plain_table("release", "containers", "TensorRT", "Python", "CUDA", "builds with", "backends")
    for release in releases:
        table.add_row(
            release.version,
            ", ".join(release.tags) or _NONE,
            release.tensorrt or _NONE,
            release.python or _NONE,
            release.cuda or _NONE,
            " + ".join(builders(release)),
            ", ".join(release.backends),
        )
    return table


def builders(release: Release, family: str = "llama") -> tuple[str, ...]:
    """The programs that make an engine of a checkpoint of ``family``, in their order."""
    there = [name for name in _BUILDERS if release.command(name, family) is not None]
    # In 0.7 trtllm-build was there for a few other models, and nothing converted for it.
    return ("build.py",) if "build.py" in there else tuple(there)


def releases_record(release: Release) -> dict[str, Any]:
    """A release as plain JSON types."""
    return {
        "version": release.version,
        "tags": list(release.tags),
        "tensorrt": release.tensorrt,
        "python": release.python,
        "cuda": release.cuda,
        "backends": list(release.backends),
        "builds_with": list(builders(release)),
        "paths": asdict(release.paths),
        "source": release.source,
        "note": release.note,
    }


def release_record(release: Release) -> dict[str, Any]:
    """A release and its programs as plain JSON types."""
    programs = [
        {
            "name": command.name,
            "options": len(command.options),
            "families": list(families_with(release.version, command.name)) or None,
            "file": command.file,
            "status": command.status,
            "source": command.source,
        }
        for command in commands_of(release.version)
    ]
    return {**releases_record(release), "programs": programs}


def print_release(release: Release) -> None:
    """Print the facts of a release and its programs."""
    facts = {
        "containers": ", ".join(f"{tag}-trtllm-python-py3" for tag in release.tags) or "none is known",
        "TensorRT": release.tensorrt,
        "Python": release.python,
        "CUDA": release.cuda,
        "backends": ", ".join(release.backends),
        "examples": release.paths.examples,
        "templates": release.paths.all_models,
        "source": release.source,
        "note": release.note,
    }
    print(f"TensorRT-LLM {release.version}")
    for name, value in facts.items():
        if value is not None:
            print(f"  {name}: {value}")
    print()
    table = plain_table("program", "options", "list")
    for command in commands_of(release.version):
        table.add_row(command.name, str(len(command.options)), command.status)
    print_table(table)
    for name in BY_FAMILY:
        families = families_with(release.version, name)
        if families:
            print(
                fill(
                    f"{name} is there for: {', '.join(families)}",
                    min(terminal_width() or NARROW, NARROW),
                    initial_indent="\n",
                )
            )


def checked_record(checked: Checked) -> dict[str, Any]:
    """The verdict on a command line as plain JSON types."""
    remarks = [
        {
            "judgement": remark.code,
            "word": remark.value,
            "place": int(remark.field[1:-1]) if remark.field else None,
            "sentence": remark.message,
            "hint": remark.hint,
        }
        for remark in checked.remarks
    ]
    return {**asdict(checked), "remarks": remarks, "accepted": checked.accepted}


def print_checked(checked: Checked) -> None:
    """Print what a release refuses or ignores of a command line."""
    whose = f" for {checked.family}" if checked.family else ""
    if checked.remarks:
        table = plain_table("word", "", "why", "remedy")
        for remark in checked.remarks:
            table.add_row(remark.value, remark.code, remark.message, remark.hint or _NONE)
        print_table(table)
    refused = sum(remark.state == FAIL for remark in checked.remarks)
    verdict = f"{refused} refused" if refused else "accepted"
    listed = f" (its list of options: {checked.status})" if checked.status else ""
    print(f"{verdict} by {checked.program}{whose} of TensorRT-LLM {checked.release}{listed}")
