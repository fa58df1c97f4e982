from __future__ import annotations

import importlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.logs.causes.explain import Finding, likeliest_first, of_lines
from trtllm_hpc.logs.causes.table import AREAS, SPECIFIC, Cause, Kind, causes, compiled, filled_in, texts_of
from trtllm_hpc.logs.facts import facts_of_stream

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
EXCERPTS: dict[str, dict[str, Any]] = {
    name: entry
    for area in AREAS
    for name, entry in toml.loads(
        (Path(__file__).parent / "excerpts" / f"{area}.toml").read_text("utf-8")
    ).items()
}
"""Quotations of public logs by the cause that they tell, each with lines that must not be taken for it."""

WITHOUT_TEXT = [cause for cause in causes().values() if not cause.patterns]
"""Causes that a job's state or signal in Slurm tells, or a rank's record."""


def found(text: str, name: str = "log") -> tuple[Finding, ...]:
    return facts_of_stream(io.BytesIO(text.encode()), name).causes


def likeliest(*logs: str) -> str | None:
    result = likeliest_first(of_lines([found(text) for text in logs]))
    return result[0].id if result else None


def test_every_cause_has_an_excerpt() -> None:
    assert set(EXCERPTS) == {cause.id for cause in causes().values()} - {it.id for it in WITHOUT_TEXT} | {
        "python-error",
        "python-fault",
        "model-config",
    }
    assert all(
        it.states or it.first or it.id.startswith(("rank-", "batch-", "gpu-memory-own", "model-config"))
        for it in WITHOUT_TEXT
    )
    assert len(EXCERPTS) >= 120


def unlike(name: str) -> Iterator[str]:
    """What is wrong with an excerpt, or with how its log is explained."""
    excerpt = EXCERPTS[name]
    first = {it.id: it for it in reversed(found(excerpt["log"]))}
    if not re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+|:[\w./-]+)|trtllm_hpc/runtime/\w+\.py", excerpt["source"]):
        yield "its source"
    if causes()[name].kind is Kind.NOISE:
        yield from first
    elif (explained := likeliest(excerpt["log"])) != name:
        yield f"explained by {explained}"
    elif not (first[name].next and excerpt.get("shows", "") in first[name].match):
        yield f"shows {first[name].match}"


def test_releases_of_vllm_say_in_other_words_that_their_engine_vanished() -> None:
    said = "Engine core {} EngineCore_DP3 died unexpectedly, shutting down client."
    assert {likeliest(said.format(word)) for word in ("proc", "process")} == {"engine-core-killed"}


def test_the_excerpt_of_each_public_log_is_explained() -> None:
    assert {name: wrong for name in EXCERPTS if (wrong := list(unlike(name)))} == {}


def test_a_near_miss_is_not_taken_for_the_cause() -> None:
    near_misses = [(name, line) for name, entry in EXCERPTS.items() for line in entry["not"]]
    assert len(near_misses) > 500
    taken = [it for it in near_misses if it[0] in {one.id for one in found(f"fine\n{it[1]}\nfine\n")}]
    assert taken == []


FORMS = {
    "option": re.compile(r"--[a-z][\w-]{2,}|\b[a-z]+(?:_[a-z0-9]+)+\b|\b[A-Z]+(?:_[A-Z0-9]+)+\b"),
    "code": re.compile(
        r"\b[A-Z]{2,}[A-Z0-9]*(?:_[A-Z0-9]+)+|Xid|GLIBC|GPU has fallen off the bus|Remapping Failure"
    ),
    "path": re.compile(r"/(?:[\w.-]+/)+[\w.-]+"),
    "message": re.compile(r"[A-Za-z][\w'-]*(?:[^\w\n]+[\w'\]}>)-]+){1,}|\w{12,}"),
}
"""What a pattern must have that is to be specific by this."""


def faults(cause: Cause) -> Iterator[str]:
    """What an entry of the table does not say, or names that no pattern finds."""
    if not (cause.sentence.endswith((".", "}")) and cause.sources):
        yield "sentence and sources"
    if cause.kind is not Kind.NOISE and not cause.next:
        yield "what to do"
    names = set(re.findall(r"(?<!\$)\{(\w+)\}", cause.sentence + cause.next))
    groups = set().union(*(compiled(pattern).groupindex for pattern in cause.patterns), set())
    if cause.patterns and not names <= groups:
        yield f"{names - groups} is in no pattern"
    if cause.specific and (cause.specific not in SPECIFIC or cause.generic or cause.kind is not Kind.ROOT):
        yield f"it cannot be specific by its {cause.specific}"
    if cause.own and cause.own not in causes():
        yield f"there is no {cause.own}"
    for pattern in cause.patterns:
        if cause.specific and not FORMS[cause.specific].search(pattern.replace("\\", "")):
            yield f"{pattern} has no {cause.specific} of its own"
        first_line = pattern.partition(r"\n")[0].replace("\\", "")
        if not texts_of(pattern) or any(len(it) < 4 or it not in first_line for it in texts_of(pattern)):
            yield f"the first line of a match of {pattern} has no text to search for"


