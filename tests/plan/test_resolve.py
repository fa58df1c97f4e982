"""Job file and profile to plan."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.render.cases import CASES, plan_of
from trtllm_hpc.backends.reference import MODELS
from trtllm_hpc.plan.model import Dependency, Plan

JOB: dict[str, Any] = {"name": "demo"}
CLUSTER: dict[str, Any] = {"name": "here"}


def make(folder: str = "/runs/a", job: dict[str, Any] | None = None, **cluster: Any) -> Plan:
    return plan_of({**JOB, **(job or {})}, {**CLUSTER, **cluster}, folder)


@pytest.mark.parametrize("case", CASES)
def test_the_same_input_gives_the_same_plan(case: str) -> None:
    job, cluster = CASES[case]
    assert plan_of(job, cluster, "/runs/a") == plan_of(job, cluster, "/runs/a")
    assert plan_of(job, cluster, "/runs/a") != plan_of(job, cluster, "/runs/b")


@pytest.mark.parametrize("case", CASES)
def test_the_written_plan_can_be_read_back(case: str) -> None:
    job, cluster = CASES[case]
    plan = plan_of(job, cluster, "/runs/a é")
    record = json.loads(json.dumps(plan.as_json()))
    assert record["name"] == job["name"] and record["run_folder"] == "/runs/a é"
    assert record["layout"]["world_size"] == plan.layout.world_size
    assert [stage["name"] for stage in record["stages"]] == [stage.name for stage in plan.stages]
    assert record["scheduler"] == plan.cluster.scheduler
    assert record["repository"] == [model.name for model in plan.repository_models]
    assert record["release"] == plan.release
    assert plan.release is not None or set(record["repository"]) == set(MODELS)


def directives(plan: Plan, stage: str) -> dict[str, Any]:
    found = plan.stage(stage)
    assert found is not None
    names = [directive.option for directive in found.directives]
    assert len(names) == len(set(names)), "sbatch takes the last of two"
    return {directive.option: directive.value for directive in found.directives}


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
    assert [stage.name for stage in alone.stages] == ["build", "serve"] and not alone.stops_server


def test_who_stops_the_server() -> None:
    assert make().stops_server
    assert not make(job={"serve": {"keep_running": True}}).stops_server


def test_the_profile_reaches_every_script() -> None:
    plan = make(
        partition="gpu",
        account="mine",
        qos="high",
        reservation="friday",
        constraint="a100&ib",
        sbatch_options=["--mail-type=FAIL", "--exclusive"],
    )
    for stage in plan.stages:
        given = directives(plan, stage.name)
        assert (given["--partition"], given["--account"], given["--qos"]) == ("gpu", "mine", "high")
        assert (given["--reservation"], given["--constraint"]) == ("friday", "a100&ib")
        assert given["--mail-type"] == "FAIL" and given["--exclusive"] is None
        assert given["--output"] == f"/runs/a/logs/{stage.name}.out"
        assert given["--no-requeue"] is None and given["--open-mode"] == "append"


def test_what_the_profile_leaves_out_is_left_to_the_site() -> None:
    for stage in ("build", "serve", "companion"):
        assert not {"--partition", "--account", "--qos", "--mem", "--gres", "--gpus-per-node"} & set(
            directives(make(), stage)
        )


@pytest.mark.parametrize(
    ("request_by", "expected"),
    [
        ({"gpu_request": "gpus-per-node"}, {"--gpus-per-node": 2}),
        ({"gpu_request": "gres"}, {"--gres": "gpu:2"}),
        ({"gpu_request": "none"}, {}),
        ({"gpu_type": "a100"}, {"--gpus-per-node": "a100:2"}),
        ({"gpu_type": "a100", "gpu_request": "gres"}, {"--gres": "gpu:a100:2"}),
    ],
)
def test_gpus_are_asked_for_as_the_site_wants(request_by: dict[str, str], expected: dict[str, Any]) -> None:
    job = {"engine": {"tensor_parallel": 4}, "serve": {"nodes": 2}, "build": {"gpus": 2}}
    plan = make(job=job, gpus_per_node=4, **request_by)
    for stage in ("serve", "build"):
        asked = directives(plan, stage)
        assert {name: asked[name] for name in asked if "gpu" in name or "gres" in name} == expected
    companion = directives(plan, "companion")
    assert "--gpus-per-node" not in companion and "--gres" not in companion


def test_gpus_of_all_nodes_together() -> None:
    job = {"engine": {"tensor_parallel": 4}, "serve": {"nodes": 2}, "build": {"gpus": 1}}
    plan = make(job=job, gpus_per_node=4, gpu_request="gpus", gpu_type="h100")
    assert [directives(plan, stage)["--gpus"] for stage in ("build", "serve")] == ["h100:1", "h100:4"]


def test_serve_asks_for_all_ranks_and_only_it_takes_whole_nodes() -> None:
    job = {
        "engine": {"tensor_parallel": 4},
        "serve": {"nodes": 2, "cpus_per_rank": 6, "memory_gib_per_node": 80, "time_limit_minutes": 90},
    }
    plan = make(job=job, exclusive=True)
    serve = directives(plan, "serve")
    assert (serve["--nodes"], serve["--ntasks"], serve["--ntasks-per-node"]) == (2, 4, 2)
    assert (serve["--cpus-per-task"], serve["--mem"], serve["--time"]) == (6, "80G", 90)
    assert "--exclusive" in serve and "--exclusive" not in directives(plan, "companion")


def test_the_companion_may_have_a_partition_of_its_own() -> None:
    plan = make(partition="gpu", companion_partition="cpu")
    assert directives(plan, "companion")["--partition"] == "cpu"
    assert directives(plan, "serve")["--partition"] == "gpu"


def test_ranks_use_the_containers_python_and_the_rest_the_nodes() -> None:
    inside = {"runtime": "pyxis", "image": "a.sqsh", "python": "python3.12"}
    plan = make(python="/shared/bin/python", container=inside)
    assert (plan.python, plan.task_python) == ("/shared/bin/python", "python3.12")
    assert plan.build_steps[0].commands[0][0] == "python3.12"
    bare = make()
    assert bare.python == bare.task_python == "/opt/trtllm-hpc/bin/python3"


def test_only_what_is_asked_for_reaches_the_build() -> None:
    words = make().build_steps[0].commands[0]
    assert not {"--max-num-tokens", "--gather-context-logits", "--gather-generation-logits"} & set(words)
    job = {"engine": {"max_num_tokens": 64, "gather_context_logits": True}}
    words = make(job=job).build_steps[0].commands[0]
    assert words[words.index("--max-num-tokens") + 1] == "64"
    assert "--gather-context-logits" in words and "--gather-generation-logits" not in words


def test_the_settings_of_the_server_are_strings_as_tritons_parameters_are() -> None:
    values = make(job={"repository": {"accumulate_tokens": True, "max_queue_size": 3}}).repository_values
    assert (values["accumulate_tokens"], values["max_queue_size"]) == ("true", "3")
    assert values["max_tokens_in_paged_kv_cache"] == ""
    assert values["kv_cache_free_gpu_mem_fraction"] == "0.9"


@pytest.mark.parametrize(("batch", "asked", "count"), [(4, None, 2), (64, None, 2), (64, 64, 64), (4, 1, 1)])
def test_bls_has_two_processes_unless_others_are_asked_for(batch: int, asked: int | None, count: int) -> None:
    job = {"engine": {"max_batch_size": batch}, "repository": {"bls_instances": asked}}
    assert make(job=job).repository_values["bls_instance_count"] == count
