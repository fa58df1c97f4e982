"""What ``doctor --on-nodes --bundle`` writes may be shown to anybody."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from trtllm_hpc.report.node_bundle import bundle_text
from trtllm_hpc.runs.node_checks import NodeReport
from trtllm_hpc.runtime.node_checks.records import Wanted
from trtllm_hpc.validation.checks import CheckRow


def text(*, with_names: bool = False) -> str:
    row = CheckRow("node-disk", "t", "ok", "/home/ana/runs and /scratch/ana/x; banana is a fruit", None)
    wanted = Wanted(serve={"serve": ["/home/ana/models/m", "--port=8000"]})
    facts = {"host": {"host": "n1"}, "image": {"packages": {"tensorrt_llm": "1.2.1"}}}
    return bundle_text(NodeReport((row,), wanted, facts, None), [row], with_names=with_names)


@pytest.fixture(autouse=True)
def ana(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ana")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ana"))


def test_it_has_no_name_of_the_user() -> None:
    record = json.loads(text())
    assert record["checks"][0]["sentence"] == "HOME/runs and /scratch/USER/x; banana is a fruit"
    assert record["command_lines"]["serve"]["serve"][0] == "HOME/models/m"
    assert record["facts"]["image"]["packages"] == {"tensorrt_llm": "1.2.1"}


def test_names_stay_on_request() -> None:
    assert "/home/ana/models/m" in text(with_names=True)
