"""Answers that are garbled under load, and those that only differ by rounding."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import trtllm_hpc as api
from tests.bench.openai_server import DONE, Script, event, openai_server
from trtllm_hpc.bench.load.messages import Target
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.bench.quick_check import (
    EMPTY,
    REPEATS,
    SCRIPTS,
    UNLIKE,
    UNLIKELY,
    Answer,
    check_under_load,
    judge,
)
from trtllm_hpc.bench.results import QuickCheck
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.cli import command as trtllm_hpc
from trtllm_hpc.errors import InvalidMeasurement
from trtllm_hpc.paths import RunPaths

PROMPTS = [Request(16, prompt=text) for text in ("The sky is", "One, two,", "A cat", "In Rome")]
LONE = [
    "blue, and the sea is, too.",
    "three, four, five, six.",
    "sat on the mat all day.",
    "live many Romans.",
]
GARBAGE = {
    EMPTY: "",
    REPEATS: "!!!!!!!!!!!!!!!!",
    SCRIPTS: "blue 的是不了在人有我他这",
    UNLIKE: "zorp quix flam tub",
}


def judged(answers: Sequence[str], **more: Any) -> QuickCheck:
    """Judge 16 answers to each prompt that are equal."""
    loaded = [(place % 4, Answer(answers[place % 4])) for place in range(64)]
    return judge(PROMPTS, [Answer(text) for text in LONE], loaded, **more)


def test_answers_that_begin_alike_differ_by_rounding() -> None:
    found = judged([LONE[0], "three, four and more than that", "sat down.", "live " + "a" * 5])
    assert (found.equal, found.garbled, found.finding) == (16, {}, None)
    assert found.sentence == "64 requests at once, answers: 16 equal to the lone ones"


@pytest.mark.parametrize("kind", GARBAGE)
def test_each_kind_of_garbage_is_named(kind: str) -> None:
    found = judged([GARBAGE[kind]] * 4)
    assert found.garbled == {kind: 64}
    assert repr(GARBAGE[kind]) in (found.finding or "") and repr(LONE[0]) in (found.finding or "")


def test_garbage_for_one_prompt_alone_is_no_alarm() -> None:
    """A near tie of two tokens, one of which ends the answer, falls the same way in all of a batch."""
    found = judged(["", *LONE[1:]])
    assert found.garbled == {EMPTY: 16} and not found.finding
    assert judge(PROMPTS[:1], [Answer(LONE[0])], [(0, Answer(""))] * 2).finding


def test_a_model_that_repeats_itself_alone_may_do_so_under_load() -> None:
    loaded = [(place % 4, Answer((9,) * 12)) for place in range(64)]
    assert judge(PROMPTS, [Answer((9, *(7,) * 11))] * 4, loaded).garbled == {}
    assert judge(PROMPTS, [Answer((9, *range(11)))] * 4, loaded).garbled == {REPEATS: 64}


def test_a_server_that_draws_tokens_at_random_is_compared_less() -> None:
    found = judged(["some other words"] * 4, is_greedy=False)
    assert found.garbled == {} and "at random" in found.sentence
    assert judged([""] * 4, is_greedy=False).finding


@pytest.mark.parametrize(("under_load", "is_alarm"), [(-2.0, False), (-6.0, True), (math.nan, True)])
def test_the_server_itself_finds_its_answer_unlikely(under_load: float, is_alarm: bool) -> None:
    loaded = [(place % 4, Answer("blue is all", under_load)) for place in range(64)]
    found = judge(PROMPTS, [Answer("blue as ever", -0.5)] * 4, loaded)
    assert (found.finding is not None) is is_alarm and found.garbled == ({UNLIKELY: 64} if is_alarm else {})


# With a server ----------------------------------------------------------------------------------


def answering(
    garbage: str | None, *, log_prob: float | None = None
) -> Callable[[dict[str, Any], int], list[bytes]]:
    """Answer with the prompt's length in words, and with garbage when 16 requests are in flight."""

    def answer(body: dict[str, Any], in_flight: int) -> list[bytes]:
        text = f"It has {len(body['prompt'])} letters."
        is_garbled = garbage is not None and in_flight >= 16
        events = [event(garbage if is_garbled else text, reason="length")]
        if log_prob is not None:
            plain = json.loads(events[0].removeprefix(b"data: "))
            plain["choices"][0]["logprobs"] = {"token_logprobs": [log_prob if in_flight >= 16 else -0.1]}
            events = [b"data: " + json.dumps(plain).encode() + b"\n\n"]
        return [*events, event(usage=(5, 4)), DONE]

    return answer


