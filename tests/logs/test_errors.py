from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

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


def test_the_error_at_the_end_of_a_huge_log_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MOST_BYTES", "_MOST_BYTES_OF_VECTORSCAN", "_TAIL_BYTES", "_LEAST_TAIL_BYTES"):
        monkeypatch.setattr(f"trtllm_hpc.logs.causes.scan.{name}", 1000)
    log = tmp_path / "log"
    log.write_bytes(b"fine\n" * 10_000 + b"error: at last\n")
    assert logs_facts([log])[0].first_error == "error: at last"


def test_no_log_has_no_error(tmp_path: Path) -> None:
    assert logs_facts([tmp_path / "missing"]) == [LogFacts()]


def test_of_a_log_that_is_all_errors_beginning_and_end_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    for name, value in (("_MOST_WORK", 50_000), ("_TAIL_BYTES", 2000), ("_LEAST_TAIL_BYTES", 2000)):
        monkeypatch.setattr(f"trtllm_hpc.logs.causes.scan.{name}", value)
    log = tmp_path / "log"
    line = b"error: request failed\n"
    log.write_bytes(line * 50_000 + b"OSError: [Errno 122] Disk quota exceeded\n" + line)
    [facts] = logs_facts([log])
    assert [(it.id, it.line) for it in facts.causes] == [("first-error", 1), ("disk-quota", 50_001)]
    assert facts.late_cause == facts.causes[1]
    assert facts.unread_bytes > 40_000 * len(line)


def test_the_end_of_a_log_without_line_ends_is_found_without_reading_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_MOST_BYTES", "_MOST_BYTES_OF_VECTORSCAN"):
        monkeypatch.setattr(f"trtllm_hpc.logs.causes.scan.{name}", 1 << 20)
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file: reading all of it would take an hour
        file.seek(0, 2)
        file.write(b"\nerror: at last\n")
    [facts] = logs_facts([log])
    assert facts.end == facts.first_error == "error: at last"
    assert last_lines(log, 2)[-1] == "error: at last"
