"""A run folder is read once for each look at it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.logs.runs import add_rank
from tests.runs.made import written
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.scheduler.submission_record import SubmissionRecord

OOM = "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory (a.h:1)\n"

COUNT_OPENS = """
import json, os, sys
folder, opened = os.path.realpath(sys.argv[1]), []

def note(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        opened.append(os.path.abspath(os.fsdecode(arguments[0])))

sys.addaudithook(note)
from trtllm_hpc.cli import main
try:
    main(sys.argv[2:])
finally:
    print(json.dumps([os.path.relpath(path, folder) for path in opened if path.startswith(folder + "/")]))
"""


@pytest.fixture
def failed(tmp_path: Path) -> RunPaths:
    """A run of the local profile that has failed: of its four ranks one was out of memory."""
    _, paths = written(tmp_path / "run", scheduler="local", partition=None)
    record = SubmissionRecord("local", complete=True)
    for stage, code in (("build", 0), ("serve", 1), ("companion", 9)):
        record.add(paths, stage, "999999", 1)
        add_event(paths, stage, "stage_begin", job_id="local7", group=999999, group_started=1)
        add_event(paths, stage, "stage_end", job_id="local7", exit_code=code)
    for rank in range(4):
        facts = {"exit_code": 1} if rank == 2 else {"exit_code": 0, "stopped_by": "SIGTERM"}
        log = "started\n" + (OOM if rank == 2 else "")
        add_rank(paths, rank, world_size=4, log=log, ended_at=9.0 + rank, **facts)
    paths.batch_log("serve").write_text("srun: error: n2: task 2: Exited with exit code 1\n")
    return paths


def opens(paths: RunPaths, *arguments: str) -> tuple[Counter[str], str]:
    """How often a command opens each file of the run folder, and what it prints."""
    words = [sys.executable, "-c", COUNT_OPENS, str(paths.folder), *arguments]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    output, _, last = answer.stdout.rstrip("\n").rpartition("\n")
    return Counter(json.loads(last)), output


@pytest.mark.parametrize("command", ["status", "logs", "cancel"])
def test_no_file_of_a_failed_run_is_opened_twice(failed: RunPaths, command: str) -> None:
    """``watch`` is left out: it looks more than once."""
    opened, output = opens(failed, command, str(failed.folder))
    assert "out of memory" in output
    assert {"plan.json", "events/serve.jsonl", "ranks/serve_2.json", "logs/serve_2.out"} <= opened.keys()
    assert {file: count for file, count in opened.items() if count > 1} == {}
