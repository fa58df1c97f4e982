"""Resolved files as YAML text with every default written out; valid input again.

ruamel's dumper would add 4 % to the CPU time of ``render``, leave out the quotes that YAML 1.1 readers need
around ``on`` and ``08:00``, and still need :func:`flow` beside it, for tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile

# Nothing but words that no YAML reader takes for something else than text;
# versions 1.1 and 1.2 differ about 'on', '08:00', '1_000' and the like.
_BARE = re.compile(r"(?!(?i:y|n|yes|no|on|off|true|false|null)\Z)[A-Za-z/][A-Za-z0-9/_.-]*")
# Printable to JSON, not to YAML, or a line break to older readers.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def job_yaml(job: JobFile) -> str:
    """A job file that says everything; ``load`` gives an equal value back."""
    return _document("Job file", job.model_dump())


def cluster_yaml(cluster: ClusterProfile) -> str:
    """A cluster profile that says everything; ``load`` gives an equal value back."""
    return _document("Cluster profile", cluster.model_dump())


def _document(what: str, record: Mapping[str, Any]) -> str:
    head = f"# {what} as trtllm-hpc resolved it: every default is written out."
    return "\n".join((head, *_lines(record, ""), ""))


def _lines(record: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in record.items():
        head = f"{indent}{scalar(key)}:"
        if isinstance(value, Mapping) and value:
            yield head
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value:
            yield head
            yield from (f"{indent}  - {flow(item)}" for item in value)
        else:
            yield f"{head} {flow(value)}"


def compact_yaml(record: Mapping[str, Any], indent: str = "") -> str:
    """Keys and their values as people write them: a section is on one line where it is short."""
    text = ""
    for key, value in record.items():
        line = f"{indent}{scalar(key)}: {flow(value)}\n"
        is_long = isinstance(value, Mapping) and len(line) > 100
        text += f"{indent}{scalar(key)}:\n{compact_yaml(value, indent + '  ')}" if is_long else line
    return text


def flow(value: Any) -> str:
    """Any value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return scalar(value)


def scalar(value: str | int | float | bool | None) -> str:
    """One scalar on one line: bare words bare, other text as a double-quoted YAML string."""
    if not isinstance(value, str):
        return json.dumps(value)
    if _BARE.fullmatch(value):
        return value
    # A JSON string is a YAML one, but for characters that YAML calls unprintable.
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
