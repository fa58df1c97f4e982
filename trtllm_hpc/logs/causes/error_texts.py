"""Finding the first error in a log; it explains a failure, it does not decide whether there is one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from trtllm_hpc.logs.causes.table import words
from trtllm_hpc.logs.reading import decode, uncoloured

ERRORS = re.compile(
    rb"""
      \bError\ Code\ \d               # TensorRT: Error Code 4: Internal Error
    | ^[EF]\d{4}\ \d\d:\d\d:          # Triton (glog): E0721 10:02:03.123 ...
    | <ERROR> | \[(?:ERROR|error|FATAL|fatal|CRITICAL|critical|E)\]  # [TensorRT-LLM][ERROR], [TRT-LLM] [E]
    | ^\s*what\(\): | \(SIG\w+\)\ received\ by\ PID | undefined\ reference\ to
    | \bERRO\[\d | \blevel="?(?:error|fatal|panic)\b  # programs in Go
    | \bpanicked\ at\b | ^panic:\ | ^CMake\ Error\b | ^Caused\ by:[ ]
    | \b(?:[Ee]rror|ERROR|[Ff]atal|FATAL)\s?:  # srun: error:, slurmstepd: error:, fatal: ...
    | :\ (?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception):\   # quoted in another message
    | ^\s*(?:ERROR|CRITICAL|FATAL)\b | \s[-|]\s*(?:ERROR|CRITICAL)\s*[-|]\s  # logging, loguru
    | ^\s*(?:[\w.]+\.)?\w*(?:Error|Exception):\   # the end of a traceback whose start is elsewhere
    | CUDA(?:\ error|_ERROR|\ out\ of\ memory) | cudaError[A-Z] | [Oo]ut\ of\ memory
    | \bNVRM:\ (?!loading) | \bSIG(?:SEGV|BUS|ABRT|ILL|FPE)\b | \bsevere\ \(\d+\)
    | \b[Ff]atal\ error\ in\b | syntax\ error | unbound\ variable | Could\ NOT\ find
    | oom[-_ ]kill | \b(?:[Tt]ransfer|[Bb]ootstrap)\ (?:failed|timed\ out)
    | Segmentation\ fault | Bus\ error | core\ dumped | Signal\ \((?!2\)|15\))\d+\)\ received
    | terminate\ called\ (?:after|without)
    | MPI_ABORT\ was\ invoked | has\ lost\ communication
    | :\ (?:unrecognized|invalid|unknown)\ option\b  # srun without pyxis, and any program of getopt's
    | :\ (?:command\ not\ found|No\ such\ file\ or\ directory|Permission\ denied|cannot\ open)
    """,
    re.VERBOSE,
)
"""Lines that are errors, in the logs of Slurm, MPI, Triton, TensorRT-LLM and Python."""

_SUSPECT_TEXTS = (
    *(b" failed", b"failure", b"ould not", b"ouldn't", b"idn't", b"cannot", b"nable to", b"nauthorized"),
    *(b"denied", b"refused", b"imed out", b"timeout from", b"lost carrier"),
)

ERROR_TEXTS = (
    *(b"\nE0", b"\nE1", b"\nF0", b"\nF1", b"[E]"),  # glog: E or F and the month
    *(b"ERRO[", b"panic", b"what():", b"KeyboardInterrupt", b"\nCaused by: "),
    *(b"ritical]", b"CRITICAL]", b"rror", b"ERROR", b"atal", b"FATAL", b"received by PID"),
    *(b"undefined reference", b"xception: ", b"Segmentation fault", b"core dumped"),
    *(b"ut of memory", b"oom-kill", b"oom_kill", b"oom kill"),
    *(b"Signal (", b"terminate called ", b"MPI_ABORT was invoked", b"has lost communication"),
    *(b": unrecognized option", b": invalid option", b": unknown option"),
    *(b"NVRM:", b"SIGSEGV", b"SIGBUS", b"SIGABRT", b"SIGILL", b"SIGFPE", b"severe (", b"unbound variable"),
    *(b"Could NOT find", b"ransfer failed", b"ransfer timed out", b"ootstrap failed", b"ootstrap timed out"),
    *_SUSPECT_TEXTS,
    *(b": command not found", b": No such file or directory", b": Permission denied", b": cannot open"),
)
"""Each line that is an error contains one of these."""

HARMLESS = re.compile(
    rb"""
      Terminating\ worker\ process\ since\ shutdown\ signal  # every rank above 0 at its normal end
    | ^[IW]\d{4}\ \d\d:\d\d:  # Triton itself calls it information or a warning
    | ^(?:\[[^\]]*\]\ ?)?\[(?:INFO|WARNING|I|W)\]  # so does TensorRT-LLM
    | ^(?:\[[^\]]*\]\ ){2}\[(?:I|W)\]\   # with its time
    | ^libibverbs:\ Warning:  # a machine without InfiniBand
    # Triton on a machine without a GPU
    | CudaDriverHelper\ has\ not\ been\ initialized | unable\ to\ create\ stream\ for\ \w+:
    | ^Error:\ Failed\ to\ initialize\ NVML(?!:\ (?:Driver|Insufficient))
    | \bServer\ \S+/\S+\ is\ DOWN\b | has\ no\ server\ available
    | printing\ enroot\ log\ file | ^\s*frame\ \#\d+: | Search\ for\ .?cudaError
    | Using\ sched_affinity | Last\ error:\s*$ | Setting\ TMPDIR | Unable\ to\ determine\ if\ Secure\ Boot
    | Configured\ MailProg | If\ you\ get\ .CUDA\ error | \bTainted:\  | Unable\ to\ register\ cu\w+\ factory
    | properly\ configured\ to\ use\ 'conda\ activate' | \bconda\ init\b
    | failed\ to\ delete\ container\ image\ tempDir | is\ defunct,\ please\ remove
    | ^error:\ rank\ \d+\ ended\ \(  # our own supervisor's last line repeats the rank's record
    | ^\|\ \w+\ +\|\ [\d.]+\ +\|  # an option of Triton's, such as exit_timeout
    | \b(?:no|0|without)\ errors?\b | ^\W*$
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Lines that look like errors and are harmless."""

READY_LINE = re.compile(
    rb"Uvicorn running on|Application startup complete|Started (?:HTTPService|GRPCInferenceService) at"
    rb"|The server is fired up and ready"
)
"""A server of Triton, TensorRT-LLM, vLLM or SGLang answers from here on: it survived what stands before."""
READY_TEXTS = (b"Uvicorn running", b"startup complete", b"Service at ", b"fired up and ready")
"""Each such line contains one of these."""

TRACEBACK = b"Traceback (most recent call last):"
"""Its last line is the error."""
_SHOWN = 300


_SUSPICIOUS = re.compile(
    rb"error|fail|fatal|exception|cannot|can.t|could ?n.t|could not|unable|abort|kill|denied|refused"
    rb"|timed? ?out|invalid|missing|not found|no such|unexpected|mismatch|unsupported|unknown|panic|corrupt"
    rb"|exceed|disconnect|lost|\bwarn",
    re.IGNORECASE,
)


def is_suspect(text: str) -> bool:
    """Return whether a line may speak of a failure, in words that runs which are well use too."""
    return words()["suspect"].search(text) is not None


def is_harmless(text: str) -> bool:
    """Return whether a line looks like an error and is none."""
    return HARMLESS.search(text.encode()) is not None


def suspicious(lines: Sequence[bytes], most: int = 5, *, only: bool = False) -> list[str]:
    """Return the last lines that may speak of a failure; without any, the last ones, unless ``only``."""
    spoken = (it for it in reversed(lines) if _SUSPICIOUS.search(it) and not HARMLESS.search(it))
    found = list(islice((it for it in spoken if not (only and words()["unsaid"].search(decode(it)))), most))
    if not found and not only:
        found = [it for it in reversed(lines) if it.strip()][:most]
    return [_shown(uncoloured(line)) for line in reversed(found)]


def is_error(line: bytes) -> bool:
    """Return whether a line without colours is an error."""
    return ERRORS.search(line) is not None and not HARMLESS.search(line)


def _shown(line: bytes) -> str:
    text = decode(line).strip()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
