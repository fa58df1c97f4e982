"""Which request has which LoRA adapter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from trtllm_hpc.config.benchmark import Workload
from trtllm_hpc.validation.benchmark_rules import settings_problems

from .helpers import build


def task_ids(count: int, *adapters: dict[str, Any], seed: int = 0, **workload: Any) -> list[int | None]:
    lora = [{"directory": f"/adapters/{place}", **one} for place, one in enumerate(adapters)]
    built = build(count, kind="prompts", lora=lora, settings={"seed": seed}, **workload)
    return [request.lora_task_id for request in built.requests]


@pytest.mark.parametrize(
    ("adapters", "shares"),
    [
        ([{}, {}], [1 / 3, 1 / 3]),
        ([{"share": 0.5}, {}], [0.5, 0.25]),
        ([{"share": 0.25}, {"share": 0.75}], [0.25, 0.75]),
        ([{"share": 1}], [1.0]),
    ],
)
def test_what_is_left_is_divided_equally_and_one_part_has_no_adapter(
    adapters: list[dict[str, Any]], shares: list[float]
) -> None:
    workload = Workload.model_validate({"lora": [{"directory": "/a", **one} for one in adapters]})
    assert workload.lora_shares == pytest.approx(shares)
    assert workload.lora_task_ids == list(range(1, len(adapters) + 1))


def test_every_dozen_has_the_shares() -> None:
    drawn = task_ids(1200, {"share": 0.25, "task_id": 70}, {"share": 0.5})
    assert Counter(drawn) == {70: 300, 2: 600, None: 300}
    assert all(Counter(drawn[at : at + 12]) == {70: 3, 2: 6, None: 3} for at in range(0, 1200, 12))


def test_three_equal_shares_leave_nothing() -> None:
    assert None not in task_ids(1200, *[{"share": 1 / 3}] * 3)


def test_an_odd_share_is_right_in_the_long_run() -> None:
    assert Counter(task_ids(12_000, {"share": 0.07}))[1] == pytest.approx(840, abs=40)


def test_the_seed_alone_decides() -> None:
    first = task_ids(48, {}, {})
    assert first == task_ids(48, {}, {}) == task_ids(480, {}, {})[:48]
    assert first != task_ids(48, {}, {}, seed=1)
    assert first == task_ids(48, {}, {}, prompts=["another one"])


def test_adapters_do_not_take_turns() -> None:
    """A server's instances may take turns, and each would get one adapter only."""
    drawn = task_ids(1200, {}, {})
    assert len(set(drawn[::3])) == 3 and max(Counter(drawn[::3]).values()) < 200


def test_prompts_are_the_same_with_and_without_adapters() -> None:
    plain, adapted = (build(20, kind="prompts", lora=lora) for lora in ([], [{"directory": "/a"}]))
    assert [one.prompt for one in plain.requests] == [one.prompt for one in adapted.requests]


@pytest.mark.parametrize(
    ("adapters", "words"),
    [
        ([{"task_id": 2}, {}], "two adapters have the task id 2"),
        ([{"share": 0.6}, {"share": 0.6}], "add up to 1.2"),
        ([{"share": 1.0}, {}], "nothing is left"),
    ],
)
def test_what_cannot_be_is_refused(adapters: list[dict[str, Any]], words: str) -> None:
    from trtllm_hpc.config.benchmark import Benchmark

    lora = [{"directory": f"/adapters/{place}", **one} for place, one in enumerate(adapters)]
    (problem,) = settings_problems(Benchmark.model_validate({"workload": {"lora": lora}}))
    assert problem.field == "workload.lora" and words in problem.message and problem.hint
