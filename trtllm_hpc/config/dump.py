"""Write resolved job files and profiles as YAML with every default, which can be read again.

ruamel's dumper is not used: it adds 4 % to the CPU time of ``render``, leaves out the quotes that YAML 1.1
readers need around ``on`` and ``08:00``, and tables need :func:`flow` anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile

# Only words that every YAML reader takes for text: versions 1.1 and 1.2 disagree on 'on', '08:00', '1_000'.
_BARE = re.compile(r"(?!(?i:y|n|yes|no|on|off|true|false|null)\Z)[A-Za-z/][A-Za-z0-9/_.-]*")
# Characters that JSON leaves as they are, but YAML forbids or YAML 1.1 takes for a line break.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def job_yaml(job: JobFile) -> str:
    """Write a job file with every default; ``load`` returns an equal value."""
    return _document("Job file", job.model_dump())


def cluster_yaml(cluster: ClusterProfile) -> str:
    """Write a cluster profile with every default; ``load`` returns an equal value."""
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
    """Write keys and values as people do: a section that fits into 100 columns is on one line."""
    text = ""
    for key, value in record.items():
        line = f"{indent}{scalar(key)}: {flow(value)}\n"
        is_long = isinstance(value, Mapping) and len(line) > 100
        text += f"{indent}{scalar(key)}:\n{compact_yaml(value, indent + '  ')}" if is_long else line
    return text


def flow(value: Any) -> str:
    """Write any value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return scalar(value)


def scalar(value: str | int | float | bool | None) -> str:
    """Write a scalar on one line: simple words without quotes, other text as a double-quoted string."""
    if not isinstance(value, str):
        return json.dumps(value)
    if _BARE.fullmatch(value):
        return value
    # A JSON string is a valid YAML string, except for characters that YAML calls unprintable.
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
