"""What follows from the end of an instance behind a proxy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.blame import how_it_ended
from trtllm_hpc.runtime.instances.instance import (
    STEP_GRACE_S,
    Instance,
    RunEnd,
    SupervisorOptions,
    after_end,
    early_end,
    lost,
)
from trtllm_hpc.runtime.proxy import ProxyOptions
from trtllm_hpc.runtime.records import RankRecord

OPTIONS = SupervisorOptions(
    count=2,
    restarts=1,
    proxy=ProxyOptions("haproxy", ("http",), "127.0.0.1"),
    key=False,
    tls=False,
    leaders={},
    companion_start_seconds=None,
    companion_silence_seconds=None,
    drain_seconds=0.0,
)
ROLES = {"context": [0, 1], "generation": [2]}
KILLED = "rank 0 on n1 was killed by signal 9"


def instance(**state: Any) -> Instance:
    return Instance(0, "serve.0", Path("/nowhere"), **state)


def record(rank: int = 0, **end: Any) -> RankRecord:
    return RankRecord("serve.0", rank, 1, "7", "n1", 1, 1.0, **{"ended_at": 2.0, "exit_code": -9, **end})


def test_an_instance_that_has_served_is_started_again_as_often_as_allowed() -> None:
    served = instance(state="ready", has_served=True)
    assert after_end(served, [record()], 137, OPTIONS) == ("restarting", KILLED, None)
    assert after_end(replace(served, restarts=1), [record()], 137, OPTIONS)[0] == "failed"
    lost_node = replace(served, lost="rank 0 of instance 0 on n1: is silent")
    end = RunEnd(f"instance 0 has ended: {lost_node.lost}", is_cause=True)
    assert after_end(lost_node, [record()], 137, OPTIONS) == ("failed", lost_node.lost, end)
    assert after_end(instance(), [record()], 137, OPTIONS)[0] == "failed", "it never served"


@pytest.mark.parametrize(
    ("options", "sentence", "is_cause"),
    [
        ({"count": 1}, KILLED, False),
        ({"count": 3}, f"instance 0 has ended: {KILLED}", True),
        ({"count": 3, "roles": ROLES}, f"the context server 0 has ended: {KILLED}", False),
    ],
)
def test_an_instance_that_is_not_started_again_ends_the_run(
    options: dict[str, Any], sentence: str, is_cause: bool
) -> None:
    after = after_end(instance(), [record()], 137, replace(OPTIONS, **options))
    assert after == ("failed", KILLED, RunEnd(sentence, is_cause=is_cause))


@pytest.mark.parametrize(("returncode", "code"), [(3, 3), (0, ExitCode.START), (137, ExitCode.START)])
def test_the_run_ends_with_the_exit_code_of_the_instance(returncode: int, code: int) -> None:
    _, reason, end = after_end(instance(), [], returncode, OPTIONS)
    assert end is not None and end.code == code
    assert reason == f"no rank was started (exit code {returncode})"


def test_ranks_that_a_signal_has_ended_show_that_slurm_ends_the_job() -> None:
    signalled = [record(exit_code=0, stopped_by="SIGTERM")]
    assert after_end(instance(), signalled, 143, OPTIONS) == ("ended", None, None)
    assert after_end(instance(), [], 143, OPTIONS)[0] == "failed", "there is no record of a signal"


BLAMED = record(stopped_by="probe", reason="rank 0 on n1: no answer", blames=0)


def test_a_blamed_rank_ends_the_run_at_once_unless_its_instance_is_started_again() -> None:
    end, served = RunEnd("rank 0 on n1: no answer"), instance(has_served=True)
    assert early_end(instance(), [BLAMED], OPTIONS, is_stopping=False) == end
    late = replace(BLAMED, exit_code=-15, task_exit_code=ExitCode.READINESS)
    ended = early_end(instance(), [late], OPTIONS, is_stopping=False)
    assert ended is not None and ended.code == ExitCode.READINESS, "the step itself ends a moment later"
    assert early_end(served, [BLAMED], OPTIONS, is_stopping=False) is None
    assert early_end(served, [BLAMED], OPTIONS, is_stopping=True) == end
    assert early_end(served, [record()], OPTIONS, is_stopping=True) is None, "nobody is blamed"


def test_the_step_of_a_lost_instance_is_killed() -> None:
    silent = {0: "it has given no sign of life for 45 s"}
    running = record(ended_at=None, exit_code=None)
    assert lost(instance(), [running], silent, None) == f"rank 0 of instance 0 on n1: {silent[0]}"
    assert lost(instance(), [record()], silent, None) is None, "after its end no rank has a heartbeat"
    ranks = [replace(BLAMED, world_size=2), replace(running, rank=1, world_size=2)]
    assert lost(instance(), ranks, {}, STEP_GRACE_S) is None
    assert lost(instance(), ranks, {}, STEP_GRACE_S + 1) == "rank 0 on n1: no answer"


def test_ranks_that_all_lost_each_other_name_the_network() -> None:
    whys = [f"Rank {rank} lost another rank: the connection was closed." for rank in (0, 1)]
    ended = [replace(record(rank, reason=why), world_size=2) for rank, why in enumerate(whys)]
    ranks = [replace(it, host=f"n{it.rank + 1}") for it in ended]
    cut = "every rank has lost another one, so the network between n1 and n2 may be cut"
    assert how_it_ended(ranks, 137).endswith(f"{whys[0].rstrip('.')}; {cut}")
    assert cut not in how_it_ended([ranks[0], replace(ranks[1], reason=None)], 137), "rank 1 was killed"
    assert cut not in how_it_ended(ended, 137), "there is no network"
