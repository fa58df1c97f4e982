"""``python -m benchmarks.instrument``: the server builds, and its times are paired with the client's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.instrument.__main__ import errors_s, write_tokenizer
from benchmarks.instrument.clients import Job, OurReport, our_command, run
from benchmarks.instrument.server import TTFT_MS, Load, build, read_log, serving, turnarounds_s


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_clients_stamps_are_paired_with_the_servers_times(tmp_path: Path) -> None:
    load, cores = Load(streams=4, itl_ms=5.0, tokens=8), os.sched_getaffinity(0)
    write_tokenizer(tmp_path / "tokenizer")
    folder = tmp_path / "client"
    folder.mkdir()
    log = tmp_path / "server.log"
    with serving(build(tmp_path), load, log, cores, tls=False) as url:
        job = Job(url, load, 24, folder)
        cpu = run(our_command(job), folder, cores, ordinary=True)
    answers, report = read_log(log), OurReport(folder)
    stamps_s, ttfts_s = errors_s(report, answers)
    assert len(ttfts_s) == len(report.measured) >= 20 and not report.failed
    # However busy the machine is, a token is not read before it is sent, nor an answer begun early.
    assert -1e-4 < min(stamps_s) < 1.0 and cpu.total_s > 0
    assert min(answer.ttft_s for answer in answers.values()) >= TTFT_MS / 1e3
    assert min(np.diff(answer.times_s).min() for answer in answers.values() if len(answer.times_s) > 1) > 0
    assert min(turnarounds_s(answers, load.streams)) > 0
