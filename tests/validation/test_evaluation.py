"""What an evaluation needs, before the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.test_shown import keep, summary
from tests.validation.conftest import Checked
from trtllm_hpc.backends import facts_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.evaluation import tasks
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.validation.load import problems


def test_tasks_are_checked_before_the_queue(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(**evaluate: Any) -> Any:
        return checked(companion={"evaluate": {"tasks": ["facts"], **evaluate}})["evaluation"]

    assert "evaluation" not in checked()
    assert outcome().state == "ok"
    missing = outcome(tasks=["gsm8k"], data=str(tmp_path))
    assert missing.state == "fail" and "the data of task gsm8k (openai/gsm8k) are not in" in missing.message
    assert f"trtllm-hpc evaluate --prepare gsm8k --set data={tmp_path}" in missing.hint
    base = outcome(not_worse_than="nobody")
    assert (
        base.state == "fail"
        and "the run nobody (companion.evaluate.not_worse_than) has no finished evaluation" in base.message
    )
    keep(RunPaths(tmp_path / "runs" / "before"), summary(0.4))
    assert outcome(not_worse_than="before").state == "ok"
    monkeypatch.setattr(tasks, "find_spec", lambda name: None)
    assert outcome().hint == "pip install 'trtllm-hpc[evaluate]'"


HERE = ClusterProfile(name="here")


def test_a_server_without_openais_protocol_is_refused() -> None:
    def messages(**serve: str) -> list[str]:
        plain = {"name": "a", "serve": serve, "companion": {"evaluate": {"tasks": ["facts"]}}}
        return [it.message for it in problems(facts_of(JobFile.model_validate(plain), HERE))]

    assert messages() == []
    [message] = messages(proxy="none")
    assert "offers only behind a proxy" in message


def test_a_triton_that_no_gateway_understands_is_refused() -> None:
    engine = {"model": {"path": "/m"}, "engine": {"backend": "pytorch"}}
    for frontend, refused in (("triton", True), ("openai", False)):
        plain = {"serve": {"frontend": frontend}, "companion": {"evaluate": {"tasks": ["facts"]}}}
        found = problems(facts_of(JobFile.model_validate({"name": "a", **engine, **plain}), HERE))
        assert any("which Triton does not offer with this backend" in it.message for it in found) is refused
