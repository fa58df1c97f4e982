from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_hpc.logs import diagnose
from trtllm_hpc.logs.diagnose import RankFailure
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths

from .runs import add_rank, make_run


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return make_run(tmp_path / "run")


def first_failure(run: RunPaths) -> RankFailure | None:
    return diagnose.first_failure(RunSnapshot(run))


def failure(run: RunPaths) -> RankFailure:
    found = first_failure(run)
    assert found is not None
    return found


def test_a_leader_that_noticed_a_lost_peer_is_not_first_even_if_it_ended_earlier(run: RunPaths) -> None:
    add_rank(run, 0, ended_at=20.0, exit_code=-9, reason="Rank 0 lost another rank: connection closed.")
    add_rank(run, 1, ended_at=20.2, exit_code=-9)
    assert failure(run).record.rank == 1


@pytest.mark.parametrize("later_s", [-0.9, 0.9])
def test_a_ranks_own_death_comes_before_a_lost_rank_whatever_the_times(run: RunPaths, later_s: float) -> None:
    """Rank 0's model was killed, and both give a reason; rank 1's record may be the earlier one."""
    add_rank(run, 0, ended_at=20.0, exit_code=-9, reason="Rank 0: the process of its model has ended.")
    lost = "Rank 1 lost another rank: Connection closed by peer."
    add_rank(run, 1, ended_at=20.0 + later_s, exit_code=-9, reason=lost)
    assert failure(run).record.rank == 0


def test_milliseconds_do_not_decide_between_two_that_died(run: RunPaths) -> None:
    add_rank(run, 0, ended_at=20.002, exit_code=-9)
    add_rank(run, 1, ended_at=20.001, exit_code=-9)
    assert failure(run).record.rank == 0


def test_a_rank_that_gives_its_reason_is_first_if_the_others_ended_much_later(run: RunPaths) -> None:
    add_rank(run, 0, ended_at=60.0, exit_code=-6)
    add_rank(run, 1, ended_at=20.0, exit_code=-9, reason="CUDA out of memory.")
    assert failure(run).sentence == (
        "rank 1 on n1 died first: killed by signal 9 (SIGKILL): CUDA out of memory; "
        "the others ended because of it"
    )


def test_a_silent_rank_goes_before_one_that_lost_it(run: RunPaths) -> None:
    add_rank(run, 0)
    add_rank(run, 1, ended_at=20.0, exit_code=1, reason="Rank 1 lost another rank.")
    assert failure(run).record.rank == 0


def test_ranks_that_were_all_killed_share_one_sentence(run: RunPaths) -> None:
    add_rank(run, 0)
    add_rank(run, 1)
    assert failure(run).sentence == "all 2 ranks were killed before they could record their end"


def test_the_log_explains_a_failure_without_a_reason(run: RunPaths) -> None:
    add_rank(run, 0, world_size=1, ended_at=20.0, exit_code=1, log="hello\nerror: no engine\n")
    assert failure(run).sentence == "rank 0 on n0 died: exit code 1; its log says 'error: no engine'"


def test_an_error_in_a_log_is_no_failure(run: RunPaths) -> None:
    add_rank(run, 0, ended_at=20.0, exit_code=0, stopped_by="companion", log="error: all is lost\n")
    add_rank(run, 1, ended_at=20.0, exit_code=0, stopped_by="companion")
    assert first_failure(run) is None


def test_a_server_that_ended_without_a_request_has_failed_whatever_its_code(run: RunPaths) -> None:
    add_rank(run, 0, ended_at=20.0, exit_code=0, reason="the server ended by itself")
    add_rank(run, 1, ended_at=21.0, exit_code=0, stopped_by="leader")
    assert failure(run).record.rank == 0
