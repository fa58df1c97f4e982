"""Finding the rank that failed first, what the logs of a stage show of its failure, and telling it to others."""

from __future__ import annotations

import getpass
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.logs.causes.explain import clue_lines, likeliest_first, of_lines
from trtllm_hpc.logs.causes.table import Kind
from trtllm_hpc.logs.facts import LogFacts, logs_facts, suspicious_lines
from trtllm_hpc.logs.files import LogFile, list_logs, signal_or_code, stage_of
from trtllm_hpc.logs.reading import decode, last_lines, opened, quoted, uncoloured
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import STEPS, read_json
from trtllm_hpc.runtime.blame import first_to_fail, rank_name, verdict
from trtllm_hpc.runtime.records import RankRecord


@dataclass(frozen=True)
class RankFailure:
    """The rank that died first, and what is known about its end."""

    record: RankRecord
    log: LogFacts
    """What its log shows."""
    others: str
    """``ended``, ``silent`` (they recorded no end either) or ``running``; ``none`` if it was alone."""
    verdict: str | None = None
    """The reason of the rank that found this one at fault, in a sentence that names it."""

    @property
    def sentence(self) -> str:
        """One sentence for the user."""
        record = self.record
        if self.verdict is not None:
            return self.verdict.rstrip(".")
        if record.ended_at is None and self.others == "silent":
            return f"all {record.world_size} ranks were killed before they could record their end"
        first = "died" if self.others == "none" else "died first"
        sentence = f"{rank_name([record], record.step, record.rank)} {first}: {self._how()}"
        return f"{sentence}; the others ended because of it" if self.others == "ended" else sentence

    def _how(self) -> str:
        record = self.record
        if record.ended_at is None:
            how = "it was killed before it could record its end"
        elif record.exit_code is None:
            how = "its exit code is not known"
        else:
            end = signal_or_code(record.exit_code)
            how = f"killed by {end}" if end.startswith("signal") else end
        if record.reason:
            return f"{how}: {record.reason.rstrip('.')}"
        return how if self.log.end is None else f"{how}; its log says {self.log.end!r}"


def first_failure(run: RunSnapshot) -> RankFailure | None:
    """Return the rank of a server that has ended which died first; ``None`` if no record shows a failure."""
    failures = filter(None, (_first_failure_of(run, step) for step in run.serve_steps))
    return min(failures, key=lambda failure: failure.record.ended_at or 0.0, default=None)


def _first_failure_of(run: RunSnapshot, step: str) -> RankFailure | None:
    """The same of one instance."""
    records = run.ranks(step)
    first = first_to_fail(records)
    if first is None:
        return None
    judge = verdict(records)
    ended = [record.ended_at is not None for record in records if record is not first]
    if not ended:
        others = "none"
    elif all(ended):
        others = "ended"
    else:
        others = "silent" if first.ended_at is None and not any(ended) else "running"
    [log] = logs_facts([run.paths.rank_log(first.step, first.rank)])
    return RankFailure(first, log, others, None if judge is None else judge.reason)


def stage_logs(
    run: RunSnapshot, stage: str, first: RankRecord | None = None, servers: Sequence[LogFile] | None = None
) -> list[LogFile]:
    """Return the logs of a stage in the order in which they explain a failure.

    The log of the rank that died first, then those of ranks that failed by themselves, of the other ranks,
    and of the batch script, which only shows that a rank has failed. ``servers`` are the logs of ``serve``,
    if known.
    """
    logs = [
        log
        for step in STEPS
        if stage_of(step) == stage
        for log in (list_logs(run, step) if servers is None or step != "serve" else servers)
    ]

    def order(log: LogFile) -> tuple[bool, bool, bool]:
        is_first = first is not None and (log.step, log.rank) == (first.step, first.rank)
        return (log.rank is None, not is_first, not log.state.startswith("failed"))

    return sorted(logs, key=order)


def stage_error(run: RunSnapshot, stage: str) -> str | None:
    """Return what a stage's logs show of its failure, after the log's name.

    For a stage that failed without a reason in its rank records. It only
    explains: the caller must know that the stage has failed.
    """
    run.use_causes_of_site()
    logs = stage_logs(run, stage)
    facts = logs_facts([log.path for log in logs])
    names = {str(log.path): log.name for log in logs}
    causes = likeliest_first(of_lines([log.causes for log in facts]))
    roots = [cause for cause in causes if cause.kind is Kind.ROOT]
    # That Slurm saw a task killed explains the end of its step.
    killed = [it for it in causes if it.id == "slurm-task-failed" and "Exited with" not in it.match]
    for cause in (*roots, *killed):
        if cause.file is not None:
            return f"{names[cause.file]} says {cause.match!r}"
    for log, it in zip(logs, facts, strict=True):
        if it.first_error is not None:
            return f"{log.name} says {it.first_error!r}"
    return None


BUNDLE_BYTES = 64 << 10
"""A bundle is no longer, so that it can be pasted into an issue or a chat."""
_PLAN_CHARACTERS, _LAST_CHARACTERS = 12 << 10, 24 << 10
_SURROUNDINGS, _LAST_LINES, _LONGEST_LINE = 3, 8, 400
_PROMPTS = re.compile(
    r"""(["']?\b(?:prompt|prompts|messages|content|text_input|input|inputs|query|question)["']?\s*[:=]\s*)"""
    r"""("(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|\[.*\]?)"""
)
"""What users asked a model, as JSON, Python and the logs of servers write it."""
_HOMES = re.compile(r"((?:/home|/users?|/Users|/u|/scratch|/work|/project|/data)/)([A-Za-z][\w.-]*)")
_USER = re.compile(r"(\b(?:user|USER|username|UserId|LOGNAME|User)\s*[=:]\s*)([\w.-]+)")


def bundle(
    run: RunSnapshot | None, answer: Sequence[str], facts: Sequence[LogFacts], names: Sequence[str]
) -> str:
    """Return what a person needs who is to help with a failed run, in at most 64 KiB of Markdown.

    It has the answer, the most suspicious lines with their surroundings, versions, plan, timeline and the last lines
    of each log (``names``, of which ``facts`` are known); no keys, no prompts, and no names of users.
    """
    clues = suspicious_lines(facts, names)
    around = [
        "\n".join([*clue_lines([(name, clue)], {}), *(f"    | {it}" for it in _surroundings(name, clue.at))])
        for name, clue in clues
    ]
    versions = sorted({f"{program} {version}" for it in facts for program, version in it.versions.items()})
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
            f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(it.time))} {it.stage} {it.name} {json.dumps(it.data)}"
            for it in run.all_events
        )[-_PLAN_CHARACTERS:]
    share = _LAST_CHARACTERS // max(1, len(names))
    last = [f"{name}:\n" + "\n".join(_last(name))[-max(share, _LONGEST_LINE) :] for name in names]
    parts["Last lines"] = "\n\n".join(last)[:_LAST_CHARACTERS]
    clean = _cleaner(run)
    text = "\n".join(f"## {title}\n\n```text\n{clean(part)}\n```\n" for title, part in parts.items() if part)
    return text.encode()[:BUNDLE_BYTES].decode("utf-8", "ignore")


def _cleaner(run: RunSnapshot | None) -> Callable[[str], str]:
    """Return what takes keys, prompts and names of users out of a text."""
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
    return [decode(uncoloured(it.encode()))[:_LONGEST_LINE] for it in last_lines(Path(name), _LAST_LINES)]
