"""Job file and profile to plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.render.cases import CASES, plan_of
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.runtime.plan_record import Dependency, PlanRecord

JOB: dict[str, Any] = {"name": "demo"}
CLUSTER: dict[str, Any] = {"name": "here"}


def make(folder: str = "/runs/a", job: dict[str, Any] | None = None, **cluster: Any) -> Plan:
    return plan_of({**JOB, **(job or {})}, {**CLUSTER, **cluster}, folder)


@pytest.mark.parametrize("case", CASES)
def test_the_written_plan_can_be_read_back(case: str, tmp_path: Path) -> None:
    plan = plan_of(*CASES[case], "/runs/a é")
    paths = RunPaths(tmp_path)
    plan.record.write(paths)
    assert PlanRecord.read(paths) == plan.record


def test_stages_wait_for_each_other() -> None:
    plan = make()
    assert [(stage.name, stage.after) for stage in plan.stages] == [
        ("build", ()),
        ("serve", (Dependency("afterok", "build"),)),
        ("companion", (Dependency("after", "serve"), Dependency("afterok", "build"))),
    ]


def test_what_is_not_wanted_has_no_stage() -> None:
    engine = {"engine": {"directory": "/engines/a"}}
    plan = make(job=engine)
    assert [(stage.name, stage.after) for stage in plan.stages] == [
        ("serve", ()),
        ("companion", (Dependency("after", "serve"),)),
    ]
    assert plan.build_steps == () and plan.engine_folder == "/engines/a"
    assert plan.stage("build") is None
    assert [stage.name for stage in make(companion="overlap").stages] == ["build", "serve"]
    alone = make(job={"companion": {"enabled": False}})
    assert [stage.name for stage in alone.stages] == ["build", "serve"] and not alone.job.stops_server
