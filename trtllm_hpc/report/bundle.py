"""A short text about a failed run, to send with a question (``explain --bundle``)."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trtllm_hpc import __version__
from trtllm_hpc.logs.facts import LogFacts, suspicious_lines
from trtllm_hpc.logs.reading import decode, last_lines, opened, quoted, uncoloured
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import read_json
from trtllm_hpc.report.formatting import format_time

BUNDLE_BYTES = 64 << 10
"""Largest size of a bundle, so that it fits into an issue or a chat."""
_PLAN_CHARACTERS, _LAST_CHARACTERS = 12 << 10, 24 << 10
_SURROUNDINGS, _LAST_LINES, _LONGEST_LINE = 3, 8, 400
_PROMPTS = re.compile(
    r"""(["']?\b(?:prompt|prompts|messages|content|text_input|input|inputs|query|question)["']?\s*[:=]\s*)"""
    r"""("(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|\[.*\]?)"""
)
"""Prompts of users, in the notation of JSON, Python and servers' logs."""
_HOMES = re.compile(r"((?:/home|/users?|/Users|/u|/scratch|/work|/project|/data)/)([A-Za-z][\w.-]*)")
_USER = re.compile(r"(\b(?:user|USER|username|UserId|LOGNAME|User)\s*[=:]\s*)([\w.-]+)")


def bundle(
    run: RunSnapshot | None, answer: Sequence[str], facts: Sequence[LogFacts], names: Sequence[str]
) -> str:
    """Return the facts that help to explain a failed run, in at most 64 KiB of Markdown.

    The text has the answer, the most suspicious lines with context, versions, plan, timeline and the last
    lines of each log (``names``, with ``facts``), but no keys, prompts or user names.
    """
    around = [
        "\n".join([clue.quotation, *(f"    | {line}" for line in _surroundings(clue.file, clue.at))])
        for clue in suspicious_lines(facts, names, {})
    ]
    of_logs = {f"{program} {version}" for log in facts for program, version in log.versions.items()}
    versions = [f"trtllm-hpc {__version__}", *sorted(of_logs)]
    parts = {
        "Answer": "\n".join(answer),
        "Most suspicious lines": "\n".join(around),
        "Versions": "\n".join(versions),
    }
    if run is not None:
        plan = None
        with suppress(OSError, ValueError):
            plan = read_json(run.paths.plan)
        parts["Plan"] = "" if plan is None else json.dumps(plan, indent=1)[:_PLAN_CHARACTERS]
        parts["Timeline"] = "\n".join(
            f"{format_time(event.time)} {event.stage} {event.name} {json.dumps(event.data)}"
            for event in run.all_events
        )[-_PLAN_CHARACTERS:]
    share = _LAST_CHARACTERS // max(1, len(names))
    last = [f"{name}:\n" + "\n".join(_last(name))[-max(share, _LONGEST_LINE) :] for name in names]
    parts["Last lines"] = "\n\n".join(last)[:_LAST_CHARACTERS]
    clean = _cleaner(run)
    text = "\n".join(f"## {title}\n\n```text\n{clean(part)}\n```\n" for title, part in parts.items() if part)
    return text.encode()[:BUNDLE_BYTES].decode("utf-8", "ignore")


def _cleaner(run: RunSnapshot | None) -> Callable[[str], str]:
    """Return a function that removes keys, prompts and user names from a text."""
    names = {os.environ.get("USER", ""), Path.home().name}
    with suppress(OSError, KeyError):
        names.add(getpass.getuser())
    with suppress(OSError, KeyError):
        names.add(run.paths.folder.owner() if run is not None else "")
    known = [name for name in names if len(name) > 1 and name != "root"]
    of_users = re.compile(rf"\b(?:{'|'.join(map(re.escape, known))})\b") if known else None

    def clean(text: str) -> str:
        text = quoted(text) if run is None else run.quoted(text)
        text = _USER.sub(r"\1USER", _HOMES.sub(r"\1USER", _PROMPTS.sub(r"\1***", text)))
        return text if of_users is None else of_users.sub("USER", text)

    return clean


def _surroundings(name: str, at: int) -> list[str]:
    """Return the lines of a log around the one that begins at ``at``."""
    try:
        with opened(Path(name)) as log:
            begin = max(0, at - _LONGEST_LINE * _SURROUNDINGS)
            log.seek(begin)
            block = log.read(at - begin + _LONGEST_LINE * (_SURROUNDINGS + 1))
    except OSError:
        return []
    before = block[: at - begin].splitlines()[-_SURROUNDINGS:]
    after = block[at - begin :].splitlines()[: _SURROUNDINGS + 1]
    return [decode(uncoloured(line))[:_LONGEST_LINE] for line in (*before, *after)]


def _last(name: str) -> list[str]:
    lines = last_lines(Path(name), _LAST_LINES)
    return [decode(uncoloured(line.encode()))[:_LONGEST_LINE] for line in lines]
