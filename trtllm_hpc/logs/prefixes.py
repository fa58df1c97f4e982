"""Taking off what programs, containers and collectors of logs write before each line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtllm_hpc.logs.reading import LONGEST_LINE_BYTES, uncoloured

_LABEL = re.compile(
    r"""
      (?:>\s?)+(?=\S)                                      # a quoted thread
    | \[[\d;]+m                                            # a colour that has lost its escape character
    | \[pod/[^\]]+\]\s?                                    # kubectl logs --prefix
    | [A-Za-z0-9][\w.-]*\s*\|\ (?=.)                       # docker compose
    | \d{4}-\d\d-\d\dT[\d:.]+\S*\ (?:stdout|stderr)\ [FP]\s  # CRI
    | [A-Z][a-z]{2}\ +\d+\ \d\d:\d\d:\d\d\ \S+\ [^\s:\[]+(?:\[\d+\])?:\s  # syslog
    | \[\s*\d+\.\d{6}\]\s                                  # dmesg
    | [\w.-]+/\d+\ (?=\S)                                  # nemo-run, torchx
    | \[\d+,(?P<mpirun>\d+)\]<std(?:err|out)>:\s?          # mpirun --tag-output
    | \[(?:default|rank)?(?P<torch>\d+)\]:\s?              # PyTorch, torchrun --log-dir
    | \*{0,2}\([A-Za-z][\w.]*(?:_TP(?P<worker>\d+))?\s[^()]*pid=\d+[^()]*\)\*{0,2}\s?  # vLLM, Ray
    """,
    re.VERBOSE,
)
_SRUN_LABEL = re.compile(r"\s{0,3}(?P<srun>\d{1,4}):\ (?=\D)")
"""``srun --label``: only at the very beginning of a line, since ``Error 802:`` names no rank."""
_STAMP = re.compile(
    r"""
      \[?(?P<glog>[IWEF])\d{3,4}\ \d\d:\d\d:\d\d\.\d+\s+(?:\d+\ )?[\w./-]+:\d+\]\s*"?  # Triton, PyTorch
    | \[(?:TensorRT-LLM|TRT-LLM|TensorRT|TRT)\]\s*                          # TensorRT-LLM and TensorRT
    | \[RANK\ (?P<rank>\d+)\]\s*
    | \[(?P<level>INFO|WARNING|ERROR|FATAL|VERBOSE|DEBUG|[IWEFVD])\]\s*
    | (?P<word>INFO|WARNING|ERROR|DEBUG|CRITICAL)\s+(?:\d\d-\d\d\ \d\d:\d\d:\d\d\s+)?\[[\w./:-]+\]\ ?  # vLLM
    | (?P<colon>INFO|WARNING|DEBUG):(?=\s)\s*(?:[\w.]+:)?
    | (?P<bare>TRACE|DEBUG|INFO|WARN(?:ING)?)\s+(?=\S)                       # Rust's tracing
    | [\w.]+\s*[-|]\s*(?P<dashed>DEBUG|INFO|WARN(?:ING)?)\s*[-|]\s         # logging, loguru
    | \[?\d{4}[-/]\d\d[-/]\d\d[T\ ,]\d\d:\d\d:\d\d[^\s\]]*\]?:?\s+(?:-\ )?
    | \[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]\s*
    | \[\d\d:\d\d:\d\d(?:[.,]\d+)?\]\s*
    """,
    re.VERBOSE,
)
_WARNS = re.compile(r"(?:^|\s)\w*Warning: ")
"""Python's warnings, and those of others: ``a.py:3: UserWarning: ...``."""
_TOKEN = re.compile(r"(?:[^\s\[(]\S*[:|>\])]|\[[^\]]*\]:?|\([^)]*\):?|[\w.-]+/\d+)\s")
"""A word or a bracket that may be a prefix, if neighbouring lines have it too."""
_SAYS_ERROR = re.compile(r"error|fatal|fail|exception|abort|warn|panic|srun|sbatch|slurm", re.IGNORECASE)
_LEVELS = {"I": "info", "INFO": "info", "V": "info", "VERBOSE": "info", "D": "info", "DEBUG": "info"} | {
    "W": "warning",
    "WARNING": "warning",
    "WARN": "warning",
    "TRACE": "info",
    **dict.fromkeys(("E", "F", "ERROR", "FATAL", "CRITICAL"), "error"),
}
_DIGITS = str.maketrans("0123456789", "0" * 10)


@dataclass(frozen=True)
class Line:
    """A line without its prefixes."""

    text: str
    level: str
    """``info``, ``warning`` or ``error`` if the line calls itself so; else empty."""
    rank: int | None
    """The rank that a prefix names."""


def stripped(raw: bytes) -> Line:
    """Return a line without colours, stamps and labels, and what these said."""
    text = uncoloured(raw[:LONGEST_LINE_BYTES]).decode("utf-8", errors="replace").rstrip("\r\n")
    rank, level = None, None
    inner = text.lstrip()
    if inner != text and (_STAMP.match(inner) or inner.startswith("**(")):  # quoted with an indentation
        text = inner
    match = _SRUN_LABEL.match(text) or _LABEL.match(text) or _STAMP.match(text)
    while match is not None:
        said = {name: value for name, value in match.groupdict().items() if value is not None}
        level = level or next(
            (said[it] for it in ("glog", "level", "word", "colon", "bare", "dashed") if it in said), None
        )
        number = next((said[it] for it in ("mpirun", "torch", "srun", "rank", "worker") if it in said), None)
        rank = int(number) if rank is None and number is not None else rank
        text = text[match.end() :]
        match = _LABEL.match(text) or _STAMP.match(text)
    if _WARNS.search(text):
        level = "W"
    return Line(text.removesuffix('"') if level else text, _LEVELS.get(level or "", ""), rank)


def without_shared(text: str, neighbours: list[str]) -> str:
    """Return a line without the words at its beginning that a neighbouring line has as well, digits aside.

    Only what looks like a prefix goes: words that end with a colon or a bar, and brackets, up to the first
    that speaks of an error.
    """
    start = 0
    while (token := _TOKEN.match(text, start)) is not None and not _SAYS_ERROR.search(token[0]):
        shape = text[: token.end()].translate(_DIGITS)
        if not any(other.translate(_DIGITS).startswith(shape) for other in neighbours):
            break
        start = token.end()
    return text[start:]
