"""Conversations: their turns, drawn and from files of several layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.workload.helpers import WordTokenizer, build, prompts_of, read_workload
from trtllm_hpc.bench.workload.build import check_file
from trtllm_hpc.bench.workload.request import WorkloadRequest, write_workload
from trtllm_hpc.config.benchmark import Benchmark, Workload
from trtllm_hpc.errors import ConfigError
from trtllm_hpc.validation.benchmark_rules import settings_problems

Turn = tuple[str | None, int | None, float | None]
TRACE: dict[str, Any] = {"arrival": "trace"}


def write(folder: Path, *entries: dict[str, Any]) -> Path:
    file = folder / "talks.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return file


def turns(requests: list[WorkloadRequest]) -> list[Turn]:
    return [(request.session, request.turn, request.think_s) for request in requests]


def said(role: str, text: str) -> dict[str, str]:
    return {"from": role, "value": text}


def test_drawn_turns_follow_each_other_after_a_system_prompt_in_turn() -> None:
    built = build(3, kind="conversations", turns=2, input_tokens=7, prefix_tokens=5, prefixes=2)
    assert turns(built.requests) == [
        *(("0-0", 1, None), ("0-0", 2, 1.0), ("0-1", 1, None), ("0-1", 2, 1.0)),
        *(("0-2", 1, None), ("0-2", 2, 1.0)),
    ]
    assert {len(ids) for ids in WordTokenizer().encode(prompts_of(built))} == {7}
    systems = [request.said for request in built.requests]
    assert systems[0] == systems[4] != systems[2] and systems[1] is None
    assert len(WordTokenizer().encode([(systems[0] or [])[0]["content"]])[0]) == 5


def test_a_file_has_whole_conversations_with_the_lengths_of_their_answers(tmp_path: Path) -> None:
    talk = [
        said("system", "Be brief."),
        said("human", "Why?"),
        said("gpt", "So it is."),
        said("user", "And?"),
    ]
    file = write(tmp_path, {"conversations": talk, "max_tokens": 9}, {"messages": []})
    [first, second] = build(1, kind="conversations", path=file).requests
    assert (first.prompt, first.max_tokens, first.said) == (
        "Why?",
        9,
        [{"role": "system", "content": "Be brief."}],
    )
    assert (second.prompt, second.max_tokens, second.think_s, second.said) == ("And?", 9, 1.0, None)
    [first, _] = build(1, kind="conversations", path=write(tmp_path, {"messages": talk})).requests
    assert first.max_tokens == 3


def test_turns_may_be_bare_texts(tmp_path: Path) -> None:
    file = write(tmp_path, {"question_id": 81, "category": "writing", "turns": ["ask", "again"]})
    built = build(1, kind="conversations", path=file)
    assert [(it.prompt, it.turn) for it in built.requests] == [("ask", 1), ("again", 2)]


def test_turns_with_delays_and_entries_of_a_session(tmp_path: Path) -> None:
    whole = {"session_id": "a", "turns": [{"text": "one"}, {"text": "two", "delay": 250}]}
    parts = [
        {"session_id": "b", "prompt": text, "think_s": 2.0, "max_tokens": 4} for text in ("three", "four")
    ]
    file = write(tmp_path, parts[0], whole, parts[1])
    built = build(2, kind="conversations", path=file, speed=2.0)
    by_text = {request.prompt: request for request in built.requests}
    assert (by_text["one"].session, by_text["one"].think_s) == (by_text["two"].session, None)
    assert (by_text["two"].think_s, by_text["four"].think_s, by_text["four"].turn) == (0.125, 1.0, 2)
    assert by_text["four"].max_tokens == 4 and len(built.requests) == 4


def test_conversations_with_times_begin_at_them_and_a_written_file_gives_the_same_again(
    tmp_path: Path,
) -> None:
    entries: list[dict[str, Any]] = [
        {"session_id": "a", "timestamp": 5, "input_length": 600, "output_length": 100},
        {"session_id": "b", "timestamp": 1000, "input_length": 60},
        {"session_id": "a", "timestamp": 4005, "input_length": 90},
    ]
    built = build(9, kind="conversations", path=write(tmp_path, *entries), settings=TRACE)
    assert turns(built.requests) == [("0-0", 1, None), ("0-0", 2, 0.0), ("0-1", 1, None)]
    assert [request.due_s for request in built.requests] == [0.0, 4.0, 0.995]
    assert [len(ids) for ids in WordTokenizer().encode(prompts_of(built))] == [600, 90, 60]
    write_workload(tmp_path / "again.jsonl", built.requests)
    assert read_workload(tmp_path / "again.jsonl") == built.requests
    again = build(9, kind="conversations", path=tmp_path / "again.jsonl", settings=TRACE)
    assert [(it.prompt, it.due_s, it.turn) for it in again.requests] == [
        (it.prompt, it.due_s, it.turn) for it in built.requests
    ]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"messages": []}, "all conversations are empty"),
        ({"session_id": 1, "prompt": "x", "delay": "soon"}, "delay must be a number"),
        ({"session_id": 1, "token_ids": [1]}, "no text to say"),
        ({"messages": [{"role": "user"}]}, "must have text"),
    ],
)
def test_what_cannot_be_said_is_refused_before_a_server_is_started(
    entry: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_file(Workload(kind="conversations", path=str(write(tmp_path, entry))))


def test_a_trace_without_times_and_models_of_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no time"):
        build(1, kind="conversations", path=write(tmp_path, {"turns": [{"text": "x"}]}), settings=TRACE)
    with pytest.raises(ConfigError, match="the model accepts token IDs only"):
        build(1, kind="conversations", token_ids=True)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"workload": {"kind": "conversations"}, "arrival": "trace"}, "arrival"),
        ({"workload": {"kind": "normal", "turns": 3}}, "workload.turns"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], field: str) -> None:
    assert settings_problems(Benchmark.model_validate(settings))[0].field == field
