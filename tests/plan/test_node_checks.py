"""What the job of ``doctor --on-nodes`` asks for and looks at."""

from __future__ import annotations

from typing import Any

import pytest

from tests.render.cases import plan_of
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.runs.node_checks import node_check_plan, wanted_of


def planned(gpus: int = 8, *, engine: dict[str, Any] | None = None, **serve: Any) -> Plan:
    job = {
        "name": "j",
        "model": {"path": "/models/m", "synthetic": None},
        "engine": {"backend": "pytorch", "tensor_parallel": 1, **(engine or {})},
        "serve": serve,
    }
    image = {"runtime": "pyxis", "image": "nvcr.io#nvidia/tensorrt-llm/release:1.2.1"}
    return plan_of(job, {"name": "c", "gpus_per_node": gpus, "container": image}, "/r/j")


@pytest.mark.parametrize(("gpus", "nodes", "asked"), [(8, 1, 2), (8, 2, 1), (1, 1, 1), (0, 1, 0)])
def test_each_rank_has_a_gpu_where_the_node_has_as_many(gpus: int, nodes: int, asked: int) -> None:
    layout = node_check_plan(planned(gpus), nodes).layout
    assert (layout.world_size, layout.nodes, layout.gpus_per_node) == (2, nodes, asked)


def test_it_looks_at_what_the_plan_calls() -> None:
    plan = planned(engine={"tensor_parallel": 4})
    wanted = wanted_of(plan, node_check_plan(plan, 1))
    assert wanted.serve["serve"][0] == "/models/m" and "--tp_size=4" in wanted.serve["serve"]
    assert wanted.launcher == "trtllm-llmapi-launch" and wanted.model_yaml is None and wanted.front == []
    [serve] = wanted.programs
    assert serve[:2] == ["trtllm-serve", "serve"] and "--tp_size=4" in serve
