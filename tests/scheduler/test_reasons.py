from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_hpc.scheduler.reasons import REASONS, explain_reason

NAMES = (Path(__file__).parent / "reasons.txt").read_text("utf-8").split()
"""Every reason that Slurm can give: ``src/common/job_state_reason.c``, 22.05 to 26.05."""


def test_every_reason_of_slurm_is_told_in_words() -> None:
    told = {name: explain_reason(name, "4711") for name in NAMES}
    assert {
        name: words
        for name, words in told.items()
        if name in words or "Slurm's reason" in words or words.endswith(".")
    } == {}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "the nodes it needs are busy"),
        ("(Resources)", "the nodes it needs are busy"),
        ("ReqNodeNotAvail", "a node it needs is down, drained or reserved"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "a node it needs is down, drained or reserved: n1 (wait"),
        (
            "(ReqNodeNotAvail, UnavailableNodes:n[1-2],n7)",
            "reserved: n[1-2],n7 (wait, or ask your site; `sinfo",
        ),
        ("JobHeldUser", "you hold it; type: scontrol release 4711"),
        ("PartitionTimeLimit", "lower time_limit_minutes"),
        ("QOSMaxGRESPerUser", "you already use all the GPUs that your QOS allows a user"),
        ("AssocGrpCpuLimit", "the jobs of your account together already use all the CPUs"),
        ("AssocMaxWallDurationPerJobLimit", "it requests more time than your account allows; lower"),
        ("QOSMinGRES", "it requests less than your QOS asks for (GPUs)"),
        ("FlyingElephants", "Slurm's reason is FlyingElephants"),
        ("QOSMaxElephantsPerUser", "Slurm's reason is QOSMaxElephantsPerUser"),
        ("", "Slurm has not given a reason yet"),
        ("None", "Slurm has not given a reason yet"),
    ],
)
def test_a_pending_reason_in_words(reason: str, words: str) -> None:
    assert words in explain_reason(reason, "4711")


def test_every_reason_is_a_clause() -> None:
    for reason, words in REASONS.items():
        assert words and not words.endswith("."), reason
    assert "{" not in explain_reason("JobHeldUser")
