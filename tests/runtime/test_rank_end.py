"""One rank to its end, whatever ends it; every rule of it is in ``test_ending.py``."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.runtime.ranks import Ranks, end
from tests.runtime.test_local_tasks import is_alive
from tests.waiting import eventually
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.logs.diagnose import first_failure
from trtllm_hpc.logs.snapshot import RunSnapshot


def test_a_companion_without_a_heartbeat_stops_the_server(ranks: Ranks) -> None:
    process = ranks.start(supervisor={"companion_silence_seconds": 1.0})
    ranks.endpoint()
    ranks.runtime.paths.heartbeat.write_text("1 ")
    code, output = end(process)
    assert code == ExitCode.START and "no sign of life for 1 s" in output
    assert ranks.runtime.paths.stop_request.exists()


def test_a_killed_server_is_recorded_and_leaves_nothing(ranks: Ranks) -> None:
    process = ranks.start(behaviour="children")
    ranks.ready()
    facts = ranks.facts()
    os.kill(facts["pid"], signal.SIGKILL)
    code, output = end(process)
    assert code == 137 and "error: rank 0 ended (signal 9)" in output
    assert (ranks.record().exit_code, ranks.record().stopped_by) == (-9, None)
    assert not any(is_alive(pid) for pid in facts["children"])
    assert ranks.left() == []
    assert not ranks.runtime.paths.ready_record("serve").exists(), "nobody is ready there"


def test_the_servers_own_reason_is_recorded(ranks: Ranks) -> None:
    assert end(ranks.start(behaviour="says-why exit=1"))[0] == 1
    assert ranks.record().reason == "rank 0 was silent for 10 s"


def test_a_signal_ends_the_server_and_its_descendants(ranks: Ranks) -> None:
    process = ranks.start(behaviour="children")
    ranks.ready()
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 143
    facts = ranks.facts()
    assert not any(is_alive(pid) for pid in (facts["pid"], *facts["children"]))
    assert ranks.record().stopped_by == "SIGTERM" and ranks.left() == []


def test_a_signal_at_any_moment_of_the_start_leaves_nothing(ranks: Ranks) -> None:
    """A cancelled job signals ranks that have only just begun."""
    for wait_s in (0.05, 0.1, 0.2, 0.3, 0.5):
        process = ranks.start()
        time.sleep(wait_s)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert ranks.left() == [], wait_s


@pytest.mark.long
def test_a_server_that_ignores_signals_is_killed_before_slurm_would(ranks: Ranks) -> None:
    """Slurm's KillWait is 30 s, and then the record could not be written any more."""
    process = ranks.start(rank=1, world=2, behaviour="deaf")
    facts = ranks.facts(1)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 143
    assert time.monotonic() - started < 15
    assert not is_alive(facts["pid"]) and ranks.record(1).exit_code == -9


def test_a_killed_rank_leaves_only_what_the_cleanup_removes(ranks: Ranks) -> None:
    process = ranks.start()
    facts = ranks.facts()
    process.kill()
    process.communicate()
    assert eventually(lambda: not is_alive(facts["pid"]))
    assert ranks.left() != []
    assert ranks.runtime("sweep", "0", TRTLLM_HPC_JOB_ID=f"Test{os.getpid()}").returncode == 0
    assert ranks.left() == []


# A server that serves nobody any more ---------------------------------------------------


@pytest.mark.long
def test_a_server_that_answers_no_request_is_ended_though_it_is_ready(ranks: Ranks) -> None:
    sentence = "answers every request with an error (Stub process 'preprocessing_0_0' is not healthy)"
    # Without metrics it may be busy, and gets ten times as long.
    process = ranks.start(behaviour="dies", hang_seconds=0.5)
    ranks.ready()
    code, output = end(process)
    assert code == ExitCode.START and sentence in output
    assert not ranks.runtime.paths.ready_record("serve").exists()
    record = ranks.record()
    assert (record.stopped_by, record.blames) == ("probe", 0)
    failure = first_failure(RunSnapshot(ranks.runtime.paths))
    assert failure is not None and sentence in failure.sentence


def test_a_rank_whose_slurmstepd_is_killed_ends_itself_and_says_so(ranks: Ranks, tmp_path: Path) -> None:
    """Nobody else would: Slurm has lost it, and shows the job as running."""
    daemon = tmp_path / "slurmstepd"
    shutil.copy("/bin/bash", daemon)
    ranks.runtime.under = [str(daemon), "-c", '"$@"; exit', "step"]
    process = ranks.start(1, world=2)
    server = ranks.facts(1)["pid"]
    os.kill(process.pid, signal.SIGKILL)
    _, output = end(process)
    assert "error: rank 1 ended" in output and not is_alive(server)
    record = ranks.record(1)
    assert record.blames == 1 and "slurmstepd" in str(record.reason)
    failure = first_failure(RunSnapshot(ranks.runtime.paths))
    assert failure is not None and failure.sentence.startswith("rank 1 on ")
    assert "its slurmstepd was killed" in failure.sentence
    assert ranks.left() == []
