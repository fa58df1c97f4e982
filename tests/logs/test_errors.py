from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tests.logs.test_causes import EXCERPTS
from trtllm_hpc.logs.facts import LogFacts, facts_of_stream, logs_facts
from trtllm_hpc.logs.reading import last_lines


def first_error(lines: list[bytes]) -> str | None:
    return facts_of_stream(io.BytesIO(b"".join(lines)), "log").first_error


@pytest.mark.parametrize(
    "line",
    [
        "error: failed to load",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0",
        "srun: error: n2: task 1: Killed",
        "[TensorRT-LLM][ERROR] CUDA runtime error in cudaMalloc",
        "[TRT-LLM] [E] engine version mismatch",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: no such device",
        "Segmentation fault (core dumped)",
        "/run/scripts/rank.sh: line 12: tritonserver: command not found",
        "error: there is no engine in /data",
        "Signal (11) received.",
        "MPI_ABORT was invoked on rank 0",
        "  what():  Error: bad alloc",
        "[TensorRT-LLM][ERROR] CUDA error: cannot copy mBufferSizes[i] bytes",
    ],
)
def test_errors_of_every_kind_are_seen(line: str) -> None:
    assert first_error([b"fine\n", line.encode() + b"\n", b"end\n"]) == re.sub(r"^(?:\[[^]]*\] ?)+", "", line)


@pytest.mark.parametrize(
    "line",
    [
        "Terminating worker process since shutdown signal was received: error: 0",
        'I0721 10:02:03.1 9 server.cc:1] "last error: none"',
        'W0721 10:02:03.1 9 pinned_memory_manager.cc:273] "CUDA error"',
        'E1121 00:24:49.072424 8268 server.cc:241] "CudaDriverHelper has not been initialized."',
        'E1121 00:38:29.8 9 ensemble_scheduler.cc:1468] "unable to create stream for ensemble: CUDA driver"',
        "error: rank 1 ended (signal 9)",
        "Signal (15) received.",
        "20 requests, 0 errors",
        "--log-error=1 --exit-on-error=true",
        "[TensorRT-LLM][INFO] error: reporting is on",
        "[10/31/2023-06:37:02] [TRT] [W] CUDA error: lazy loading is off",
        "libibverbs: Warning: couldn't load driver 'x': x.so: cannot open shared object file",
    ],
)
def test_harmless_lines_are_no_errors(line: str) -> None:
    assert first_error([line.encode()]) is None


def test_colours_do_not_hide_an_error() -> None:
    assert first_error([b"\x1b[1;31merror\x1b[0m: red\n"]) == "error: red"


def test_a_traceback_is_shown_by_its_last_line() -> None:
    lines = [
        b"Traceback (most recent call last):\n",
        b'  File "x.py", line 1\n',
        b"    f()\n",
        b"KeyError: 'a'\n",
    ]
    assert first_error(lines) == "KeyError: 'a' / f()"


def test_of_chained_tracebacks_the_last_is_shown() -> None:
    log = b"""\
Traceback (most recent call last):
  File "x.py", line 1
_queue.Empty

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "y.py", line 2
RuntimeError: no such device
error: something else
"""
    assert first_error(log.splitlines(keepends=True)) == "RuntimeError: no such device"


def test_of_separate_tracebacks_the_first_is_shown() -> None:
    lines = [b"Traceback (most recent call last):\n", b"KeyError: 'a'\n"]
    assert first_error([*lines, b"trying again\n", lines[0], b"KeyError: 'b'\n"]) == "KeyError: 'a'"


def test_of_a_list_of_problems_the_first_is_shown() -> None:
    lines = [b"error: 2 problems found.\n", b"q.jsonl:2: is not JSON\n", b"    next: mend it\n"]
    assert first_error(lines) == "error: 2 problems found. / q.jsonl:2: is not JSON"
    assert first_error(lines[:1]) == "error: 2 problems found."


def test_a_long_line_is_cut() -> None:
    assert first_error([b"error: " + b"x" * 1000]) == f"error: {'x' * 593}"


def test_all_of_a_log_is_read(tmp_path: Path, searched: str) -> None:
    log, filler = tmp_path / "log", b"fine\n" * 500_000
    ecc = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    log.write_bytes(filler + ecc + b"fine " * 9 + b"\n" + filler + b"E1121 10:02:03.1 7 a.cc:1] at last\n")
    [facts] = logs_facts([log])
    assert [(it.id, it.line) for it in facts.causes] == [("cuda-ecc", 500_001), ("first-error", 1_000_003)]
    assert facts.end == "at last"


def test_no_log_has_no_error(tmp_path: Path) -> None:
    assert logs_facts([tmp_path / "missing"]) == [LogFacts()]


def test_of_a_log_that_is_all_errors_all_is_read_too(tmp_path: Path, searched: str) -> None:
    log = tmp_path / "log"
    line = b"error: request failed\n"
    log.write_bytes(line * 50_000 + b"OSError: [Errno 122] Disk quota exceeded\n" + line)
    [facts] = logs_facts([log])
    assert [(it.id, it.line) for it in facts.causes] == [("first-error", 1), ("disk-quota", 50_001)]
    assert facts.late_cause == facts.causes[1]


def test_of_many_different_errors_the_first_and_the_last_are_kept(tmp_path: Path, searched: str) -> None:
    log = tmp_path / "log"
    words = [chr(103 + number % 17) * (1 + number // 17) for number in range(1500)]
    lines = [f"error: {word} is not there\n".encode() for word in words]
    lines.insert(700, b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    log.write_bytes(b"".join(lines))
    [facts] = logs_facts([log])
    assert [(it.id, it.line) for it in facts.causes] == [("first-error", 1), ("cuda-ecc", 701)]
    assert facts.first_error == "error: g is not there"
    assert {clue.line for clue in facts.clues} & set(range(1000, 1501))


def test_a_log_without_line_ends_is_read(tmp_path: Path, searched: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (8 << 20) + b"\nerror: at last\n")
    [facts] = logs_facts([log])
    assert facts.end == facts.first_error == "error: at last"
    assert last_lines(log, 2)[-1] == "error: at last"


def test_a_log_that_vanishes_meanwhile_hides_no_other(tmp_path: Path, searched: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"fine\n" * 9 + b"error: at last\n")
    paths = [tmp_path / "a", tmp_path, tmp_path / "b", tmp_path / "none"]
    assert [it.first_error for it in logs_facts(paths)] == ["error: at last", None, "error: at last", None]


def test_each_program_finds_the_same(tmp_path: Path, searched: str) -> None:
    logs = list[Path]()
    for name, entry in EXCERPTS.items():
        logs.append(tmp_path / name.replace("/", "-"))
        logs[-1].write_text(f"fine\n{entry['log']}\nE1121 10:02:03.1 7 a.cc:1] at last\nfine\n")
    for log, facts in zip(logs, logs_facts(logs), strict=True):
        assert facts == facts_of_stream(io.BytesIO(log.read_bytes()), str(log))


def test_the_end_of_a_very_long_line_is_read(tmp_path: Path, searched: str) -> None:
    log = tmp_path / "log"
    bar = "\r".join(f"loading {number:06d} of 999999" for number in range(40_000))
    log.write_text(f"an error is near\n{bar}\rCUDA out of memory. Tried to allocate 2.00 GiB\nfine\n")
    [facts] = logs_facts([log])
    assert [it.id for it in facts.causes] == ["cuda-out-of-memory"]
