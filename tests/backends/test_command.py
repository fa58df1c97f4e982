"""A server that the job file starts by its own command."""

from __future__ import annotations

from typing import Any

import pytest

from tests.render.cases import plan_of
from trtllm_hpc.backends import facts_of
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.validation.load import problems

SERVES = ["vllm", "serve", "{model}", "--host", "{address}", "--port", "{port}"]
EIGHT_GPUS: dict[str, Any] = {"name": "here", "gpus_per_node": 8}


def job(command: list[str], engine: dict[str, Any] | None = None, **serve: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "model": {"path": "/models/m"},
        "engine": {"backend": "command", **(engine or {})},
        "serve": {"command": command, **serve},
    }


def refused(made: dict[str, Any]) -> list[tuple[str, str]]:
    """The field and the message of everything that is wrong with a job file."""
    facts = facts_of(JobFile.model_validate(made), ClusterProfile.model_validate(EIGHT_GPUS))
    return [(problem.field, problem.message) for problem in problems(facts)]


def test_keys_of_the_job_file_stand_in_the_command_and_values_of_the_node_stay_open() -> None:
    words = [*SERVES, "-tp={tensor_parallel}", "--max-model-len={max_seq_len}", "{{as it is}}"]
    made = job(words, {"tensor_parallel": 4, "max_seq_len": 4096, "max_input_len": 2048})
    assert refused(made) == []
    spec = plan_of(made, EIGHT_GPUS, "/runs/demo").server.spec
    assert spec.leader[2:] == [
        *("/models/m", "--host", "{address}", "--port", "{port}"),
        *("-tp=4", "--max-model-len=4096", "{as it is}"),
    ]


@pytest.mark.parametrize(
    ("command", "field", "message"),
    [
        ([], "serve.command", "the backend command needs the server's command line"),
        (["vllm", "serve", "{model}"], "serve.command", "has no {port}"),
        ([*SERVES, "{modell}"], "serve.command[7]", "{modell} is not a placeholder"),
        ([*SERVES, "--len={max_seq_len}"], "serve.command[7]", "engine.max_seq_len, which is not set"),
        ([*SERVES, "--json={"], "serve.command[7]", "has a brace that does not belong to a placeholder"),
        ([*SERVES, "{port:d}"], "serve.command[7]", "has a brace that does not belong to a placeholder"),
    ],
)
def test_what_is_wrong_with_a_command_is_named(command: list[str], field: str, message: str) -> None:
    [(where, why)] = refused(job(command))
    assert where == field and message in why


def test_keys_of_tensorrt_llm_are_refused_and_a_command_is_refused_elsewhere() -> None:
    [(field, message)] = refused(job(SERVES, {"max_num_tokens": 8192}))
    assert field == "engine.max_num_tokens" and "has no effect with engine.backend command" in message
    other = job(SERVES) | {"engine": {"backend": "pytorch"}}
    assert ("serve.command", "is set, but engine.backend is pytorch") in refused(other)


@pytest.mark.parametrize(
    ("engine", "serve", "layout"),
    [
        # ranks -> nodes, GPUs of each node that the process on it has
        ({"tensor_parallel": 2}, {}, (1, 1, 2)),
        ({"tensor_parallel": 8, "pipeline_parallel": 2}, {}, (2, 2, 8)),
        ({"tensor_parallel": 8}, {"nodes": 2}, (2, 2, 4)),
    ],
)
def test_each_node_has_one_process_with_all_its_gpus(
    engine: dict[str, Any], serve: dict[str, Any], layout: tuple[int, int, int]
) -> None:
    made = job([*SERVES, "--node-rank={node_rank}"], engine, **serve)
    assert refused(made) == []
    found = plan_of(made, EIGHT_GPUS, "/runs/demo").layout
    assert (found.world_size, found.nodes, found.gpus_per_node) == layout


def test_processes_on_several_nodes_need_their_numbers_unless_workers_have_their_own_command() -> None:
    made = job(SERVES, {"tensor_parallel": 16})
    [(field, message)] = refused(made)
    assert field == "serve.command" and "nothing gives them their numbers" in message
    for worker in (["vllm", "serve", "--node-rank={node_rank}"], ["ray", "--address={leader_address}"]):
        assert refused(job(SERVES, {"tensor_parallel": 16}, worker_command=worker)) == []
