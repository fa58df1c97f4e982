"""What ``doctor --on-nodes --bundle`` writes may be shown to anybody."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.report.doctor import bundle_text
from trtllm_hpc.runs.node_checks import NodeReport
from trtllm_hpc.runtime.node_checks.exchange import Wanted


def text() -> str:
    sentence = "/home/user/runs and /scratch/ana_x; banana is 1 fruit; + export HF_TOKEN=hf_secret123"
    row = Diagnostic("node-disk", sentence, state="ok")
    wanted = Wanted(serve={"serve": ["/home/user/models/m", "--port=8000"]})
    facts = {"host": {"host": "n1"}, "image": {"packages": {"tensorrt_llm": "1.2.1"}}}
    cluster = ClusterProfile(name="x", environment={"HF_TOKEN": "hf_secret123", "NCCL_IB_DISABLE": "1"})
    return bundle_text(NodeReport((row,), wanted, facts, cluster), [row])


@pytest.fixture(autouse=True)
def ana(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ana")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/user"))


def test_it_has_no_name_of_the_user() -> None:
    record = json.loads(text())
    said = "HOME/runs and /scratch/USER_x; banana is 1 fruit; + export HF_TOKEN=VALUE"
    assert record["checks"][0]["message"] == said
    assert record["command_lines"]["serve"]["serve"][0] == "HOME/models/m"
    assert record["facts"]["image"]["packages"] == {"tensorrt_llm": "1.2.1"}
