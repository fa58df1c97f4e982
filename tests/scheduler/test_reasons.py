from __future__ import annotations

import pytest

from trtllm_hpc.scheduler.states import explain_reason


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "the nodes it needs are busy"),
        ("(Resources)", "the nodes it needs are busy"),
        ("ReqNodeNotAvail", "a node it needs is down, drained or reserved"),
        (
            "(ReqNodeNotAvail, UnavailableNodes:n[1-2],n7)",
            "drained or reserved (wait, or ask",
        ),
        ("Nodes required for job are DOWN, DRAINED or reserved", "nodes it needs are not available (wait"),
        ("JobHeldUser", "you hold it; type: scontrol release 4711"),
        ("PartitionTimeLimit", "lower time_limit_minutes"),
        (
            "QOSMaxGRESPerUser",
            "a limit of your account or QOS holds it (QOSMaxGRESPerUser): sacctmgr",
        ),
        ("AssocGrpCpuLimit", "holds it (AssocGrpCpuLimit): sacctmgr show assoc user=$USER"),
        ("MaxJobsPerAccount", "holds it (MaxJobsPerAccount)"),
        ("AssociationJobLimit", "holds it (AssociationJobLimit)"),
        ("AccountingPolicy", "holds it (AccountingPolicy)"),
        ("FlyingElephants", "Slurm's reason is FlyingElephants"),
        ("", "Slurm has not given a reason yet"),
        ("None", "Slurm has not given a reason yet"),
    ],
)
def test_a_pending_reason_in_words(reason: str, words: str) -> None:
    assert words in explain_reason(reason, "4711")