def test_every_cause_says_what_happened_and_what_to_do_and_can_be_searched_for() -> None:
    assert {cause.id: list(faults(cause)) for cause in causes().values() if any(faults(cause))} == {}


def test_a_sentence_does_without_what_the_log_does_not_say() -> None:
    driver, model = causes()["cuda-xid"], causes()["triton-model-failed"]
    assert driver.filled({})[0] == "The GPU's driver reports a fault."
    assert driver.filled({"number": "79"})[0] == "The GPU's driver reports a fault. Xid 79"
    assert model.filled({})[0] == "Triton could not load the model."
    assert filled_in("Name {model}, {reason} or the .sqsh file ({model}.", {"model": "a"}) == (
        "Name a, or the .sqsh file (a."
    )


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("RuntimeError: Failed to bind socket to n1:8000: [Errno 98] Address already in use", "n1:8000"),
        ("frontend http: cannot bind socket (Address already in use) for [10.0.0.9:23389]", "10.0.0.9:23389"),
        ("ZMQError: Address already in use (addr='tcp://127.0.0.1:10012')", "tcp://127.0.0.1:10012"),
        (
            "[Errno 98] error while attempting to bind on address ('::', 80): address already in use",
            "'::', 80",
        ),
    ],
)
def test_a_taken_port_is_told_by_its_address(line: str, address: str) -> None:
    [told] = [one.sentence for one in found(f"{line}\n") if one.id == "process-port"]
    assert told == f"Another process on the node has taken the port {address}."
    # Upstream's servers tell it twice, without the address at first.
    assert likeliest(f"OSError: [Errno 98] Address already in use\n{line}\n") == "process-port"


def test_a_killed_process_is_told_in_the_words_of_open_mpi_5_too() -> None:
    said = "prterun noticed that process rank 1 with PID 23786 on node n1 exited on\nsignal 9 (Killed).\n"
    [only] = found(said)
    assert only.id == "mpirun-signal" and "on n1 ended by signal 9 (Killed)" in only.sentence


OOM = "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (tllmBuffers.h:112)\n"
LOST = "RuntimeError: NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\n"
EXITED = "srun: error: n1: task 1: Exited with exit code 1\n"


def test_a_root_cause_outranks_the_consequences_on_other_ranks() -> None:
    assert likeliest(EXITED, LOST, OOM) == "cuda-out-of-memory"
    assert likeliest(LOST + EXITED) == "nccl-remote"


def test_what_ends_a_process_and_what_is_precise_goes_first() -> None:
    long_prompt = "Prompt length (200) exceeds maximum input length (128)\n"
    assert likeliest(long_prompt + OOM) == "cuda-out-of-memory"
    assert likeliest("Traceback\nKeyError: 'a'\n", OOM) == "cuda-out-of-memory"
    assert likeliest(long_prompt) == "trtllm-prompt-too-long"


def test_among_equals_the_first_log_and_the_first_line_decide() -> None:
    full = "OSError: [Errno 28] No space left on device\n"
    assert likeliest(full, OOM) == "disk-full"
    assert likeliest(OOM + full) == "cuda-out-of-memory"


def test_what_a_python_program_says_goes_before_that_it_stopped() -> None:
    taken = "Traceback (most recent call last):\nOSError: [Errno 98] Address already in use\n"
    assert likeliest(taken) == "process-port-unnamed"


def test_noise_hides_nothing_and_is_no_cause() -> None:
    noise = "libibverbs: Warning: couldn't load driver 'libx.so': libx.so: cannot open shared object file\n"
    assert likeliest(noise * 3) is None
    assert likeliest(noise + "Error: Failed to initialize NVML\n" + OOM) == "cuda-out-of-memory"


def test_a_match_far_along_a_long_line_is_shown_with_its_surroundings() -> None:
    line = (
        "RuntimeError: " + "a, " * 500 + "no kernel image is available for execution on the device (k.cu:1)\n"
    )
    match = found(line)[0].match
    assert match.startswith("…") and match.endswith("(k.cu:1)") and "no kernel image" in match
    assert len(match) <= 302


def test_ranks_lines_and_files_are_told() -> None:
    labelled = found("0: fine\n3: \x1b[31mOSError: [Errno 122] Disk quota exceeded\x1b[0m\n", "a.out")
    assert [(it.file, it.line, it.rank, it.match) for it in labelled] == [
        ("a.out", 2, 3, "OSError: [Errno 122] Disk quota exceeded")
    ]
    assert found("[rank1]: OSError: [Errno 116] Stale file handle\n")[0].rank == 1
    assert found("[1,2]<stderr>:No space left on device\n")[0].rank == 2


def test_what_a_line_calls_information_is_no_cause() -> None:
    for calm in (
        "[TensorRT-LLM][INFO] CUDA runtime error in x: out of memory\n",
        'I0721 10:02:03.123456 99 a.cc:1] "No space left on device"\n',
        "n1:1:1 [0] NCCL INFO Call to connect failed: No space left on device\n",
        "[10/31/2023-06:37:02] [TRT] [W] No space left on device\n",
    ):
        assert found(calm) == ()
