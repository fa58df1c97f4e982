"""Whatever stands before each line, the error behind it is found."""

from __future__ import annotations

import io

import pytest

from trtllm_hpc.logs.causes.explain import Finding, likeliest_first, of_lines
from trtllm_hpc.logs.facts import facts_of_stream

PREFIXES = {
    "none": "",
    "docker compose": "triton-models-1  | ",
    "CRI": "2026-03-01T10:02:0{n}.123456789Z stderr F ",
    "syslog": "Mar  1 10:02:0{n} gpu07 serve[4711]: ",
    "nemo-run": "nemo-run-0/{n} ",
    "vLLM": "(Worker_TP3 pid=77{n}) {word} 03-01 10:02:0{n} [multiproc_executor.py:51{n}] ",
    "Ray": "(RayWorkerWrapper pid=77{n}, ip=10.0.0.{n}) ",
    "mpirun": "[1,3]<stderr>: ",
    "ISO time": "2026-03-01 10:02:0{n},123 - ",
    "PyTorch": "[rank3]: ",
    "PyTorch's glog": "[rank3]:[E301 10:02:0{n}.123456 ProcessGroupNCCL.cpp:63{n}] ",
    "TensorRT-LLM": "[03/01/2026-10:02:0{n}] [TRT-LLM] [RANK 3] [{level}] ",
    "quoted thread": "> ",
    "pdsh": "gpu-07{n}: ",
    "kubectl": "[pod/triton-0/server] ",
    "dmesg": "[ 4711.12345{n}] ",
}
ERRORS = {
    "python-error": [
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3/dist-packages/strange/config.py", line 12, in check',
        "    raise ValueError(text)",
        "ValueError: the moon is in the wrong house",
    ],
    "kind-import-name": ["ImportError: cannot import name 'a' from 'b.c' (/opt/b/c.py)"],
    "kind-header": ["/tmp/a/main.c:1:10: fatal error: Python.h: No such file or directory"],
    "cuda-out-of-memory": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"
    ],
    "slurm-node-configuration": [
        "srun: error: Unable to create step for job 7: Requested node configuration is not available"
    ],
    "first-error": ["FATAL: the moon is in the wrong house"],
}


def explained(text: str) -> tuple[Finding, ...]:
    return likeliest_first(of_lines([facts_of_stream(io.BytesIO(text.encode()), "log").causes]))


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_found_behind_any_prefix(name: str) -> None:
    lines = ["all is well", *ERRORS[name], "the end"]
    for prefix, form in PREFIXES.items():
        text = "".join(
            f"{form.format(n=number, level=word[0], word=word)}{line}\n"
            for number, line in enumerate(lines)
            for word in ["ERROR" if line in ERRORS[name] else "INFO"]
        )
        first, *_ = explained(text)
        assert first.id == name, prefix
        assert first.line == len(ERRORS[name]) + 1, prefix
        assert first.rank in (None, 3), prefix
        if name == "python-error":
            assert first.match == "ValueError: the moon is in the wrong house"
            assert "strange/config.py:12 in check" in first.sentence and "pip show strange" in first.next


@pytest.mark.parametrize("number", [802, 803, 804])
def test_a_number_in_an_error_is_no_rank(number: int) -> None:
    for line in (
        f"Error {number}: system not yet initialized",
        f"[ERROR] {number}: system not yet initialized",
    ):
        assert [one.rank for one in explained(f"{line}\n")] == [None]


def test_a_prefix_is_what_neighbours_share_and_never_the_name_of_a_library() -> None:
    [one] = explained("libfoo.so.1: cannot open shared object file: No such file\n" * 2)
    assert "libfoo.so.1" in one.sentence


def test_of_a_chain_the_direct_cause_goes_first_and_of_a_handled_one_the_last() -> None:
    first = "Traceback (most recent call last):\nValueError: first\n\n"
    last = "\n\nTraceback (most recent call last):\nTypeError: last\n"
    direct = "The above exception was the direct cause of the following exception:"
    handled = "During handling of the above exception, another exception occurred:"
    assert explained(first + direct + last)[0].match == "ValueError: first"
    assert explained(first + handled + last)[0].match == "TypeError: last"


@pytest.mark.parametrize(
    "wrapper",
    [
        "RuntimeError: Executor worker died during initialization",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "subprocess.CalledProcessError: Command '['a']' returned non-zero exit status 1.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "error: failed to load all models",
        "E0301 10:02:03.1 77 a.cc:1] remote peer closed",
    ],
)
def test_what_reports_the_failure_of_another_process_is_a_consequence(wrapper: str) -> None:
    found = explained(f"{wrapper}\nIndexError: list index out of range\n")
    assert (found[0].match, found[0].kind.value) == (
        "IndexError: list index out of range",
        "root",
    )
    assert [one.kind.value for one in explained(f"{wrapper}\n")] == ["consequence"]


def test_words_before_a_traceback_are_no_prefix() -> None:
    text = (
        "[2026-02-27 11:31:26 TP13] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/a.py", line 3, in run\n    scheduler()\nzmq.error.Again: not now\n'
    )
    assert explained(text)[0].match == "zmq.error.Again: not now"


def test_what_stands_before_a_later_ready_does_not_count() -> None:
    ready = "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n"
    trouble = "ValueError: trying another way\nCUDA out of memory. Tried to allocate 2 GiB\n"
    assert explained(trouble + ready) == ()
    assert [one.match for one in explained(trouble + ready + "KeyError: 'a'\n")] == ["KeyError: 'a'"]
