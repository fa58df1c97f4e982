"""Workloads of given prompts: those of the settings and those of data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtllm_hpc.bench.workload.build import BUILT_IN_PROMPTS, make_workload
from trtllm_hpc.bench.workload.request import WorkloadSpec, write_workload
from trtllm_hpc.config.benchmark import Benchmark, Workload
from trtllm_hpc.errors import ConfigError

from .helpers import build, prompts_of


def write(folder: Path, entries: list[Any], *, lines: bool = False) -> Path:
    file = folder / "questions.json"
    text = "\n".join(map(json.dumps, entries)) if lines else json.dumps(entries, indent=1)
    file.write_text(text, encoding="utf-8")
    return file


def test_every_prompt_is_sent_before_any_is_repeated() -> None:
    prompts = prompts_of(build(20))
    assert set(prompts[:8]) == set(prompts[8:16]) == set(BUILT_IN_PROMPTS) and len(prompts) == 20
    assert prompts[:8] != prompts[8:16], "each time in another order"
    assert prompts == prompts_of(build(20)) != prompts_of(build(20, settings={"seed": 6}))


def test_a_tokenizer_is_needed_for_token_ids_and_for_limits() -> None:
    with pytest.raises(ConfigError, match="accepts token IDs only needs a tokenizer"):
        make_workload(WorkloadSpec(Benchmark(), 2, takes_token_ids=True))
    limited = Benchmark(workload=Workload(max_input_tokens=5))
    with pytest.raises(ConfigError, match="a limit of prompt lengths needs a tokenizer"):
        make_workload(WorkloadSpec(limited, 2, takes_token_ids=False))


def test_prompts_that_are_too_long_are_left_out_and_counted() -> None:
    given = ["a", "a b", "a b c", "a b c d"]
    built = build(8, prompts=given, max_input_tokens=3, max_input_len=100)
    assert sorted(prompts_of(built)) == ["a"] * 4 + ["a b"] * 4
    assert built.notes == ["Left out 2 of 4 prompts: longer than 3 tokens."]


def test_a_workload_is_refused_if_all_prompts_are_too_long() -> None:
    with pytest.raises(ConfigError, match="every prompt is longer than 2 tokens"):
        build(2, prompts=["a b", "c d"], max_input_len=2)


@pytest.mark.parametrize(
    ("entry", "prompt", "tokens"),
    [
        ({"prompt": "ask", "max_tokens": 7}, "ask", 7),
        ({"text": "ask", "output_tokens": 8}, "ask", 8),
        ({"input": "ask", "output": "one two three"}, "ask", 3),
        ({"question": "ask", "answer": "one"}, "ask", 1),
        ({"prompt": "ask"}, "ask", 16),
        ({"question": "ask", "body": "an article", "payload": 5}, "ask", 16),
        ({"input": "I", "instruction": "Say on.", "output": "one two three four five"}, "I Say on.", 6),
        ({"prompt": "half \ud800 a letter"}, "half ? a letter", 16),
        (
            {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "ask"}]},
            "be\nask",
            16,
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "ask"}]}], "max_tokens": 3},
            "ask",
            3,
        ),
        (
            {
                "id": "x",
                "conversations": [
                    {"from": "human", "value": "ask"},
                    {"from": "gpt", "value": "one two"},
                    {"from": "human", "value": "more"},
                ],
            },
            "ask",
            2,
        ),
    ],
)
@pytest.mark.parametrize("lines", [False, True])
def test_layouts_of_data_sets(
    tmp_path: Path, entry: dict[str, Any], prompt: str, tokens: int, lines: bool
) -> None:
    built = build(1, kind="dataset", path=write(tmp_path, [entry], lines=lines))
    assert [(request.prompt, request.max_tokens) for request in built.requests] == [(prompt, tokens)]


BODY = {"model": "m", "messages": [{"role": "user", "content": "ask"}], "max_completion_tokens": 8}
TWICE = {"data": [{"text_input": ["ask"], "stream": [True], "max_tokens": [8]}] * 2}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": BODY}), 1),
        ("\n".join([json.dumps({"custom_id": "1", "body": BODY})] * 3), 3),
        (json.dumps({"data": [{"payload": [BODY]}, {"payload": [BODY, BODY]}]}), 3),
        (json.dumps(TWICE), 2),
        (json.dumps(TWICE, indent=2), 2),
    ],
)
def test_requests_in_files_of_other_tools(tmp_path: Path, text: str, count: int) -> None:
    file = tmp_path / "requests"
    file.write_text(text)
    built = build(count + 1, kind="dataset", path=file)
    assert {(it.prompt, it.max_tokens) for it in built.requests} == {("ask", 8)} and built.distinct == count


@pytest.mark.parametrize("chats", [1, 2])
def test_bare_lists_of_messages(tmp_path: Path, chats: int) -> None:
    chat = [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "one"}]
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join([json.dumps(chat)] * chats))
    built = build(2, kind="dataset", path=file)
    assert [(it.prompt, it.max_tokens) for it in built.requests] == [("ask", 1)] * 2
    assert built.distinct == chats


SYSTEM, ASK, ANSWER, MORE, LAST = (
    {"role": role, "content": content}
    for role, content in [
        ("system", "be"),
        ("user", [{"type": "text", "text": "ask"}, {"type": "image_url", "image_url": {"url": "data:,"}}]),
        ("assistant", "one"),
        ("user", "more"),
        ("assistant", "one two three"),
    ]
)
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
TOOL = {"role": "tool", "content": "42", "tool_call_id": "1"}
HUMAN, GPT = {"from": "human", "value": "ask"}, {"from": "gpt", "value": "one two"}


@pytest.mark.parametrize(
    ("entry", "messages", "prompt", "tokens"),
    [
        ({"messages": [SYSTEM, ASK, ANSWER, MORE]}, [SYSTEM, ASK, ANSWER, MORE], "be\nask\none\nmore", 16),
        ({"messages": [ASK, ANSWER, MORE, LAST]}, [ASK, ANSWER, MORE], "ask\none\nmore", 3),
        ({"messages": [MORE, CALL, TOOL], "max_tokens": 7}, [MORE, CALL, TOOL], "more\n\n42", 7),
        ({"conversations": [HUMAN, GPT, HUMAN]}, [{"role": "user", "content": "ask"}], "ask", 2),
        ({"turns": ["ask", "again"]}, [{"role": "user", "content": "ask"}], "ask", 16),
        ({"prompt": "ask"}, None, "ask", 16),
    ],
)
def test_a_chat_gets_the_messages_of_a_file_as_they_are(
    tmp_path: Path, entry: dict[str, Any], messages: list[Any] | None, prompt: str, tokens: int
) -> None:
    built = build(2, kind="dataset", path=write(tmp_path, [entry]), takes_messages=True)
    request = built.requests[0]
    assert (None if request.messages is None else [*request.messages]) == messages
    assert (request.prompt, request.max_tokens) == (prompt, tokens)
    assert request.input_tokens == 1 + len(prompt.split())
    write_workload(tmp_path / "again.jsonl", built.requests)
    again = build(1, kind="dataset", path=tmp_path / "again.jsonl", takes_messages=True).requests[0]
    assert [*(again.messages or ())] == (messages or []) and again.prompt == prompt


def test_entries_without_a_prompt_are_left_out_and_counted(tmp_path: Path) -> None:
    gpt, human = {"from": "gpt", "value": "one"}, {"from": "human", "value": "ask"}
    entries = [
        {"conversations": [human, gpt]},
        {"conversations": []},
        {"conversations": [gpt, human]},
        {"prompt": " "},
    ]
    built = build(2, kind="dataset", path=write(tmp_path, entries))
    assert prompts_of(built) == ["ask", "ask"]
    assert built.notes == ["Left out 3 of 4 entries: they have no prompt."]


def test_token_ids_of_a_file_are_sent_to_the_core_model(tmp_path: Path) -> None:
    file = write(tmp_path, [{"input_ids": [5, 6, 999], "output_tokens": 4}], lines=True)
    (request,) = build(1, kind="dataset", path=file, token_ids=True).requests
    assert (request.token_ids, request.max_tokens, request.input_tokens) == ((5, 6, 999), 4, 3)


def test_token_ids_of_a_file_are_refused_for_a_text_model(tmp_path: Path) -> None:
    file = write(tmp_path, [{"prompt": "x"}, {"token_ids": [5]}], lines=True)
    with pytest.raises(ConfigError, match=f"{file}:2: has token IDs, but the model accepts text only"):
        build(2, kind="dataset", path=file)


def test_token_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, [{"token_ids": [5, 1000]}], lines=True)
    with pytest.raises(ConfigError, match=f"{file}:1: token ID 1000 is outside .* vocabulary of 1,000"):
        build(1, kind="dataset", path=file, token_ids=True)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", None, "has no entries"),
        ("[]", None, "has no entries"),
        ('{"prompt": "x"}\n\n{"prompt": 5}', 3, "prompt must be text; found int"),
        ('{"prompt": "x"}\nprompt', 2, "is not JSON: Expecting value"),
        ('[\n{"prompt": "x"},\n{"prompt"}\n]', 3, "is not JSON"),
        ('[\n{"prompt": "x"}\n{"prompt": "y"}\n]', 3, "is not JSON"),
        ('[{"prompt": "x"}] more', 1, "is not JSON"),
        ('[{"prompt": "y"},\n"x"]', None, "entry 2: each entry must be a JSON object in braces; found str"),
        ('{"promt": "x"}', 1, "has no prompt: expected one of prompt, text"),
        ('{"prompt": "x", "max_tokens": 0}', 1, "must be a whole number from 1 to 10,000,000; found 0"),
        ('{"prompt": "x", "max_tokens": true}', 1, "found True"),
        ('{"token_ids": [1, "2"]}', 1, "token_ids must be a list of token IDs"),
        ('{"messages": "x"}', 1, "messages must be a list of turns"),
        ('{"messages": [{"role": "user"}]}', 1, "a turn must have text in value, content or text"),
        ('[{"prompt": " "}]', None, "all prompts are empty"),
        ("[" * 100_000, 1, "is not JSON"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    file = tmp_path / "questions.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        build(1, kind="dataset", path=file)
    (diagnostic,) = raised.value.diagnostics
    assert message in diagnostic.message
    assert (diagnostic.file, diagnostic.line) == (str(file), line)