@pytest.mark.parametrize(
    ("garbage", "log_prob", "kind"),
    [("", None, EMPTY), ("!!!!!!!!!!!!", None, REPEATS), ("It has none", -9.0, UNLIKELY), (None, None, None)],
)
def test_a_server_that_garbles_at_16_at_once_is_found_before_the_first_level(
    tmp_path: Path, garbage: str | None, log_prob: float | None, kind: str | None
) -> None:
    script = Script(answer=answering(garbage, log_prob=log_prob))
    settings: dict[str, Any] = {"concurrency": 4, "requests": 8, "min_requests": 1, "min_window_seconds": 0.0}
    with openai_server(script) as endpoint:
        measurement = api.bench_url(endpoint.openai_url or "", tmp_path, name="mine", **settings)
        checked = script.bodies[:69]
        assert {(body["temperature"], body["max_tokens"], body["logprobs"]) for body in checked} == {
            (0, 8, 1)
        }
        assert len({body["prompt"] for body in checked}) == 4
        found = measurement.summary
        assert found.check is not None and list(found.check.garbled) == ([kind] if kind else [])
        assert (len(found.levels), found.valid, len(script.bodies) == 69) == (
            (0, False, True) if kind else (1, True, False)
        )
        if kind:
            assert "not valid: The server garbles answers under load" in str(measurement).replace("\n", " ")
            with pytest.raises(InvalidMeasurement, match="garbles answers"):
                measurement.check()
            assert api.bench_url(endpoint.openai_url or "", tmp_path, check=False, **settings).summary.levels


def test_log_probabilities_that_the_server_refuses_are_not_asked_for_again() -> None:
    def answer(body: dict[str, Any], in_flight: int) -> list[bytes]:
        if "logprobs" in body:
            return [b'event: error\ndata: {"error": "no logprobs here"}\n\n']
        return answering(None)(body, in_flight)

    script = Script(answer=answer)
    with openai_server(script) as endpoint:
        found = check_under_load(
            PROMPTS, [Target(endpoint, "one", protocol="openai", streaming=True)], Clock()
        )
        assert (found.equal, found.answered) == (64, 64)
        script.body, script.status = b'{"error": "too busy"}', 503
        found = check_under_load(PROMPTS, [Target(endpoint, "one", protocol="openai")], Clock())
        assert found.sentence == "not made: a lone request failed: too busy" and not found.finding
    gone = check_under_load(PROMPTS, [Target(endpoint, "one", protocol="openai")], Clock())
    assert gone.sentence.startswith("not made: ")


def test_each_model_is_compared_with_itself() -> None:
    """Adapters that a server knows by a name are other models."""

    def answer(body: dict[str, Any], in_flight: int) -> list[bytes]:
        return [event(f"{body['model']} says {len(body['prompt'])} letters"), event(usage=(5, 4)), DONE]

    with openai_server(Script(answer=answer)) as endpoint:
        targets = [Target(endpoint, name, protocol="openai", streaming=True) for name in ("one", "two", "b")]
        found = check_under_load(PROMPTS, targets, Clock())
    assert (found.equal, found.garbled) == (64, {})


def test_one_model_of_three_that_garbles_is_found() -> None:
    def answer(body: dict[str, Any], in_flight: int) -> list[bytes]:
        is_garbled = body["model"] == "b" and in_flight >= 16
        return answering("!!!!!!!!!!!!" if is_garbled else None)(body, in_flight)

    prompts = [*PROMPTS, Request(16, prompt="By the sea"), Request(16, prompt="Up north")]
    with openai_server(Script(answer=answer)) as endpoint:
        targets = [Target(endpoint, name, protocol="openai", streaming=True) for name in ("one", "two", "b")]
        found = check_under_load(prompts, targets, Clock())
    assert list(found.garbled) == [REPEATS] and found.finding


def test_the_report_of_a_garbled_server_has_the_finding_and_no_level(tmp_path: Path) -> None:
    script = Script(answer=answering("!!!!!!!!!!!!"))
    with openai_server(script) as endpoint:
        words = ["bench", "--url", endpoint.openai_url or "", "--output", str(tmp_path), "--save-as", "mine"]
        result = CliRunner().invoke(trtllm_hpc, words)
    assert isinstance(result.exception, InvalidMeasurement), result.output
    page = RunPaths(tmp_path).measurement("mine").report.read_text()
    assert "The server garbles answers under load" in page and "Nothing was measured." in page
    assert "check: 64 requests at once, answers: " in page
